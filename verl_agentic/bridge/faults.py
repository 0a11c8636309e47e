"""How a failed session travels from an agent loop to the trainer.

The failed session stores no row, so nothing of it can be trained; what is stored is a tag with its boundary and
message, which the trainer counts and shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig

from verl_agentic.core.outcomes import InfraFault

PARTITION = "agentic_faults"
# Boundary of an error in the program itself (ours, or a scoring function): not weather, the run stops.
PROGRAM = "program"


async def report_fault(config: DictConfig, row: Mapping[str, Any], fault: InfraFault) -> None:
    """Store the fault of one session for the trainer; a stock trainer has nobody to read it, so nothing is stored."""
    if config.trainer.v1.trainer_mode != "agentic":
        return
    tag = {"boundary": fault.boundary, "message": fault.message, "global_steps": row.get("global_steps")}
    await tq.async_kv_put(key=f"{row['uid']}_{row['session_id']}", partition_id=PARTITION, tag=tag)


def take_faults() -> list[dict[str, Any]]:
    """All faults stored since the last call: their tags."""
    found = (tq.kv_list(partition_id=PARTITION) or {}).get(PARTITION, {})
    if found:
        tq.kv_clear(keys=list(found), partition_id=PARTITION)
    return list(found.values())
