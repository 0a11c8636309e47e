"""A language model that says what it is told to: for tests, examples and documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from verl_agentic.core.generation import Sample


class Codec(Protocol):
    """Text to ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ScriptedSampler:
    """Plays one text a turn, as a rollout server would deliver it: cut at a stop string or at the token limit.

    A call whose context is the last one plus what was returned (the turn goes on) plays the rest of the same text.

    Args:
        turns: the texts, in order.
        codec: text and ids.
        eos_id: appended to each text, as a model that ends its turn does.
        obeys_stops: False plays texts past their stop strings, as a server that knows none would.
        log_prob: the log-probability given to every token.

    Attributes:
        contexts, params: what each call was given.
        sampled: every id returned, in order.
    """

    def __init__(
        self,
        turns: Sequence[str],
        codec: Codec,
        eos_id: int | None = None,
        obeys_stops: bool = True,
        log_prob: float = -0.5,
    ):
        self._turns, self._codec, self._eos_id = list(turns), codec, eos_id
        self._obeys_stops, self._log_prob = obeys_stops, log_prob
        self._rest: list[int] = []
        self._resumes_at: list[int] | None = None
        self.contexts: list[list[int]] = []
        self.params: list[dict[str, Any]] = []
        self.sampled: list[int] = []

    async def __call__(self, context: list[int], params: dict[str, Any]) -> Sample:
        """One generation call.

        Raises:
            IndexError: the script has no further turn.
        """
        self.contexts.append(list(context))
        self.params.append(dict(params))
        text = self._rest if self._rest and context == self._resumes_at else self._next_turn()
        stop = self._stop_length(text, params) if self._obeys_stops else len(text)
        ids = text[: min(stop, params["max_tokens"])]
        self._rest, self._resumes_at = text[len(ids) :], list(context) + ids
        self.sampled.extend(ids)
        return Sample(ids, [self._log_prob] * len(ids), "stop" if len(ids) == stop else "length")

    def _next_turn(self) -> list[int]:
        if not self._turns:
            raise IndexError(f"the script ended after {len(self.contexts) - 1} calls; give it another turn")
        ids = self._codec.encode(self._turns.pop(0))
        return ids if self._eos_id is None else [*ids, self._eos_id]

    def _stop_length(self, ids: list[int], params: dict[str, Any]) -> int:
        """Length of `ids` up to and with the token that is, or completes, a stop; all where there is none."""
        for n in range(1, len(ids) + 1):
            if ids[n - 1] in params["stop_token_ids"]:
                return n
            if any(stop in self._codec.decode(ids[:n]) for stop in params["stop"]):
                return n
        return len(ids)
