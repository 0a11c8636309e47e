"""The reward: the answer, less what retrievals and decompositions beyond their thresholds cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from verl_agentic.core.answers import exact_match, f1_score
from verl_agentic.core.environment import Observe
from verl_agentic.core.judging import Judgement
from verl_agentic.core.method import Score
from verl_agentic.core.outcomes import FaultCode
from verl_agentic.core.rewards import outcome_rewards
from verl_agentic.core.suggest import did_you_mean
from verl_agentic.core.trajectory import Episode, Turn
from verl_agentic.methods.dep_search.actions import DECOMPOSE, FIGURES, GRAMMAR, RETRIEVE

METRICS = {"f1": f1_score, "em": exact_match}
# A turn with such a fault made no call: what its text may open is plain text or thinking.
_NO_CALL = (FaultCode.NO_ACTION, FaultCode.THINK_UNCLOSED)


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Refuse an unknown metric, and thresholds or factors under which more calls would pay.

    Raises:
        ValueError: naming the key.
    """
    if knobs["metric"] not in METRICS:
        near = did_you_mean(str(knobs["metric"]), METRICS)
        raise ValueError(
            f"agentic.reward.metric: unknown metric {knobs['metric']!r}{near} (available: {sorted(METRICS)})"
        )
    for key in ("k1", "k2", "lambda_ret", "lambda_dec"):
        if not (isfinite(knobs[key]) and knobs[key] >= 0):
            raise ValueError(f"agentic.reward.{key} must be a number of at least 0, got {knobs[key]}")


def score(
    episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any], judgements: Sequence[Judgement] = ()
) -> Score:
    """Score one episode (Dep-Search, section 3.5).

    R = R_ans - lambda_ret * max(0, N_ret - k1) - lambda_dec * max(0, N_dec - k2), where R_ans is the metric of the
    answer, 0 without one, and N counts every call that the policy wrote, faulty ones included.

    Args:
        episode: the session.
        golds: gold aliases; the best one counts.
        knobs: `metric` in {f1, em}; `k1`, `k2`, `lambda_ret` and `lambda_dec`, all at least 0.
        judgements: none; no judge is asked.

    Returns:
        The reward on the last trainable token, and the session's scalars: acc (the rewarded metric, 0 without an
        answer), em, f1, format (1 where the session ended with an answer), searches and decompositions (calls, as in
        the penalties), penalty/retrieval and penalty/decomposition, corrections, dropped_tokens, and the sums over the
        session of what its actions noted (`actions.FIGURES`).
    """
    answer = episode.prediction or ""
    values = {name: metric(answer, golds) for name, metric in METRICS.items()}
    ended = episode.outcome.kind == "ok"
    accuracy = values[knobs["metric"]] if ended else 0.0
    searches, decompositions = calls(episode, RETRIEVE), calls(episode, DECOMPOSE)
    retrieval = penalty(searches, knobs["k1"], knobs["lambda_ret"])
    decomposition = penalty(decompositions, knobs["k2"], knobs["lambda_dec"])
    return Score(
        rewards=outcome_rewards(episode, accuracy - retrieval - decomposition),
        metrics={
            "acc": accuracy,
            "em": values["em"],
            "f1": values["f1"],
            "format": float(ended),
            "searches": float(searches),
            "decompositions": float(decompositions),
            "penalty/retrieval": retrieval,
            "penalty/decomposition": decomposition,
            "corrections": float(episode.corrections),
            "dropped_tokens": float(episode.dropped_tokens),
            **_figures(episode),
        },
    )


def penalty(count: int, threshold: float, factor: float) -> float:
    """`factor` for each call beyond `threshold`; 0.0 up to it."""
    return float(factor * max(0, count - threshold))


def calls(episode: Episode, name: str) -> int:
    """How often the policy called the action `name`: executed, refused, or so badly written that it was neither."""
    return sum(_called(turn) == name for turn in episode.turns)


def _called(turn: Turn) -> str | None:
    if turn.action is not None:
        return turn.action.tag.name
    opened = None if turn.fault in _NO_CALL else GRAMMAR.opened(turn.text)
    return opened.name if opened else None


def _figures(episode: Episode) -> dict[str, float]:
    sums = dict.fromkeys(FIGURES, 0.0)
    for turn in episode.turns:
        if isinstance(turn.effect, Observe):
            for name, value in turn.effect.figures:
                sums[name] += value
    return sums
