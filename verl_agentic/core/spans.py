"""Rewards that judge a part of a session: which tokens they lie on, and how much of them is credited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verl_agentic.core.rewards import RowRewards, zeros
from verl_agentic.core.trajectory import Episode, Row

# What is left of a cap after sums such as 0.1 + 0.1 + 0.1 of 0.3 is rounding, not credit.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SpanReward:
    """A reward for the policy's tokens of one span.

    Attributes:
        row: index of the row in its episode.
        start, end: the span [start, end) in that row's response; the environment's tokens in it get nothing.
        value: the reward of the whole span.
        kind: what was judged (`format`, `retrieval`, `memory`, ...), for the statistics.
    """

    row: int
    start: int
    end: int
    value: float
    kind: str

    def __post_init__(self) -> None:
        if self.row < 0 or not 0 <= self.start < self.end:
            raise ValueError(f"a {self.kind} reward lies on row {self.row}, tokens [{self.start}, {self.end})")


def policy_positions(row: Row, start: int = 0, end: int | None = None) -> list[int]:
    """Positions of the policy's tokens in [start, end) of the response of `row`; `end` None is its end."""
    return [i for i, mask in enumerate(row.response_mask[start:end], start=start) if mask]


def capped(spans: Sequence[SpanReward], cap: float) -> list[SpanReward]:
    """The credited rewards of a session whose positive ones may sum to `cap` at most.

    Rewards are credited in time order. The one that crosses the cap is cut to what is left of it; those beyond, a
    reward of 0 included, are not credited at all and are absent from the result, so that they neither earn anything
    nor count in a mean. A penalty (a negative reward) uses up nothing and is credited in full wherever it stands.

    Args:
        spans: the rewards of one session, in time order.
        cap: the largest sum of positive rewards, 0 or more.

    Raises:
        ValueError: the cap is negative.
    """
    if cap < 0:
        raise ValueError(f"a cap of process rewards must be 0 or more, got {cap}")
    left = cap
    credited = []
    for span in spans:
        if span.value < 0:
            credited.append(span)
        elif left > ROUNDING:
            credited.append(replace(span, value=min(span.value, left)))
            left -= credited[-1].value
    return credited


def spread(episode: Episode, reward: float) -> RowRewards:
    """`reward` in equal parts on every token that the policy wrote, over all rows; their sum is `reward`.

    Raises:
        ValueError: the policy wrote no token, so that the reward would be lost.
    """
    positions = [(index, i) for index, row in enumerate(episode.rows) for i in policy_positions(row)]
    if not positions:
        raise ValueError("a reward cannot be spread over a session in which the policy wrote nothing")
    rewards = [zeros(row) for row in episode.rows]
    for index, i in positions:
        rewards[index][i] = reward / len(positions)
    return rewards


def place(episode: Episode, spans: Sequence[SpanReward]) -> RowRewards:
    """Each span's value in equal parts on the policy's tokens in it; overlapping spans add.

    Raises:
        ValueError: a span lies outside its row, or holds no policy token, so that its reward would be lost.
    """
    rewards = [zeros(row) for row in episode.rows]
    for span in spans:
        if span.row >= len(episode.rows) or span.end > len(episode.rows[span.row].response_ids):
            raise ValueError(f"a {span.kind} reward lies outside its row: {span}")
        positions = policy_positions(episode.rows[span.row], span.start, span.end)
        if not positions:
            raise ValueError(f"a {span.kind} reward lies on no token of the policy: {span}")
        for i in positions:
            rewards[span.row][i] += span.value / len(positions)
    return rewards


def add(*rewards: RowRewards) -> RowRewards:
    """Sum of rewards of one episode, token by token."""
    return [[sum(parts) for parts in zip(*rows, strict=True)] for rows in zip(*rewards, strict=True)]
