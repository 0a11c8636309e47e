"""One folder a method; found by folder, never listed by hand."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

from verl_agentic.core.method import Method
from verl_agentic.core.suggest import did_you_mean


def discover() -> list[str]:
    """Names of the methods that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def load_method(name: str) -> Method:
    """The method `name`: one of `discover()`, or a package of the user's on the import path that defines `METHOD`.

    Raises:
        ValueError: no such method (nearest name suggested), or the package defines no `METHOD`, or one of another name.
    """
    package = f"{__name__}.{name}" if name in discover() else name
    if not _importable(package):
        raise ValueError(
            f"agentic.method: unknown method {name!r}{did_you_mean(name, discover())} (available: {discover()}, or the "
            "name of a package on the import path that defines METHOD)"
        )
    method = getattr(importlib.import_module(package), "METHOD", None)
    if not isinstance(method, Method):
        raise ValueError(f"agentic.method: the package {package} defines no METHOD of type Method")
    if method.name != package.rsplit(".", 1)[-1]:
        raise ValueError(f"the METHOD of package {package} is called {method.name!r}; name it as its package")
    return method


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a parent of a dotted name is missing
        return False
