"""Advantages from outcomes of sessions and rewards of spans; a group is the sessions of one question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from verl_agentic.core.spans import SpanReward

EPSILON = 1e-6

Advantages = list[list[float]]
"""Per row, per response token."""


@dataclass(frozen=True)
class CreditedSession:
    """What credit needs to know of one session.

    Attributes:
        group: the question it belongs to.
        outcome: its one outcome reward.
        masks: per row, per response token: 1 where the policy wrote it, 0 where the environment did.
        spans: its credited process rewards, each on a row of `masks`.
    """

    group: str
    outcome: float
    masks: tuple[tuple[int, ...], ...]
    spans: tuple[SpanReward, ...] = ()


def z_scores(values: Sequence[float], epsilon: float = EPSILON) -> list[float]:
    """(x - mean) / (std + epsilon) with the sample standard deviation, as verl's GRPO normalises a group.

    A single value has score 0, there being nothing to compare it with; equal values all have 0.
    """
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = sum(values) / len(values)
    std = sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    return [(x - mean) / (std + epsilon) for x in values]


def outcome_advantages(outcomes: Sequence[float]) -> list[float]:
    """verl's GRPO over the outcomes of one question: z-scores; a lone session has its outcome as it is."""
    if len(outcomes) == 1:
        return [outcomes[0] / (1 + EPSILON)]
    return z_scores(outcomes)


def hierarchical(sessions: Sequence[CreditedSession], process_coefficient: float) -> list[Advantages]:
    """Advantages of the sessions of a step, of whatever number of questions.

    The advantage of the outcome lies on every policy token of all rows of a session: the z-score of one outcome per
    session, never per row, over the sessions of its question. On the policy tokens of a judged span lies in addition
    `process_coefficient` times the z-score of the span's reward over all credited spans of the question. With
    coefficient 0 this is verl's GRPO. The environment's tokens have 0.

    Source: AgenticRAG-R1 (hierarchical reward); how the two are normalised and added is ours, the paper being silent.

    Raises:
        ValueError: a span lies outside its row.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for position, session in enumerate(sessions):
        members[session.group].append(position)
    advantages: list[Advantages] = [[] for _ in sessions]
    for positions in members.values():
        group = [sessions[i] for i in positions]
        for position, own in zip(positions, _group_advantages(group, process_coefficient), strict=True):
            advantages[position] = own
    return advantages


def _group_advantages(group: Sequence[CreditedSession], process_coefficient: float) -> list[Advantages]:
    outcomes = outcome_advantages([session.outcome for session in group])
    result = [
        [[outcome * bool(m) for m in mask] for mask in session.masks]
        for session, outcome in zip(group, outcomes, strict=True)
    ]
    spans = [(number, span) for number, session in enumerate(group) for span in session.spans]
    scores = z_scores([span.value for _, span in spans])
    for (number, span), score in zip(spans, scores, strict=True):
        _add_span(result[number], group[number].masks, span, process_coefficient * score)
    return result


def _add_span(advantages: Advantages, masks: tuple[tuple[int, ...], ...], span: SpanReward, advantage: float) -> None:
    if span.row >= len(masks) or span.end > len(masks[span.row]):
        raise ValueError(f"a {span.kind} reward lies outside its row: {span}")
    for i in range(span.start, span.end):
        if masks[span.row][i]:
            advantages[span.row][i] += advantage
