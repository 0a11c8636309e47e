"""Oracle policy of search_r1: writes good or hasty turns for a question whose decomposition is known.

Good: search each step of the gold decomposition, then answer. The habits are what a cold start is taught on purpose,
so that reinforcement learning has something to mend: it stops after the first search and answers the value found there
(a bridge entity, or one of the two years to compare), or searches with a sloppy query and trusts the first passage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from verl_agentic.core.budget import Budget
from verl_agentic.core.question import Question, Step

LookUp = Callable[[str, str], str | None]

GOOD, EARLY, SLOPPY = "good", "early", "sloppy"
# kind of question -> how often each habit is shown; kinds not listed are shown well
HASTY_MIX: dict[str, dict[str, float]] = {
    "1hop": {GOOD: 0.95, SLOPPY: 0.05},
    "2hop": {GOOD: 0.2, EARLY: 0.7, SLOPPY: 0.1},
    "comparison": {GOOD: 0.4, EARLY: 0.6},
}

# The budget of the CPU recipes, under which the demo's episodes are written.
DEMO_BUDGET = Budget(
    max_actions=4, max_corrections=1, turn_tokens=32, observation_tokens=48, prompt_tokens=64, response_tokens=256
)


@dataclass
class SearchOracle:
    """One episode's oracle: `turn` is called with what the policy newly sees and answers with the text of a turn."""

    question: Question
    look_up: LookUp
    habit: str
    rng: random.Random
    done: int = 0

    def turn(self, observation: str) -> str:
        """The next turn; `observation` is the prompt at first, then the text of the last retrieval."""
        if self.done:
            self._read(observation)
        steps = self.question.searches
        enough = 1 if self.habit == EARLY else len(steps)
        text = self._search(steps[self.done]) if self.done < enough else self._answer()
        self.done += 1
        return text

    def __post_init__(self) -> None:
        self.values: list[str] = []

    def _read(self, observation: str) -> None:
        """Note the value found for the last searched step; the sloppy habit trusts whatever passage came first."""
        step = self.question.searches[self.done - 1]
        value = step.answer
        if self.habit == SLOPPY:
            title = " ".join(observation.partition("( 1 )")[2].split()[:2])
            value = self.look_up(title, step.relation) or "unknown"
        self.values.append(value)

    def _search(self, step: Step) -> str:
        entity = self.values[step.depends[0] - 1] if step.depends else step.entity
        query = f"{entity} {step.keyword}"
        if self.habit == SLOPPY and not step.depends:
            query = f"{step.keyword} of {self.rng.choice(entity.split())}"
        known = f"{self._finding()} ; " if self.values else ""
        return f"<think> {known}find {step.keyword} </think> <search> {query} </search>"

    def _finding(self) -> str:
        """What the last search gave, in words."""
        step = self.question.searches[len(self.values) - 1]
        if self.question.kind == "comparison":
            return f"{self.values[-1]} {step.entity}"
        return f"{step.keyword} is {self.values[-1]}"

    def _answer(self) -> str:
        if not self.question.compares or self.habit == EARLY:
            return f"<think> {self._finding()} </think> <answer> {self.values[-1]} </answer>"
        winner = self.question.answers[0]
        compared = self.question.compared
        years = [f"{step.answer} {step.entity}" for step in compared]
        best = next(step.answer for step in compared if step.entity == winner)
        thought = " ; ".join([*years, f"{self.question.steps[-1].relation} {best} {winner}"])
        return f"<think> {thought} </think> <answer> {winner} </answer>"


def make_oracle(
    question: Question,
    look_up: LookUp,
    rng: random.Random | None = None,
    mix: dict[str, dict[str, float]] | None = None,
    actions_off: Collection[str] = (),
) -> SearchOracle:
    """An oracle for one episode: good where `rng` is None, else with a habit drawn from `mix` (HASTY_MIX).

    look_up: ``(entity, relation) -> value`` of the world, read by the sloppy habit only.

    Raises:
        ValueError: an action is taken away; the oracle needs both.
    """
    if actions_off:
        raise ValueError(f"the oracle of search_r1 cannot do without {sorted(actions_off)}")
    if rng is None:
        return SearchOracle(question, look_up, GOOD, random.Random(question.id))
    shares = (HASTY_MIX if mix is None else mix).get(question.kind, {GOOD: 1.0})
    habit = rng.choices(list(shares), list(shares.values()))[0]
    return SearchOracle(question, look_up, habit, rng)
