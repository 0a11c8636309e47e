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

from verl_agentic.bridge.faults import take_infra_faults

logger = logging.getLogger(__name__)


class AgenticReplayBuffer(ReplayBuffer):
    """Plugged in by `trainer.v1.sampler.custom_sampler`.

    Args:
        sampler_kwargs: `poll_interval`, seconds between two looks.
        others: as verl passes them to every custom sampler.
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
        self._dropped_groups = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """A batch of whole groups, with the counters of what failed on the way.

        Raises:
            RuntimeError: every group of the step failed; names the first cause.
        """
        self._dropped_groups = 0
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        faults = take_infra_faults()
        prefix = "agentic" if partition_id == "train" else "val-agentic"
        metrics[f"{prefix}/infra_faults"] = len(faults)
        metrics[f"{prefix}/dropped_groups"] = self._dropped_groups
        if faults:
            logger.warning("step %s: %s sessions failed, the first: %s", global_steps, len(faults), _sentence(faults))
        if not batch.keys:
            raise RuntimeError(f"no group of step {global_steps} finished: {_sentence(faults)}")
        return batch, metrics

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict]
    ) -> KVBatchMeta:
        failed = set(selected_prompt_uids) & self.failure_keys[partition_id] if partition_id == "train" else set()
        self._dropped_groups = len(failed)
        self._clear_groups(partition_id, failed)
        whole = [uid for uid in selected_prompt_uids if uid not in failed]
        snapshot = {key: tag for key, tag in partition_snapshot.items() if key.split("_")[0] not in failed}
        if not whole:
            return KVBatchMeta(partition_id=partition_id, keys=[], tags=[])
        return _in_data_order(super()._materialize_batch(partition_id, whole, snapshot))


def _in_data_order(batch: KVBatchMeta) -> KVBatchMeta:
    """Rows by data set index, session and row, whatever the order in which they finished."""
    if not batch.keys:
        return batch
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
    indices = [int(getattr(index, "data", index)) for index in data["index"]]
    place = {key: (index, *_session_and_row(key)) for key, index in zip(batch.keys, indices, strict=True)}
    order = sorted(range(len(batch.keys)), key=lambda i: place[batch.keys[i]])
    batch.reorder(order)
    return batch


def _session_and_row(key: str) -> tuple[str, int, int]:
    uid, session, row = key.rsplit("_", 2)
    return uid, int(session), int(row)


def _sentence(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "the agent loops failed before they could report why; their traceback is in the worker's log above"
    return f"{faults[0]['boundary']}: {faults[0]['message']}"
