"""What a method is: its grammar, its environment, and one pure scoring function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_agentic.core.environment import Environment, LastingEnvironment, Tools
from verl_agentic.core.grammar import Grammar
from verl_agentic.core.judging import Ask, Judgement
from verl_agentic.core.rewards import RowRewards
from verl_agentic.core.spans import SpanReward
from verl_agentic.core.trajectory import Episode


@dataclass(frozen=True)
class Score:
    """The reward of an episode.

    Attributes:
        rewards: per row, per response token: what verl's own estimators read.
        metrics: scalars logged for each session, the same keys in every sample; "acc" is the headline.
        outcome: the session's outcome reward, for credit and selection over the sessions of a question; None is the sum
            of `rewards`.
        spans: the credited process rewards, for credit by spans.
    """

    rewards: RowRewards
    metrics: dict[str, float]
    outcome: float | None = None
    spans: tuple[SpanReward, ...] = ()

    def __post_init__(self) -> None:
        if "reward" in self.metrics:
            raise ValueError("a score's metrics must not hold the key 'reward': the trainer would count it twice")
        if wrong := {name: value for name, value in self.metrics.items() if not isinstance(value, float)}:
            raise ValueError(f"a score's metrics must be floats in every sample, got {wrong}")


ScoreFunction = Callable[[Episode, Sequence[str], Mapping[str, Any], Sequence[Judgement]], Score]
"""(episode, gold aliases, the recipe's `agentic.reward` knobs, judgements of its asks) -> Score; pure."""

AskFunction = Callable[[Episode, Sequence[str], Mapping[str, Any]], Sequence[Ask]]
"""(episode, gold aliases, knobs) -> what the judge is asked about the episode; pure, deterministic."""


def any_knobs(knobs: Mapping[str, Any]) -> None:
    """Accepts every value: for methods without a check of their own."""


def no_vectors_needed(knobs: Mapping[str, Any]) -> bool:
    """For methods whose environment embeds nothing."""
    return False


def no_asks(episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any]) -> Sequence[Ask]:
    """For methods without a judge."""
    return ()


def no_kinds(knobs: Mapping[str, Any]) -> Sequence[str]:
    """For methods without a judge."""
    return ()


@dataclass(frozen=True)
class Method:
    """A method of one policy whose context grows, or is edited.

    Args:
        name: its folder and recipe name.
        grammar: the tags its policy writes.
        prompts: folder of its prompt packs.
        environment: makes the environment of one episode.
        score: the scoring function, used by the agent loop and by the reward manager alike.
        check_knobs: raises ValueError, in one sentence, where the values of `agentic.reward` make no sense.
        check_environment: the same for `agentic.environment`.
        asks: what the judge is asked about an episode; its judgements go to `score`.
        judged_kinds: the kinds of ask that given knobs lead to; where there are any, a judge must be configured.
        judge_prompts: folder of the prompts of its judge, one `KIND.txt` a kind of ask, for a judge that is a model.
        embeds: whether the environment asks for vectors, given its knobs; the retriever must then offer /embed.
        resumed_environment: for inference alone, an environment that starts from what an earlier one kept in a file, or
            from nothing where there is no such file; None where nothing outlives an episode.
    """

    name: str
    grammar: Grammar
    prompts: Path
    environment: Callable[[Tools], Environment]
    score: ScoreFunction
    check_knobs: Callable[[Mapping[str, Any]], None] = any_knobs
    check_environment: Callable[[Mapping[str, Any]], None] = any_knobs
    asks: AskFunction = no_asks
    judged_kinds: Callable[[Mapping[str, Any]], Sequence[str]] = no_kinds
    judge_prompts: Path | None = None
    embeds: Callable[[Mapping[str, Any]], bool] = no_vectors_needed
    resumed_environment: Callable[[Tools, Path], LastingEnvironment] | None = None
