"""The hierarchical reward: the outcome over everything the policy wrote, process rewards on the actions they judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agentic.core.answers import cover_match, exact_match, f1_score
from verl_agentic.core.judging import Judgement, Verdict
from verl_agentic.core.method import Score
from verl_agentic.core.spans import SpanReward, add, capped, place, spread
from verl_agentic.core.suggest import did_you_mean
from verl_agentic.core.trajectory import Episode, Turn
from verl_agentic.methods.agentic_rag_r1.asks import FORMAT, MEMORY, MEMORY_VIEWS, PROCESS, RETRIEVAL, asks

METRICS = {"f1": f1_score, "em": exact_match, "cover": cover_match}
CONCLUSION, OTHER_ACTION, NO_ACTION = 1.0, 0.5, 0.0
# Kind of ask -> kind of process reward.
_REWARDS = {RETRIEVAL: RETRIEVAL, **dict.fromkeys(MEMORY_VIEWS.values(), MEMORY)}


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Refuse knobs that name nothing, or under which a fault or the spending of actions would pay.

    Raises:
        ValueError: naming the key.
    """
    _check_name("metric", knobs["metric"], METRICS)
    _check_name("memory_view", knobs["memory_view"], MEMORY_VIEWS)
    if isinstance(knobs["process"], str):
        raise ValueError(f"agentic.reward.process must be a list, such as [{FORMAT}], got {knobs['process']!r}")
    for name in knobs["process"]:
        _check_name("process", name, PROCESS)
    for key in ("cap", "coefficient"):
        if not 0.0 <= knobs[key] < float("inf"):
            raise ValueError(f"agentic.reward.{key} must be a number of at least 0, got {knobs[key]}")
    if knobs["fault"] > 0:
        raise ValueError(
            f"agentic.reward.fault={knobs['fault']} must not exceed the reward of a wrong answer (0), else ending "
            "without an answer would pay"
        )


def _check_name(key: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> None:
    if name not in known:
        near = did_you_mean(str(name), known)
        raise ValueError(f"agentic.reward.{key}: unknown value {name!r}{near} (available: {sorted(known)})")


def score(
    episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any], judgements: Sequence[Judgement] = ()
) -> Score:
    """Score one episode (AgenticRAG-R1, hierarchical reward).

    outcome = metric(answer, golds), or `fault` where the session ended without an answer, in equal parts on every token
    that the policy wrote; plus `coefficient` times the process rewards, each on the tokens of the action that it
    judges, credited in time order until they sum to `cap`.

    Args:
        episode: the session.
        golds: gold aliases; the best one counts.
        knobs: `metric` in {f1, em, cover}; `process`, which of format, retrieval and memory are rewarded; `cap` and
            `coefficient`, both at least 0; `fault` at most 0; `memory_view` in {after, before_and_after}.
        judgements: what the judge said of `asks(episode, golds, knobs)`, in order; none of it is there where no judge
            was asked. A missing judgement is no reward of 0: its action has no such process reward.

    Returns:
        Rewards, outcome and credited spans, and the session's scalars: acc (the rewarded metric, 0 without an answer),
        em, f1, format (1 where the session ended with a conclusion), searches, corrections, invalid_edits,
        dropped_tokens; process/KIND, the credited sum of each kind, and process/beyond_cap, what the cap left out.
    """
    values = {name: metric(episode.prediction or "", golds) for name, metric in METRICS.items()}
    ended = episode.outcome.kind == "ok"
    outcome = values[knobs["metric"]] if ended else float(knobs["fault"])
    earned = process_rewards(episode, golds, knobs, judgements)
    credited = capped(earned, knobs["cap"])
    process = [[knobs["coefficient"] * value for value in row] for row in place(episode, credited)]
    return Score(
        rewards=add(spread(episode, outcome), process),
        metrics={
            "acc": values[knobs["metric"]] if ended else 0.0,
            "em": values["em"],
            "f1": values["f1"],
            "format": float(ended),
            "searches": float(episode.actions.get("search", 0)),
            "corrections": float(episode.corrections),
            "invalid_edits": float(sum(turn.fault == "invalid_edit" for turn in episode.turns)),
            "dropped_tokens": float(episode.dropped_tokens),
            **{f"process/{kind}": sum((s.value for s in credited if s.kind == kind), 0.0) for kind in PROCESS},
            "process/beyond_cap": sum((s.value for s in earned), 0.0) - sum((s.value for s in credited), 0.0),
        },
        outcome=outcome,
        spans=tuple(credited),
    )


def process_rewards(
    episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any], judgements: Sequence[Judgement]
) -> list[SpanReward]:
    """The process rewards of a session in time order, before the cap; at an action its format comes first.

    Format: 1.0 for a valid conclusion, 0.5 for any other action that was executed, 0.0 for a turn that was not.

    Raises:
        ValueError: there are judgements, but not one for each ask.
    """
    judged = dict(_verdicts(episode, golds, knobs, judgements))
    spans = []
    turns = [(number, turn) for number, row in enumerate(episode.rows) for turn in row.turns]
    for step, (row, turn) in enumerate(turns):
        if FORMAT in knobs["process"]:
            spans.append(SpanReward(row, *turn.span, value=_format(turn), kind=FORMAT))
        if step in judged:
            kind, value = judged[step]
            spans.append(SpanReward(row, *turn.span, value=value, kind=kind))
    return spans


def _verdicts(
    episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any], judgements: Sequence[Judgement]
) -> list[tuple[int, tuple[str, float]]]:
    """(turn, (kind of process reward, value)) for each ask that has a verdict."""
    if not judgements:
        return []
    return [
        (ask.turn, (_REWARDS[ask.kind], judgement.value))
        for ask, judgement in zip(asks(episode, golds, knobs), judgements, strict=True)
        if isinstance(judgement, Verdict)
    ]


def _format(turn: Turn) -> float:
    if turn.action is not None and turn.action.tag.terminal:
        return CONCLUSION
    return OTHER_ACTION if turn.action and turn.effect else NO_ACTION  # no effect: beyond the allowed actions
