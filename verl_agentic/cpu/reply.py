"""The server's answer to a generation request, in the shape verl's client expects."""

from __future__ import annotations

from typing import Any

from verl_agentic.cpu.request import GenerationOutput

# verl knows "completed" (also for a used-up budget, as its own servers say) and "aborted", which its client resumes.
STOP_REASONS = {"stop": "completed", "length": "completed", "abort": "aborted"}


class Reply:
    """Turns into verl's TokenOutput where it is unpickled, so that the server's process never imports verl.

    That import costs the server about three seconds of processor time at start-up and buys it this one class.

    Args:
        output: what the engine returned.
    """

    def __init__(self, output: GenerationOutput) -> None:
        extra = {
            "global_steps": output.weight_version,
            "finish_reason": output.finish_reason,
        }
        self._fields = {
            "token_ids": output.token_ids,
            "log_probs": output.log_probs,
            "stop_reason": STOP_REASONS[output.finish_reason],
            "num_preempted": 0,
            "extra_fields": extra,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return token_output, (self._fields,)


def token_output(fields: dict[str, Any]) -> Any:
    """verl's TokenOutput with the given fields."""
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(**fields)
