"""From the rows of a step to the sessions that credit and selection work on, and back to the trainer's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_agentic.bridge.rows import TrainerRow, by_session
from verl_agentic.core.credit import CreditedSession, hierarchical
from verl_agentic.core.spans import SpanReward


def credited_sessions(rows: Sequence[TrainerRow]) -> dict[str, CreditedSession]:
    """The sessions of a step by name, in the order of `by_session`."""
    return {
        name: CreditedSession(
            group=own[0].uid,
            outcome=float(own[0].extra["outcome_reward"]),
            masks=tuple(tuple(row.mask) for row in own),
            spans=tuple(SpanReward(number, *span) for number, row in enumerate(own) for span in row.extra["spans"]),
        )
        for name, own in by_session(rows).items()
    }


def row_advantages(
    rows: Sequence[TrainerRow], sessions: Mapping[str, CreditedSession], process_coefficient: float
) -> dict[str, list[float]]:
    """Hierarchical advantages over all `sessions` of a step, per response token, by the keys of their `rows`."""
    advantages = hierarchical(list(sessions.values()), process_coefficient)
    return {
        row.key: values
        for own, per_row in zip(by_session(rows).values(), advantages, strict=True)
        for row, values in zip(own, per_row, strict=True)
    }


def write_advantages(batch: KVBatchMeta, advantages: Mapping[str, list[float]]) -> KVBatchMeta:
    """Store advantages, and the same as returns, beside the rows of a batch; padding rows have 0."""
    mask = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    lengths = [len(row) for row in mask["response_mask"].unbind()]
    rows = [
        torch.tensor(advantages[key]) if not tag.get("is_padding", False) else torch.zeros(length)
        for key, tag, length in zip(batch.keys, batch.tags, lengths, strict=True)
    ]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    fields = TensorDict({"advantages": nested, "returns": nested.clone()}, batch_size=len(batch))
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
