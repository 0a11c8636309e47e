"""Trainer mode `agentic`: verl's synchronous trainer with a look at every row before the advantages are computed.

With nothing added it computes what the mode `sync` computes.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from verl_agentic.bridge.sampler import AgenticReplayBuffer
from verl_agentic.core.trajectory import TokenTruthError, kept_tokens

logger = logging.getLogger(__name__)

# Share of a step's sessions that wrote tags of which none was an action, above which the log says so.
TAG_ALARM = 0.5
FIELDS = ["uid", "index", "responses", "response_mask", "rm_scores", "extra_fields"]


@dataclass(frozen=True)
class TrainerRow:
    """One row as the trainer holds it.

    Attributes:
        key: `{uid}_{session}_{row}`.
        uid: the group it belongs to.
        index: the item's index in the data set.
        responses, mask, rewards: per response token, of equal length.
        extra: what the agent loop stored beside the tokens.
    """

    key: str
    uid: str
    index: int
    responses: list[int]
    mask: list[int]
    rewards: list[float]
    extra: dict[str, Any]

    @property
    def session(self) -> str:
        """`{uid}_{session}`."""
        return self.key.rsplit("_", 1)[0]


def read_rows(batch: KVBatchMeta) -> list[TrainerRow]:
    """Every row of a batch, padding left out."""
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=FIELDS)
    columns = {name: [getattr(v, "data", v) for v in data[name]] for name in ("uid", "index", "extra_fields")}
    tokens = {name: [r.tolist() for r in data[name].unbind()] for name in ("responses", "response_mask", "rm_scores")}
    return [
        TrainerRow(
            key=key,
            uid=str(columns["uid"][i]),
            index=int(columns["index"][i]),
            responses=tokens["responses"][i],
            mask=tokens["response_mask"][i],
            rewards=tokens["rm_scores"][i],
            extra=columns["extra_fields"][i],
        )
        for i, key in enumerate(keys)
    ]


def check_trained_is_sampled(rows: list[TrainerRow]) -> int:
    """Compare what is about to be trained with what generation returned, session by session.

    Returns:
        The count of trained tokens compared; 0 where `agentic.assert_tokens` is off.

    Raises:
        TokenTruthError: a session's trained tokens are not exactly its sampled ones less each turn's dropped tail, or a
            reward lies on a token that is not trained.
    """
    sessions: dict[str, list[TrainerRow]] = defaultdict(list)
    for row in rows:
        sessions[row.session].append(row)
    compared = 0
    for session, own in sessions.items():
        if own[0].extra.get("sampled") is None:
            continue
        kept = kept_tokens(own[0].extra["sampled"], own[0].extra["turn_lengths"])
        trained = [t for row in own for t, m in zip(row.responses, row.mask, strict=True) if m]
        if trained != kept:
            raise TokenTruthError(
                f"session {session}: its {len(trained)} trained tokens are not the {len(kept)} sampled"
            )
        if any(r and not m for row in own for r, m in zip(row.rewards, row.mask, strict=True)):
            raise TokenTruthError(f"session {session}: a reward lies on a token that is not trained")
        compared += len(trained)
    return compared


def largest_log_prob_difference(batch: KVBatchMeta) -> float:
    """Largest absolute difference (nats) between rollout and training log-probability over a batch's trained tokens."""
    fields = ["rollout_log_probs", "old_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    rows = zip(*(data[name].unbind() for name in fields), strict=True)
    return max(((a - b).abs() * mask).max().item() for a, b, mask in rows)


def session_metrics(rows: list[TrainerRow]) -> dict[str, float]:
    """Means over the sessions of a step: each scalar of the scoring function, fault codes, and the tag alarm."""
    last = {row.session: row for row in rows}.values()
    if not last:
        return {}
    sums: Counter[str] = Counter()
    for row in last:
        sums.update(row.extra.get("reward_extra_info", {}))
        fault = row.extra.get("fault")
        if fault:
            sums[f"fault/{fault}"] += 1
        sums["markup_without_action"] += bool(fault and row.extra["tags_seen"] and not row.extra["actions"])
    return {f"agentic/{name}": value / len(last) for name, value in sums.items()}


@register_trainer("agentic")
class AgenticTrainer(PPOTrainerSync):
    """verl's synchronous trainer with row-level access."""

    @property
    def trainer_mode(self) -> str:
        """verl reads the mode to choose its sampler and its section of the configuration: those of `sync`."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None:
        """verl's constructor assigns the configured name; the answer stays `sync`."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        rows = read_rows(batch)
        metrics["agentic/rows"] = len(rows)
        metrics["agentic/tokens_compared"] = check_trained_is_sampled(rows)
        metrics.update(session_metrics(rows))
        if self._has_both_log_probs():
            metrics["agentic/log_prob_difference_max"] = largest_log_prob_difference(batch)
        if metrics.get("agentic/markup_without_action", 0.0) > TAG_ALARM:
            logger.warning("most sessions wrote tags and none was executed: is the prompt pack of another tag family?")
        return super()._compute_advantage(batch, metrics)

    def _validate(self) -> dict[str, float]:
        metrics = super()._validate()
        if isinstance(self.replay_buffer, AgenticReplayBuffer):
            metrics["val-agentic/infra_faults"] = self.replay_buffer.take_validation_faults()
        return metrics

    def _has_both_log_probs(self) -> bool:
        correction = self.config.algorithm.get("rollout_correction") or {}
        return self.config.actor_rollout_ref.rollout.calculate_log_probs and not correction.get("bypass_mode", False)
