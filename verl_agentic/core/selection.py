"""Which sessions of a step are trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil, floor, sqrt
from typing import Any

from verl_agentic.core.suggest import did_you_mean

ALL, INFORMATION, QUANTILE = "all", "information", "quantile"
RULES = (ALL, INFORMATION, QUANTILE)
SHOWN_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class SelectionRule:
    """How the sessions of a step are chosen.

    Attributes:
        rule: `all`; `information`, the top fraction by Var^2 * r + mean; `quantile`, the sessions of the questions
            whose mean + k * std reaches a quantile of these over the questions of the step.
        fraction: kept share of the sessions under `information`, in (0, 1].
        k: weight of the standard deviation under `quantile`.
        quantile: in [0, 1], under `quantile`.
        drop_zero_variance: leave out the questions whose sessions all have the same outcome before the rule is applied;
            where that would leave nothing, none is left out.

    Raises:
        ValueError: an unknown rule or a value out of its range; the message begins with the attribute.
    """

    rule: str = ALL
    fraction: float = 1.0
    k: float = 1.0
    quantile: float = 0.0
    drop_zero_variance: bool = False

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            near = did_you_mean(self.rule, RULES)
            raise ValueError(f"rule: unknown rule {self.rule!r}{near} (available: {list(RULES)})")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {self.fraction}")
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must be from 0 to 1, got {self.quantile}")

    @property
    def keeps_all(self) -> bool:
        return self.rule == ALL and not self.drop_zero_variance


def mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population variance; the variance of equal values is exactly 0."""
    if min(values) == max(values):
        return values[0], 0.0
    mean = sum(values) / len(values)
    return mean, sum((x - mean) ** 2 for x in values) / len(values)


def information_scores(outcomes: Sequence[float]) -> list[float]:
    """Score of each session of one question: Var^2 * r_i + mean, over the K outcomes r of the question.

    Source: AgenticRAG-R1, information-aware rejection. For outcomes in [0, 1] the variance is at most 1/4, so Var^2 is
    at most 1/16 and the mean dominates: groups that are right throughout rank first.
    """
    mean, variance = mean_and_variance(outcomes)
    return [variance**2 * outcome + mean for outcome in outcomes]


def released_score(outcomes: Sequence[float], k: float) -> float:
    """Score of a question in the authors' released code: mean + k * std (population) of its outcomes."""
    mean, variance = mean_and_variance(outcomes)
    return mean + k * sqrt(variance)


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


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, 0 <= q <= 1, between neighbours by linear interpolation (numpy's default)."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def select(rule: SelectionRule, groups: Sequence[str], outcomes: Sequence[float]) -> list[int]:
    """Positions, ascending, of the sessions that are trained.

    Args:
        rule: how they are chosen.
        groups: the question of each session of the step.
        outcomes: its outcome reward.
    """
    candidates = list(range(len(groups)))
    if rule.drop_zero_variance:
        variances = session_variances(groups, outcomes)
        candidates = [i for i in candidates if variances[i] > 0] or candidates
    if rule.rule == INFORMATION:
        return _keep_informative(rule.fraction, groups, outcomes, candidates)
    if rule.rule == QUANTILE:
        return _keep_quantile(rule, groups, outcomes, candidates)
    return candidates


def _keep_informative(
    fraction: float, groups: Sequence[str], outcomes: Sequence[float], candidates: Sequence[int]
) -> list[int]:
    scores: dict[int, float] = {}
    for positions in _members(groups, candidates).values():
        scores.update(zip(positions, information_scores([outcomes[i] for i in positions]), strict=True))
    return [candidates[place] for place in keep_top([scores[i] for i in candidates], fraction)]


def _keep_quantile(
    rule: SelectionRule, groups: Sequence[str], outcomes: Sequence[float], candidates: Sequence[int]
) -> list[int]:
    members = _members(groups, candidates)
    scores = {group: released_score([outcomes[i] for i in own], rule.k) for group, own in members.items()}
    threshold = quantile(list(scores.values()), rule.quantile)
    return [i for i in candidates if scores[groups[i]] >= threshold]


def session_variances(groups: Sequence[str], outcomes: Sequence[float]) -> list[float]:
    """For each session, the population variance of the outcomes of its question."""
    variances = {
        group: mean_and_variance([outcomes[i] for i in own])[1]
        for group, own in _members(groups, range(len(groups))).items()
    }
    return [variances[group] for group in groups]


def _members(groups: Sequence[str], positions: Sequence[int]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = defaultdict(list)
    for i in positions:
        members[groups[i]].append(i)
    return members


def selection_metrics(groups: Sequence[str], outcomes: Sequence[float], kept: Sequence[int]) -> dict[str, float]:
    """What a step's selection did.

    Returns:
        kept_fraction, the kept share of the sessions; zero_variance and kept_zero_variance, the share of all sessions
        and of the kept ones whose question has one outcome throughout; variance/qNN and outcome/qNN, quantiles over all
        sessions of the variance of their question and of their outcome.
    """
    variances = session_variances(groups, outcomes)
    shown = {"variance": variances, "outcome": outcomes}
    return {
        "kept_fraction": len(kept) / len(groups),
        "zero_variance": sum(v == 0 for v in variances) / len(groups),
        "kept_zero_variance": sum(variances[i] == 0 for i in kept) / len(kept),
        **{f"{name}/q{100 * q:.0f}": quantile(values, q) for name, values in shown.items() for q in SHOWN_QUANTILES},
    }


@dataclass(frozen=True)
class SelectionState:
    """What selection did over a whole run; thresholds are a step's own, so that there is nothing else to remember.

    Attributes:
        steps, seen, kept: steps, their sessions, and those of them that were trained.
        kept_zero_variance: kept sessions whose question has one outcome throughout.
    """

    steps: int = 0
    seen: int = 0
    kept: int = 0
    kept_zero_variance: int = 0

    def after(self, groups: Sequence[str], outcomes: Sequence[float], kept: Sequence[int]) -> SelectionState:
        """The state after a further step."""
        variances = session_variances(groups, outcomes)
        return SelectionState(
            steps=self.steps + 1,
            seen=self.seen + len(groups),
            kept=self.kept + len(kept),
            kept_zero_variance=self.kept_zero_variance + sum(variances[i] == 0 for i in kept),
        )

    def shares(self) -> dict[str, float]:
        """`run/sessions`, all that were seen; `run/kept_fraction` of them; `run/kept_zero_variance` of the kept."""
        return {
            "run/sessions": float(self.seen),
            "run/kept_fraction": self.kept / max(self.seen, 1),
            "run/kept_zero_variance": self.kept_zero_variance / max(self.kept, 1),
        }

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SelectionState:
        """The state that `to_dict` wrote.

        Raises:
            ValueError: a counter is missing, unknown, or not a number of things.
        """
        names = {field.name for field in fields(cls)}
        if set(values) != names or any(type(v) is not int or v < 0 for v in values.values()):
            raise ValueError(f"counters of selection must be {sorted(names)}, each 0 or more, got {dict(values)}")
        return cls(**values)
