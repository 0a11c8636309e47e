"""What a step is reported by: means over its sessions, missing judgements, agreement of the log-probabilities."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from verl_agentic.bridge.rows import TrainerRow, by_session, real_keys, session_of

logger = logging.getLogger(__name__)

# Share of a step's sessions that wrote tags of which none was an action, above which the log says so.
TAG_ALARM = 0.5


def session_metrics(rows: Sequence[TrainerRow]) -> dict[str, float]:
    """Means over the sessions of a step: each scalar of the scoring function, fault codes, and the tag alarm."""
    sessions = by_session(rows).values()
    if not sessions:
        return {}
    sums: Counter[str] = Counter()
    for own in sessions:
        last = own[-1]
        sums.update(last.extra.get("reward_extra_info", {}))
        fault = last.extra.get("fault")
        if fault:
            sums[f"fault/{fault}"] += 1
        sums["markup_without_action"] += bool(fault and last.extra["tags_seen"] and not last.extra["actions"])
    if sums["markup_without_action"] > TAG_ALARM * len(sessions):
        logger.warning("most sessions wrote tags and none was executed: is the prompt pack of another tag family?")
    return {f"agentic/{name}": value / len(sessions) for name, value in sums.items()}


def missing_judgements(rows: Sequence[TrainerRow], most: float) -> dict[str, float]:
    """The share of a step's judgements that are missing, as `agentic/judge/missing_share`; empty where none was asked.

    Raises:
        RuntimeError: the share is above `most` (`agentic.judge.max_missing_share`).
    """
    infos = [own[-1].extra.get("reward_extra_info", {}) for own in by_session(rows).values()]
    asked, missing = (int(sum(info.get(f"judge/{name}", 0) for info in infos)) for name in ("asked", "missing"))
    if not asked:
        return {}
    if missing / asked > most:
        raise RuntimeError(
            f"{missing} of {asked} judgements of this step are missing ({missing / asked:.1%}), which is above "
            f"agentic.judge.max_missing_share={most}; see that the judge answers in time and in the asked form, or "
            "raise the limit"
        )
    return {"agentic/judge/missing_share": missing / asked}


def log_prob_differences(batch: KVBatchMeta) -> dict[str, float]:
    """Largest absolute difference (nats) between rollout and training log-probability over the trained tokens.

    Returns:
        `agentic/log_prob_difference_max`; where sessions have several rows, that is, an edited context, also
        `..._max_edited` over these and `..._max_unedited` over the others, if any.
    """
    keys = real_keys(batch)
    fields = ["rollout_log_probs", "old_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    rows = zip(*(data[name].unbind() for name in fields), strict=True)
    row_counts = Counter(map(session_of, keys))
    found: dict[bool, list[float]] = {True: [], False: []}
    for key, (rollout, training, mask) in zip(keys, rows, strict=True):
        edited = row_counts[session_of(key)] > 1
        found[edited].append(((rollout - training).abs() * mask).max().item())
    name = "agentic/log_prob_difference_max"
    metrics = {name: max(found[True] + found[False])}
    if found[True]:
        metrics[f"{name}_edited"] = max(found[True])
        metrics.update({f"{name}_unedited": max(found[False])} if found[False] else {})
    return metrics
