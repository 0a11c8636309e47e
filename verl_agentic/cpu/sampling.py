"""Drawing one token a row from a batch whose rows ask for different things.

Reported log-probabilities are those that verl's training recomputes: log_softmax(logits / temperature) over the whole
vocabulary, before penalties and filters (`FSDPEngine.prepare_model_outputs`). A greedy row reports temperature 1, as
vLLM does: training never recomputes a greedy row, it would divide by 1e-8.

A row's randomness is one uniform number a token, a pure function of (seed, position in the sequence). So what a request
draws depends neither on its neighbours nor on when it was batched, and a request resumed after an abort with the same
seed continues as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl_agentic.cpu.sampling_params import SamplingParams

_INCREMENT = 0x9E3779B97F4A7C15
_MULTIPLIERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One uniform number a row, in [0, 1 - 2**-32].

    The splitmix64 generator (Steele, Lea, Flood 2014), used as a counter-based one: the seed is scrambled first, so
    that neighbouring seeds do not walk the same sequence shifted by one.

    Args:
        seeds: [n] uint64.
        positions: [n] uint64, index of the drawn token in its sequence.
    """
    state = _scramble(_scramble(seeds) + positions * np.uint64(_INCREMENT))
    return (state >> np.uint64(32)).astype(np.float64) * 2.0**-32


def _scramble(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(_INCREMENT)
    for shift, multiplier in _MULTIPLIERS:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    return state ^ (state >> np.uint64(31))


@dataclass
class RowConstraint:
    """What a request does to its own row of logits before temperature.

    Attributes:
        repetition_penalty: 1 is off.
        seen: [V] bool, tokens of prompt and output; None where the penalty is off.
        forbidden: ids out of reach at present (min_tokens).
    """

    repetition_penalty: float = 1.0
    seen: torch.Tensor | None = None
    forbidden: Sequence[int] = ()


class BatchSampler:
    """The sampling parameters of a batch as tensors; built when the batch's composition changes.

    Args:
        params: one a row.
    """

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        greedy = [p.greedy for p in params]
        self._greedy = torch.tensor(greedy) if any(greedy) else None
        self._divisor = torch.tensor([1.0 if p.greedy else p.temperature for p in params])[:, None]
        self._seeds = np.array([p.seed for p in params], dtype=np.uint64)
        self._filtered = [row for row, p in enumerate(params) if p.filters and not p.greedy]
        chosen = [params[row] for row in self._filtered]
        self._filter = TokenFilter(chosen) if chosen else None

    def draw(
        self, logits: torch.Tensor, positions: np.ndarray, constraints: dict[int, RowConstraint]
    ) -> tuple[list[int], list[float]]:
        """Draw the next token of every row.

        Args:
            logits: [n, V] float32.
            positions: [n] uint64, index in the sequence of the token to be drawn.
            constraints: by row, where a row has any.

        Returns:
            tokens [n], log-probabilities [n]: nan where the row's logits are not finite, -inf where its constraint
            leaves no token (the token means nothing then).
        """
        scaled = logits / self._divisor
        log_probs = torch.log_softmax(scaled, dim=-1)
        shaped = self._constrain(logits, constraints) / self._divisor if constraints else scaled
        probs = torch.softmax(shaped, dim=-1) if constraints else log_probs.exp()
        if self._filter is not None:
            probs[self._filtered] = self._filter.apply(probs[self._filtered])
        tokens = self._pick(probs, positions)
        if self._greedy is not None:
            tokens = torch.where(self._greedy, shaped.argmax(dim=-1), tokens)
        drawn = log_probs.gather(1, tokens[:, None])[:, 0]
        if constraints:
            drawn = drawn.masked_fill(shaped.isneginf().all(dim=-1) & drawn.isfinite(), -torch.inf)
        return tokens.tolist(), drawn.tolist()

    def _pick(self, probs: torch.Tensor, positions: np.ndarray) -> torch.Tensor:
        # Inverse transform: the first token whose cumulative probability exceeds u. Double precision, since a float
        # sum over a large vocabulary is off by more than the probability of a rare token.
        cumulative = probs.double().cumsum(dim=-1)
        target = torch.from_numpy(uniforms(self._seeds, positions))[:, None] * cumulative[:, -1:]
        picked = torch.searchsorted(cumulative, target, right=True)[:, 0]
        return picked.clamp_(max=probs.shape[-1] - 1)

    @staticmethod
    def _constrain(logits: torch.Tensor, constraints: dict[int, RowConstraint]) -> torch.Tensor:
        logits = logits.clone()
        for row, constraint in constraints.items():
            line = logits[row]
            if constraint.seen is not None:
                penalty = constraint.repetition_penalty
                penalised = torch.where(line > 0, line / penalty, line * penalty)
                logits[row] = torch.where(constraint.seen, penalised, line)
            if constraint.forbidden:
                logits[row, list(constraint.forbidden)] = -torch.inf
        return logits


class TokenFilter:
    """min_p, then top_k, then top_p on what is left, in vLLM's order; off where a row does not ask for it."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._min_p = torch.tensor([p.min_p for p in params])[:, None]
        self._top_k = torch.tensor([p.top_k if p.top_k > 0 else torch.iinfo(torch.int64).max for p in params])[:, None]
        self._top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)[:, None]

    def apply(self, probs: torch.Tensor) -> torch.Tensor:
        """Zero the probability of removed tokens; at least the likeliest stays.

        Args:
            probs: [m, V], each row sums to 1.

        Returns:
            [m, V], not renormalised.
        """
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        ordered = ordered * (ordered >= self._min_p * ordered[:, :1])
        ordered = ordered * (torch.arange(probs.shape[-1]) < self._top_k)
        mass = ordered.double()
        mass = mass / mass.sum(dim=-1, keepdim=True)
        before = mass.cumsum(dim=-1) - mass
        # top_p=1 must keep all: rounding can make the cumulative sum reach 1 before the last token.
        keep = (before < self._top_p) | (self._top_p >= 1.0)
        return torch.zeros_like(probs).scatter_(1, order, ordered * keep)
