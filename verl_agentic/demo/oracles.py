"""Discovery of the methods' oracle policies: a method that can be cold-started has a module ``oracle``.

Such a module offers ``make_oracle(question, look_up, rng=None, mix=None, actions_off=())``, whose result has
``turn(observation: str) -> str``: the text of the policy's next turn; and ``DEMO_BUDGET``, the budget of its CPU
recipes. It may offer ``demo_environment(actions_off) -> dict``, the environment's knobs that those recipes set, and
``COLD_START_KINDS``, the share of each kind of question in its cold start.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

METHODS = "verl_agentic.methods"


class Oracle(Protocol):
    """A scripted policy for one episode."""

    def turn(self, observation: str) -> str:
        """Text of the next turn, given what the policy newly sees (at first the prompt)."""


def load_method(name: str) -> Any:
    """The method's `Method` record; ValueError for an unknown name."""
    return importlib.import_module(METHODS).load_method(name)


def methods_with_oracle() -> tuple[str, ...]:
    """Names of the methods that have an oracle, sorted."""
    methods = importlib.import_module(METHODS)
    # By file: finding a module's specification would import the package of every method.
    folders = [Path(folder) for folder in methods.__path__]
    return tuple(name for name in methods.discover() if any((f / name / "oracle.py").is_file() for f in folders))


def load_oracle(method: str) -> ModuleType:
    """The oracle module of a method; ValueError where there is none."""
    if method not in methods_with_oracle():
        raise ValueError(
            f"method {method!r} has no oracle to learn a cold start from: "
            f"choose one of {', '.join(methods_with_oracle())}."
        )
    return importlib.import_module(f"{METHODS}.{method}.oracle")
