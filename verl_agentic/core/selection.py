"""Which sessions of a mini-batch are trained."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population variance."""
    mean = sum(values) / len(values)
    return mean, sum((x - mean) ** 2 for x in values) / len(values)


def information_scores(outcomes: Sequence[float]) -> list[float]:
    """Score of each session of one question: Var^2 * r_i + mean, over the K outcomes r of the question.

    Source: AgenticRAG-R1, information-aware rejection. For outcomes in [0, 1] the variance is at most 1/4, so Var^2 is
    at most 1/16 and the mean dominates: groups that are right throughout rank first.
    """
    mean, variance = mean_and_variance(outcomes)
    return [variance**2 * outcome + mean for outcome in outcomes]


def keep_top(scores: Sequence[float], fraction: float) -> list[int]:
    """Positions, ascending, of the ceil(fraction * n) highest scores; of equal ones the earlier are kept.

    Raises:
        ValueError: `fraction` is not in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"the kept fraction must be above 0 and at most 1, got {fraction}")
    # the tiny slack keeps 0.7 * 10 = 7.000000000000001 from being rounded up to 8
    count = ceil(fraction * len(scores) - 1e-9)
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(ranked[:count])
