"""How a trajectory may end: well, by the model's own fault, or by a fault of the infrastructure around it.

The three are types, because they are treated differently everywhere: an `Ok` and a `ModelFault` are trained on (the
second scored low), an `InfraFault` never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultCode(StrEnum):
    """Why a policy's turn or trajectory is not valid."""

    NO_ACTION = "no_action"  # nothing but text: no action tag outside the thinking
    THINK_UNCLOSED = "think_unclosed"  # the turn ended inside its thinking
    ACTION_UNCLOSED = "action_unclosed"  # an action was opened and the model ended the turn before closing it
    TRUNCATED = "truncated"  # the token limit of the turn fell inside an action; never executed
    EMPTY_ACTION = "empty_action"  # an action with a blank body where one is due
    NESTED_TAG = "nested_tag"  # a tag of the grammar inside an action's body
    FORGED_MARKUP = "forged_markup"  # the policy wrote a role marker or an observation tag itself
    INVALID_EDIT = "invalid_edit"  # an edit of the context that cannot be done; nothing has changed
    INVALID_DECOMPOSITION = "invalid_decomposition"  # sub-questions that make no plan; nothing has changed
    LIMIT_EXCEEDED = "limit_exceeded"  # an action after its allowance was used up
    TURNS_EXHAUSTED = "turns_exhausted"  # the last allowed turn ended without a terminal action
    BUDGET_EXHAUSTED = "budget_exhausted"  # no token left in the trajectory


@dataclass(frozen=True)
class Ok:
    """The trajectory ended with a terminal action."""

    kind: str = "ok"


@dataclass(frozen=True)
class ModelFault:
    """The trajectory ended without a valid terminal action; trainable, scored low."""

    code: FaultCode
    kind: str = "model_fault"


@dataclass(frozen=True)
class InfraFault:
    """Something outside the policy failed at `boundary` ("retriever", "judge", "rollout"); never training data."""

    boundary: str
    message: str
    kind: str = "infra_fault"


Outcome = Ok | ModelFault | InfraFault


class InfraFaultError(RuntimeError):
    """Raised where a fault of the infrastructure is met; carries the outcome that the trajectory gets."""

    def __init__(self, boundary: str, message: str):
        super().__init__(f"{boundary}: {message}")
        self.outcome = InfraFault(boundary=boundary, message=message)

    def __reduce__(self):
        return type(self), (self.outcome.boundary, self.outcome.message)
