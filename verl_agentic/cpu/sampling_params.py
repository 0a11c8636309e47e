"""What one generation request asks for; the keys are those of vLLM's SamplingParams. Imports no torch."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from verl_agentic.core.suggest import did_you_mean

GREEDY_BELOW = 1e-5
"""Temperatures under this mean greedy decoding, as in vLLM."""


class SamplingParamsError(ValueError):
    """A sampling parameter that cannot be obeyed; the message names it and says what is allowed."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request.

    Attributes:
        temperature: >= 0; 0 means greedy.
        top_p: keep the smallest set of tokens with at least this probability, in (0, 1]; 1 is off.
        top_k: keep this many tokens; -1 or 0 is off.
        min_p: drop tokens below this share of the largest probability, in [0, 1]; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens already in prompt or output; > 0.
        max_tokens: most new tokens, >= 1; None means what is left of the context.
        min_tokens: the first so many tokens are neither end-of-sequence nor stop tokens, and a stop string that one of
            them completes is passed over.
        stop: strings that end the generation; the token that completes one is kept whole.
        stop_token_ids: tokens that end the generation; kept.
        include_stop_str_in_output: accepted for vLLM's sake. Token ids hold the completing token either way.
        ignore_eos: treat end-of-sequence tokens like any other.
        seed: in [0, 2**64); a fresh one is drawn where none is given.
        logprobs: whether log-probabilities are returned.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def filters(self) -> bool:
        """Whether any of min_p, top_k and top_p removes tokens."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> SamplingParams:
        """Check a request's dictionary.

        `max_new_tokens` is read as `max_tokens`; a value of None means the default.

        Raises:
            SamplingParamsError: an unknown key, or a value outside its range.
        """
        given = {key: _plain(value) for key, value in raw.items() if value is not None}
        if "max_new_tokens" in given:
            given.setdefault("max_tokens", given.pop("max_new_tokens"))
            given.pop("max_new_tokens", None)
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise SamplingParamsError(f"unknown sampling parameter {key!r}{did_you_mean(key, known)}")
        given["stop"] = _strings(given.get("stop", ()))
        given["stop_token_ids"] = _tokens(given.get("stop_token_ids", ()))
        given["logprobs"] = _wanted(given.get("logprobs", False))
        given.setdefault("seed", secrets.randbits(63))
        params = cls(**given)
        params._check()
        return params

    def _check(self) -> None:
        _number("temperature", self.temperature, "at least 0", lambda v: v >= 0)
        _number("top_p", self.top_p, "in (0, 1]", lambda v: 0 < v <= 1)
        _number("min_p", self.min_p, "in [0, 1]", lambda v: 0 <= v <= 1)
        _number("repetition_penalty", self.repetition_penalty, "above 0", lambda v: v > 0)
        _integer("top_k", self.top_k, "-1, 0 or positive", lambda v: v >= -1)
        _integer("min_tokens", self.min_tokens, "at least 0", lambda v: v >= 0)
        _integer("seed", self.seed, "in [0, 2**64)", lambda v: 0 <= v < 2**64)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, "at least 1", lambda v: v >= 1)
            if self.min_tokens > self.max_tokens:
                raise SamplingParamsError(f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}")
        _flag("ignore_eos", self.ignore_eos)
        _flag("include_stop_str_in_output", self.include_stop_str_in_output)
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, "token ids", lambda v: v >= 0)


def _plain(value: Any) -> Any:
    """A number of another library, such as numpy's, as python's own."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _strings(value: Any) -> tuple[str, ...]:
    strings = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not all(isinstance(string, str) and string for string in strings):
        raise SamplingParamsError(f"stop={value!r} must be a string or a list of strings, none of them empty")
    return strings


def _tokens(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SamplingParamsError(f"stop_token_ids={value!r} must be a list of token ids")
    return tuple(_plain(token) for token in value)


def _wanted(logprobs: Any) -> bool:
    if not isinstance(logprobs, int):
        raise SamplingParamsError(f"logprobs={logprobs!r} must be True, False or a number")
    return logprobs is not False


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SamplingParamsError(f"{name}={value!r} must be True or False")


def _number(name: str, value: Any, allowed: str, holds: Any) -> None:
    valid = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (valid and holds(value)):
        raise SamplingParamsError(f"{name}={value!r} must be {allowed}")


def _integer(name: str, value: Any, allowed: str, holds: Any) -> None:
    if not (isinstance(value, int) and not isinstance(value, bool) and holds(value)):
        raise SamplingParamsError(f"{name}={value!r} must be {allowed}")
