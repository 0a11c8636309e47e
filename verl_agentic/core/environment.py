"""What a method's environment is to the turn engine: actions go in, effects come out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from verl_agentic.core.grammar import Action


@dataclass(frozen=True)
class Passage:
    """One retrieved passage.

    `score` is None where the server was asked for none; `title` and `text` are read from contents of the form
    `"title"`, newline, text.
    """

    id: str
    contents: str
    score: float | None = None
    title: str = ""
    text: str = ""


@dataclass(frozen=True)
class Observe:
    """The action's result: the texts that the pack's observation template renders, and the passage ids in them."""

    texts: tuple[str, ...]
    passage_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finish:
    """The action ends the episode with this prediction."""

    prediction: str


Effect = Observe | Finish

Search = Callable[[str], Awaitable[list[Passage]]]
"""Asks the retriever one query; raises `InfraFaultError` where the retriever fails."""


class Environment(Protocol):
    """The world of one episode; made anew for each, so that nothing is shared between episodes."""

    async def apply(self, action: Action) -> Effect:
        """Execute one valid action."""
        ...
