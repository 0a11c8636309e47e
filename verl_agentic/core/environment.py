"""What a method's environment is to the turn engine: actions go in, effects come out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from verl_agentic.core.grammar import Action
from verl_agentic.core.outcomes import FaultCode


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


@dataclass(frozen=True)
class Proceed:
    """The action changes nothing that the policy has to be told: its next turn follows at once."""


@dataclass(frozen=True)
class Reject:
    """The action cannot be done: nothing has changed, the policy is told why, and the session goes on.

    Attributes:
        fault: what is counted.
        notice: name of the pack's text that tells the policy.
    """

    fault: FaultCode
    notice: str


@dataclass(frozen=True)
class Rewrite:
    """The action edits the context: what follows sees the prompt and only these earlier actions.

    Attributes:
        kept: numbers of executed actions of this session, from 0, in the order in which they are to stand; each stands
            with its observation. The editing action has a number too, and is kept like any other.
    """

    kept: tuple[int, ...]


Effect = Observe | Finish | Proceed | Reject | Rewrite

Search = Callable[[str], Awaitable[list[Passage]]]
"""Asks the retriever one query; raises `InfraFaultError` where the retriever fails."""


class Environment(Protocol):
    """The world of one episode; made anew for each, so that nothing is shared between episodes."""

    async def apply(self, action: Action) -> Effect:
        """Execute one valid action."""
        ...
