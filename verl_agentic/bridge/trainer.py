"""Trainer mode `agentic`: verl's synchronous trainer with credit and selection over whole sessions.

Where verl has just sampled a step, every row is read and checked, advantages are computed over all sessions, and
the sessions that selection leaves out are taken from the queue, before any log-probability is computed. A step is not
refilled: it trains on fewer rows, in the recipe's number of optimizer steps, filled up with rows that are masked.

With `agentic.credit.name=verl` and nothing left out it computes what the mode `sync` computes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from verl_agentic.bridge.mini_batches import even_mini_batches, row_multiple
from verl_agentic.bridge.output import SESSION_REWARD
from verl_agentic.bridge.rows import (
    check_rewards_are_read,
    check_trained_is_sampled,
    read_rows,
    session_of,
)
from verl_agentic.bridge.sampler import AgenticReplayBuffer
from verl_agentic.bridge.session_credit import credited_sessions, row_advantages, write_advantages
from verl_agentic.bridge.step_metrics import log_prob_differences, missing_judgements, session_metrics
from verl_agentic.bridge.trainer_state import load_state, save_state
from verl_agentic.bridge.training_rules import HIERARCHICAL, trainer_settings
from verl_agentic.core.credit import CreditedSession
from verl_agentic.core.selection import SelectionState, select, selection_metrics

logger = logging.getLogger(__name__)


@register_trainer("agentic")
class AgenticTrainer(PPOTrainerSync):
    """verl's synchronous trainer with session-level access.

    Raises:
        ValueError: credit or selection do not go with the rest of the configuration.
    """

    def __init__(self, config: DictConfig):
        self._settings = trainer_settings(config)
        self._hierarchical = self._settings.credit.name == HIERARCHICAL
        self._selection = SelectionState()
        self._advantages: dict[str, list[float]] = {}
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        """verl reads the mode to choose its sampler and its section of the configuration: those of `sync`."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None:
        """verl's constructor assigns the configured name; the answer stays `sync`."""

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **options: Any) -> KVBatchMeta:
        """The first that verl calls with a step's rows: all of them are looked at, then some may be left out."""
        rows = read_rows(batch)
        metrics["agentic/step/rows"] = len(rows)
        metrics["agentic/tokens_compared"] = check_trained_is_sampled(rows)
        metrics.update(session_metrics(rows))
        metrics.update(missing_judgements(rows, self._settings.max_missing_share))
        if self._hierarchical:
            sessions = credited_sessions(rows)
            self._advantages = row_advantages(rows, sessions, self._settings.credit.process_coefficient)
            batch = self._select(batch, sessions, metrics)
        else:
            check_rewards_are_read(rows, self.config.algorithm.adv_estimator)
        metrics["agentic/step/rows_trained"] = len(batch)
        return super()._balance_batch(batch, metrics=metrics, **options)

    def _select(
        self, batch: KVBatchMeta, sessions: Mapping[str, CreditedSession], metrics: dict[str, Any]
    ) -> KVBatchMeta:
        """The batch of the kept sessions; the rows of the others leave the queue, which nothing else would clear."""
        groups = [session.group for session in sessions.values()]
        outcomes = [session.outcome for session in sessions.values()]
        kept = select(self._settings.selection, groups, outcomes)
        self._selection = self._selection.after(groups, outcomes, kept)
        found = {**selection_metrics(groups, outcomes, kept), **self._selection.shares()}
        metrics.update({f"agentic/selection/{name}": value for name, value in found.items()})
        names = list(sessions)
        trained = {names[i] for i in kept}
        rejected = [key for key in batch.keys if session_of(key) not in trained]
        if not rejected:
            return batch
        tq.kv_clear(keys=rejected, partition_id=batch.partition_id)
        return batch.select_keys([key for key in batch.keys if session_of(key) in trained])

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return row_multiple(
            self.config,
            dp_size,
            critic=self.use_critic,
            reference=self.use_reference_policy,
            parameter_sync_step=self.parameter_sync_step,
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's own come first in any case: its rollout correction is part of them."""
        if self._has_both_log_probs():
            metrics.update(log_prob_differences(batch))
        batch = super()._compute_advantage(batch, metrics)
        return write_advantages(batch, self._advantages) if self._hierarchical else batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        actor = self.config.actor_rollout_ref.actor
        with even_mini_batches(self.config, actor, len(batch), self.parameter_sync_step):
            return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with even_mini_batches(self.config, self.config.critic, len(batch), self.parameter_sync_step):
            return super()._update_critic(batch, metrics)

    def _save_checkpoint(self) -> None:
        # Before verl's own, which ends by naming this checkpoint the latest.
        save_state(self._checkpoint_folder(), self._selection)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            self._selection = load_state(self._checkpoint_folder(resumed=True))

    def _checkpoint_folder(self, resumed: bool = False) -> Path:
        """Folder of the checkpoint of the present step, or of the one that was just resumed."""
        trainer = self.config.trainer
        if resumed and trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _validate(self) -> dict[str, float]:
        metrics = super()._validate()
        if isinstance(self.replay_buffer, AgenticReplayBuffer):
            metrics["val-agentic/infra_faults"] = self.replay_buffer.take_validation_faults()
        return metrics

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, infos: dict[str, list], sample_turns: Any, **options: Any
    ) -> dict[str, float]:
        """verl counts a session once, but its reward is that of its last row; here it is that of the session."""
        own = infos.pop(SESSION_REWARD, [])
        for place, reward in enumerate(own):
            if reward is not None:
                infos["reward"][place] = reward
        return super()._val_metrics_update(data_sources, sample_uids, infos, sample_turns, **options)

    def _has_both_log_probs(self) -> bool:
        correction = self.config.algorithm.get("rollout_correction") or {}
        return self.config.actor_rollout_ref.rollout.calculate_log_probs and not correction.get("bypass_mode", False)
