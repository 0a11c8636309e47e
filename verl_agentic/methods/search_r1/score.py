"""The reward of search_r1: the answer's exact match, on the last token the policy wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agentic.core.answers import cover_match, exact_match, f1_score
from verl_agentic.core.judging import Judgement
from verl_agentic.core.method import Score
from verl_agentic.core.outcomes import FaultCode, ModelFault
from verl_agentic.core.rewards import outcome_rewards
from verl_agentic.core.suggest import did_you_mean
from verl_agentic.core.trajectory import Episode

METRICS = {"em": exact_match, "f1": f1_score, "cover": cover_match}


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Refuse an unknown metric, and rewards under which forging markup would pay.

    Raises:
        ValueError: naming the key.
    """
    if knobs["metric"] not in METRICS:
        near = did_you_mean(str(knobs["metric"]), METRICS)
        raise ValueError(
            f"agentic.reward.metric: unknown metric {knobs['metric']!r}{near} (available: {sorted(METRICS)})"
        )
    if knobs["forgery"] > min(0.0, knobs["fault"]):
        raise ValueError(
            f"agentic.reward.forgery={knobs['forgery']} must not exceed the reward of a wrong answer (0) nor "
            f"agentic.reward.fault={knobs['fault']}, else forging an observation would pay"
        )


def score(
    episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any], judgements: Sequence[Judgement] = ()
) -> Score:
    """Score one episode (Search-R1, section 3.4, eq. 4: r = EM(a_pred, a_gold)).

    Args:
        episode: the session.
        golds: gold aliases; the best one counts.
        knobs: `metric` in {em, f1, cover}; `fault` and `forgery`, the rewards of a trajectory that ends in a model
            fault and of one whose policy forged markup (ours; the released code gives both 0).
        judgements: none; no judge is asked.

    Returns:
        The outcome on the last trainable token, and the session's scalars: acc (the rewarded metric, 0 without an
        answer), em, f1, format (1 where the trajectory ended with a valid answer), searches, corrections,
        dropped_tokens.
    """
    answer = episode.prediction or ""
    values = {name: metric(answer, golds) for name, metric in METRICS.items()}
    accuracy = values[knobs["metric"]] if episode.outcome.kind == "ok" else 0.0
    return Score(
        rewards=outcome_rewards(episode, _reward(episode, accuracy, knobs)),
        metrics={
            "acc": accuracy,
            "em": values["em"],
            "f1": values["f1"],
            "format": float(episode.outcome.kind == "ok"),
            "searches": float(episode.actions.get("search", 0)),
            "corrections": float(episode.corrections),
            "dropped_tokens": float(episode.dropped_tokens),
        },
    )


def _reward(episode: Episode, accuracy: float, knobs: Mapping[str, Any]) -> float:
    if not isinstance(episode.outcome, ModelFault):
        return accuracy
    return float(knobs["forgery" if episode.outcome.code is FaultCode.FORGED_MARKUP else "fault"])
