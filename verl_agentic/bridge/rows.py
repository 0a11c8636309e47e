"""A step's rows as the trainer holds them: whether they are what was sampled, and whether their rewards are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from verl_agentic.core.trajectory import TokenTruthError, kept_tokens

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
        return session_of(self.key)


def session_of(key: str) -> str:
    """`{uid}_{session}` of a row's key."""
    return key.rsplit("_", 1)[0]


def session_and_row(key: str) -> tuple[int, int]:
    """The numbers of session and row of a row's key."""
    _, session, row = key.rsplit("_", 2)
    return int(session), int(row)


def real_keys(batch: KVBatchMeta) -> list[str]:
    """Keys of a batch without those of padding rows."""
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]


def read_rows(batch: KVBatchMeta) -> list[TrainerRow]:
    """Every row of a batch, padding left out."""
    keys = real_keys(batch)
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


def by_session(rows: Sequence[TrainerRow]) -> dict[str, list[TrainerRow]]:
    """The rows of each session in time order; sessions in the order in which the first of their rows comes."""
    sessions: dict[str, list[TrainerRow]] = defaultdict(list)
    for row in rows:
        sessions[row.session].append(row)
    return {name: sorted(own, key=lambda row: session_and_row(row.key)) for name, own in sessions.items()}


def check_trained_is_sampled(rows: Sequence[TrainerRow]) -> int:
    """Compare what is about to be trained with what generation returned, session by session.

    Returns:
        The count of trained tokens compared; 0 where `agentic.assert_tokens` is off.

    Raises:
        TokenTruthError: a session's trained tokens are not exactly its sampled ones less each turn's dropped tail, or a
            reward lies on a token that is not trained.
    """
    compared = 0
    for session, own in by_session(rows).items():
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


def check_rewards_are_read(rows: Sequence[TrainerRow], estimator: str) -> None:
    """Refuse rewards that verl's GRPO would not see: it reads the last row of a session only.

    Raises:
        RuntimeError: a session of several rows has a reward on an earlier one.
    """
    if estimator != "grpo":
        return
    for session, own in by_session(rows).items():
        if any(any(row.rewards) for row in own[:-1]):
            raise RuntimeError(
                f"session {session} has rewards on an earlier row than its last, which algorithm.adv_estimator=grpo "
                "does not read; set agentic.credit.name=hierarchical, or put the session's reward on its last row"
            )
