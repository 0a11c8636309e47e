"""The trainer's replay buffer with three changes: quick polling, whole groups only, and an order that repeats.

verl's own looks for finished rollouts every 2 seconds (which quantises step times), keeps groups in which a session
failed, and hands out rows in the order in which they happened to finish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_agentic.bridge.faults import PROGRAM, take_faults
from verl_agentic.bridge.rows import session_and_row, session_of

logger = logging.getLogger(__name__)


class AgenticReplayBuffer(ReplayBuffer):
    """Plugged in by `trainer.v1.sampler.custom_sampler`.

    Args:
        sampler_kwargs: `poll_interval`, seconds between two looks; `sessions_per_group`, the size of a whole group in
            training (null: not checked).
        others: as verl passes them to every custom sampler.

    Attributes:
        validation_faults: infrastructure faults of the validation since `take_validation_faults` was last called.
    """

    def __init__(
        self,
        trainer_mode: str,
        trainer_config: Any,
        max_off_policy_threshold: int | None,
        max_off_policy_strategy: str,
        sampler_kwargs: Any,
        refill_fn: Callable[[int], Any] | None = None,
    ):
        super().__init__(
            trainer_mode,
            trainer_config,
            max_off_policy_threshold,
            max_off_policy_strategy,
            sampler_kwargs,
            poll_interval=float(sampler_kwargs.get("poll_interval", 0.5)),
            refill_fn=refill_fn,
        )
        self._sessions_per_group = sampler_kwargs.get("sessions_per_group")
        self._dropped_groups = 0
        self.validation_faults = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """A batch of whole groups, with the counters of what failed on the way.

        Raises:
            RuntimeError: every group of the step failed, or a session failed by an error of a program and not by a
                fault of the infrastructure; names the first cause.
        """
        self._dropped_groups = 0
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
        except RuntimeError as error:
            raise RuntimeError(f"no group of step {global_steps} finished: {_sentence(take_faults())}") from error
        faults = take_faults()
        if broken := [fault for fault in faults if fault["boundary"] == PROGRAM]:
            raise RuntimeError(
                f"step {global_steps}: a session ended with an error of the program: {_sentence(broken)}"
            )
        if faults:
            logger.warning("step %s: %s sessions failed, the first: %s", global_steps, len(faults), _sentence(faults))
        if not batch.keys:
            raise RuntimeError(f"no group of step {global_steps} finished: {_sentence(faults)}")
        if partition_id == "val":
            self.validation_faults += len(faults)
            return batch, metrics
        return batch, {
            **metrics,
            "agentic/infra_faults": len(faults),
            "agentic/dropped_groups": self._dropped_groups,
        }

    def take_validation_faults(self) -> int:
        """Faults of the validation since the last call."""
        count, self.validation_faults = self.validation_faults, 0
        return count

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict]
    ) -> KVBatchMeta:
        broken = self._broken_groups(partition_id, selected_prompt_uids, partition_snapshot)
        self._dropped_groups = len(broken)
        self._clear_groups(partition_id, broken)
        whole = [uid for uid in selected_prompt_uids if uid not in broken]
        snapshot = {key: tag for key, tag in partition_snapshot.items() if _uid(key) not in broken}
        if not whole:
            return KVBatchMeta(partition_id=partition_id, keys=[], tags=[])
        return _in_data_order(super()._materialize_batch(partition_id, whole, snapshot))

    def _broken_groups(self, partition_id: str, uids: list[str], snapshot: dict[str, dict]) -> set[str]:
        """Training groups in which a session failed, or that have fewer sessions than a whole one."""
        if partition_id == "val":
            return set()
        sessions: dict[str, set[int]] = {uid: set() for uid in uids}
        for key in snapshot:
            if _uid(key) in sessions:
                sessions[_uid(key)].add(session_and_row(key)[0])
        wanted = self._sessions_per_group or 1
        return {uid for uid, own in sessions.items() if uid in self.failure_keys[partition_id] or len(own) < wanted}


def _in_data_order(batch: KVBatchMeta) -> KVBatchMeta:
    """Rows by data set index, question, session and row, whatever the order in which they finished.

    Two data files may both count from 0; their questions are told apart by the first prompt of a session, since those
    of its later rows hold what was written before.
    """
    if not batch.keys:
        return batch
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index", "prompts"])
    indices = [int(getattr(index, "data", index)) for index in data["index"]]
    prompts = [prompt.tolist() for prompt in data["prompts"].unbind()]
    first = {session_of(key): prompt for key, prompt in zip(batch.keys, prompts, strict=True) if key.endswith("_0")}
    questions = [first[session_of(key)] for key in batch.keys]
    places = list(zip(indices, questions, map(session_and_row, batch.keys), strict=True))
    batch.reorder(sorted(range(len(places)), key=places.__getitem__))
    return batch


def _uid(key: str) -> str:
    return key.split("_")[0]


def _sentence(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "the agent loops failed before they could report why; their traceback is in the worker's log above"
    return f"{faults[0]['boundary']}: {faults[0]['message']}"
