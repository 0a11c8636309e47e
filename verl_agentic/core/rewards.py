"""Placing rewards on tokens."""

from __future__ import annotations

from collections.abc import Sequence

from verl_agentic.core.trajectory import Episode, Row

RowRewards = list[list[float]]
"""Per row, per response token: a float for each token, 0.0 wherever the mask is 0."""


def zeros(row: Row) -> list[float]:
    """No reward: a 0.0 for each response token of `row`."""
    return [0.0] * len(row.response_ids)


def on_last_trainable(row: Row, reward: float) -> list[float]:
    """`reward` on the last policy token of `row`.

    verl puts a scalar score on the last response token, which may be an observation and is then masked away. A row
    without a policy token gets no reward at all.
    """
    rewards = zeros(row)
    if row.last_trainable is not None:
        rewards[row.last_trainable] = reward
    return rewards


def outcome_rewards(episode: Episode, reward: float) -> RowRewards:
    """The session's one outcome reward on the last trainable token of its last row, 0 everywhere else."""
    return [zeros(row) for row in episode.rows[:-1]] + [on_last_trainable(episode.rows[-1], reward)]


def total(rewards: Sequence[Sequence[float]]) -> float:
    """Sum over rows and tokens."""
    return float(sum(map(sum, rewards)))
