"""What a method's environment is to the turn engine: actions go in, effects come out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from verl_agentic.core.grammar import Action
from verl_agentic.core.outcomes import FaultCode, InfraFaultError


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
    """The action's result.

    Attributes:
        texts: what the pack's observation template renders.
        passage_ids: the passages in them.
        template: name of the pack's template, file `observation.NAME.txt`; "" is that of a retrieval.
        figures: (name, value) of what the action did, for the session's scalars.
    """

    texts: tuple[str, ...]
    passage_ids: tuple[str, ...] = ()
    template: str = ""
    figures: tuple[tuple[str, float], ...] = ()


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


@dataclass(frozen=True)
class Completion:
    """What the policy wrote beside the session.

    Attributes:
        text: without the end-of-turn token.
        tokens: how many were sampled; 0 where there was no room for any.
        cut: the token limit ended it.
    """

    text: str
    tokens: int
    cut: bool


@dataclass(frozen=True)
class Generate:
    """The action needs one generation by the policy over the current context, which is no part of the session.

    Its tokens are neither kept in a row nor trained; the context stays as it is.

    Attributes:
        request: name of the pack's text that asks for it, file `request.NAME.txt`.
        max_tokens: its token limit, at least 1.
        then: the action's effect, from what was written.
    """

    request: str
    max_tokens: int
    then: Callable[[Completion], Awaitable[Effect]]


Search = Callable[[str], Awaitable[list[Passage]]]
"""Asks the retriever one query; raises `InfraFaultError` where the retriever fails."""

Embed = Callable[[Sequence[str], Literal["query", "passage"]], Awaitable[Sequence[Sequence[float]]]]
"""Asks the retriever for the vectors of texts, of one length each; raises `InfraFaultError` where it fails."""

Render = Callable[[list[Passage]], Observe]
"""The observation of a retrieval, by the pack's templates."""


async def no_vectors(texts: Sequence[str], kind: Literal["query", "passage"]) -> Sequence[Sequence[float]]:
    """For methods that need no vectors.

    Raises:
        InfraFaultError: it was called.
    """
    raise InfraFaultError("retriever", f"nothing here turns texts into vectors, {len(texts)} were asked for")


@dataclass(frozen=True)
class Tools:
    """What an environment is made of.

    Attributes:
        search: asks the retriever one query.
        render: turns passages into an observation.
        embed: turns texts into vectors.
        knobs: the recipe's `agentic.environment`.
    """

    search: Search
    render: Render
    embed: Embed = no_vectors
    knobs: Mapping[str, Any] = field(default_factory=dict)


class Environment(Protocol):
    """The world of one episode; made anew for each, so that nothing is shared between episodes."""

    async def apply(self, action: Action) -> Effect | Generate:
        """Execute one valid action."""
        ...


class LastingEnvironment(Environment, Protocol):
    """An environment of which something may outlive the episode, at inference."""

    def keep(self, path: Path) -> None:
        """Write what is to outlive the episode to a file, whole or not at all."""
        ...
