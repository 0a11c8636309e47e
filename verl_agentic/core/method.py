"""What a method is: its grammar, its environment, and one pure scoring function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_agentic.core.environment import Environment, Search
from verl_agentic.core.grammar import Grammar
from verl_agentic.core.rewards import RowRewards
from verl_agentic.core.trajectory import Episode

Render = Callable[[list], Any]


@dataclass(frozen=True)
class Score:
    """The reward of an episode.

    Attributes:
        rewards: per row, per response token.
        metrics: scalars logged for each session, the same keys in every sample; "acc" is the headline.
    """

    rewards: RowRewards
    metrics: dict[str, float]

    def __post_init__(self) -> None:
        if "reward" in self.metrics:
            raise ValueError("a score's metrics must not hold the key 'reward': the trainer would count it twice")
        if wrong := {name: value for name, value in self.metrics.items() if not isinstance(value, float)}:
            raise ValueError(f"a score's metrics must be floats in every sample, got {wrong}")


ScoreFunction = Callable[[Episode, Sequence[str], Mapping[str, Any]], Score]
"""(episode, gold aliases, the recipe's `agentic.reward` knobs) -> Score; pure, deterministic."""


def any_knobs(knobs: Mapping[str, Any]) -> None:
    """Accepts every value of `agentic.reward`: for methods without a check of their own."""


@dataclass(frozen=True)
class Method:
    """A method with one growing context.

    Args:
        name: its folder and recipe name.
        grammar: the tags its policy writes.
        prompts: folder of its prompt packs.
        environment: makes the environment of one episode from the retriever and the pack's renderer of passages.
        score: the scoring function, used by the agent loop and by the reward manager alike.
        check_knobs: raises ValueError, in one sentence, where the values of `agentic.reward` make no sense.
    """

    name: str
    grammar: Grammar
    prompts: Path
    environment: Callable[[Search, Render], Environment]
    score: ScoreFunction
    check_knobs: Callable[[Mapping[str, Any]], None] = any_knobs
