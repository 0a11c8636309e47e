"""One folder a method; found by folder, never listed by hand."""

from __future__ import annotations

import importlib
import pkgutil

from verl_agentic.core.method import Method
from verl_agentic.core.suggest import did_you_mean


def discover() -> list[str]:
    """Names of the methods that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def load_method(name: str) -> Method:
    """The method `name`: one of `discover()`, or the dotted path of a package of the user's that defines `METHOD`.

    Raises:
        ValueError: no such method (nearest name suggested), or the package defines no `METHOD`.
    """
    if "." not in name and name not in discover():
        raise ValueError(f"agentic.method: unknown method {name!r}{did_you_mean(name, discover())} (available: {discover()})")
    module = importlib.import_module(name if "." in name else f"{__name__}.{name}")
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise ValueError(f"agentic.method: the package {module.__name__} defines no METHOD of type Method")
    return method
