"""Advantages from outcomes of sessions and rewards of spans; a group is the sessions of one question."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

EPSILON = 1e-6


def z_scores(values: Sequence[float], epsilon: float = EPSILON) -> list[float]:
    """(x - mean) / (std + epsilon) with the sample standard deviation, as verl's GRPO normalises a group.

    A single value has advantage 0; equal values all have 0.
    """
    if len(values) < 2:
        return [0.0] * len(values)
    mean = sum(values) / len(values)
    std = sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    return [(x - mean) / (std + epsilon) for x in values]
