"""An episode as verl's agent loop outputs: one output a row, each with its own per-token rewards."""

from __future__ import annotations

from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from verl_agentic.core.method import Score
from verl_agentic.core.outcomes import ModelFault
from verl_agentic.core.rewards import total
from verl_agentic.core.trajectory import Episode

# verl's validation knows the reward of a session's last row only; by this name the trainer finds that of all rows.
SESSION_REWARD = "session_reward"


class RowOutput(AgentLoopOutput):
    """A row with a reward for each of its tokens.

    verl overwrites the scalar `reward_score` of all rows of a session with that of the last and puts it on the last
    response token; `rm_scores` of this class is what the trainer reads instead.
    """

    token_rewards: list[float]

    def as_dict(self) -> dict[str, Any]:
        fields = AgentLoopOutput.as_dict(self.model_copy(update={"reward_score": None}))
        fields["rm_scores"] = torch.tensor(fields.pop("token_rewards"), dtype=torch.float32)
        return fields


def row_outputs(
    episode: Episode, score: Score, timing: dict[str, float], extra: dict[str, Any], metrics: dict[str, float]
) -> list[AgentLoopOutput]:
    """The rows of an episode, in time order.

    Args:
        episode: the session.
        score: its rewards and scalars.
        timing: verl's agent loop metrics (seconds).
        extra: fields for every row, the rollout's weight version among them.
        metrics: scalars of the session that are not the method's, logged beside those of the score.
    """
    reward = total(score.rewards)
    scalars = {**metrics, **score.metrics, SESSION_REWARD: reward}
    outcome = reward if score.outcome is None else score.outcome
    common = {**extra, **_describe(episode, scalars), "outcome_reward": outcome}
    return [
        RowOutput(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response_ids),
            response_mask=list(row.response_mask),
            response_logprobs=None if row.log_probs is None else list(row.log_probs),
            token_rewards=rewards,
            reward_score=reward,
            num_turns=2 * len(episode.turns),
            metrics=AgentLoopMetrics(**timing),
            extra_fields={**common, "spans": _spans(score, number)},
        )
        for number, (row, rewards) in enumerate(zip(episode.rows, score.rewards, strict=True))
    ]


def _spans(score: Score, row: int) -> list[tuple[int, int, float, str]]:
    """The process rewards on a row."""
    return [(span.start, span.end, span.value, span.kind) for span in score.spans if span.row == row]


def _describe(episode: Episode, metrics: dict[str, float]) -> dict[str, Any]:
    fault = episode.outcome.code.value if isinstance(episode.outcome, ModelFault) else None
    return {
        "reward_extra_info": metrics,
        "outcome": episode.outcome.kind,
        "fault": fault,
        "prediction": episode.prediction,
        "actions": dict(episode.actions),
        "tags_seen": sum(turn.tags_seen for turn in episode.turns),
        # Per turn: tokens kept, and tokens sampled after it.
        "turn_lengths": [(turn.end - turn.start, turn.untrained_tokens) for turn in episode.turns],
        "turn_scores": [],
        "tool_rewards": [],
    }
