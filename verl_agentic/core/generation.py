"""What the turn engine asks of a language model: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """What one generation call returned.

    Attributes:
        token_ids: new tokens, a stop token or end-of-turn token included.
        log_probs: one a token, or None where the rollout computes none.
        finish_reason: "stop", "length", "abort", or None where the engine does not tell (vllm through verl).
    """

    token_ids: list[int]
    log_probs: list[float] | None
    finish_reason: str | None = None


Sampler = Callable[[list[int], dict[str, Any]], Awaitable[Sample]]
"""Generates: (context ids, sampling parameters of this call) -> Sample."""
