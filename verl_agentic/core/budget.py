"""The token and turn budgets of a trajectory, as one object whose consistency is checked before a run starts."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Budget:
    """Limits of one trajectory; every length is in tokens.

    Args:
        max_actions: non-terminal actions allowed; the observation of the last one tells the model to answer now.
        max_corrections: invalid turns answered by a corrective message before the trajectory ends.
        turn_tokens: new tokens of one turn.
        observation_tokens: tokens of one observation, its tags included.
        prompt_tokens: tokens of the first prompt.
        response_tokens: tokens after the prompt, observations included.
    """

    max_actions: int
    max_corrections: int
    turn_tokens: int
    observation_tokens: int
    prompt_tokens: int
    response_tokens: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name.startswith("max_") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"agentic.budget.{field.name} must be a whole number of at least {least}, got {value!r}"
                )
        need = self.turn_tokens + (self.observation_tokens + self.turn_tokens if self.max_actions else 0)
        if need > self.response_tokens:
            raise ValueError(
                f"agentic.budget cannot hold one action and one answer: turn_tokens {self.turn_tokens} and "
                f"observation_tokens {self.observation_tokens} need {need} tokens, response_tokens is "
                f"{self.response_tokens}; raise data.max_response_length or lower the turn and observation budgets"
            )
