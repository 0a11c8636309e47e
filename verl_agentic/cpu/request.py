"""One generation request: what it asked for, what it has got so far, and when it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from verl_agentic.cpu.sampling import RowConstraint
from verl_agentic.cpu.sampling_params import SamplingParams
from verl_agentic.cpu.stops import StopStrings


@dataclass(frozen=True)
class GenerationOutput:
    """What one request produced.

    Attributes:
        token_ids: new tokens; a stop or end-of-sequence token, and the token completing a stop string, included.
        log_probs: log-probability of each under softmax(logits / temperature); None unless asked for.
        finish_reason: "stop", "length" or "abort".
        stop_reason: the stop string or token that ended it; None for end-of-sequence, length and abort.
        weight_version: version of the weights that produced the last token; None before the first weight update.
    """

    token_ids: list[int]
    log_probs: list[float] | None
    finish_reason: str
    stop_reason: str | int | None = None
    weight_version: int | None = None


@dataclass(eq=False)
class Request:
    """A request on its way through the batch.

    Attributes:
        deliver: takes the output or the exception; called once, from the decode thread.
        end_tokens: the model's end-of-sequence tokens, empty where the request ignores them.
        max_new: most new tokens, >= 1.
        seen: [V] bool, tokens of prompt and output; only where a repetition penalty needs it.
    """

    request_id: str
    prompt: list[int]
    params: SamplingParams
    end_tokens: frozenset[int]
    max_new: int
    deliver: Callable[[GenerationOutput | BaseException], None]
    seen: torch.Tensor | None = None
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: BaseException | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + len(self.token_ids)

    @property
    def last_token(self) -> int:
        return self.token_ids[-1]

    @property
    def done(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def constraint(self) -> RowConstraint | None:
        """What the next draw must respect besides temperature and filters."""
        too_early = len(self.token_ids) < self.params.min_tokens
        if self.seen is None and not too_early:
            return None
        forbidden: Sequence[int] = [*self.end_tokens, *self.params.stop_token_ids] if too_early else ()
        return RowConstraint(self.params.repetition_penalty, self.seen, forbidden)

    def append(self, token: int, log_prob: float, stops: StopStrings | None) -> None:
        """Take a drawn token and decide whether the request is finished."""
        self.token_ids.append(token)
        self.log_probs.append(log_prob)
        if self.seen is not None:
            self.seen[token] = True
        if len(self.token_ids) > self.params.min_tokens:
            self._check_stop(token, stops)
        if self.finish_reason is None and len(self.token_ids) >= self.max_new:
            self.finish_reason = "length"

    def _check_stop(self, token: int, stops: StopStrings | None) -> None:
        if token in self.end_tokens:
            self.finish_reason = "stop"
        elif token in self.params.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token
        elif self.params.stop and stops is not None:
            self.stop_reason = stops.completed(self.token_ids, self.params.stop)
            self.finish_reason = None if self.stop_reason is None else "stop"

    def output(self, weight_version: int | None) -> GenerationOutput:
        """The output as it stands."""
        assert self.finish_reason is not None
        log_probs = self.log_probs if self.params.logprobs else None
        return GenerationOutput(self.token_ids, log_probs, self.finish_reason, self.stop_reason, weight_version)
