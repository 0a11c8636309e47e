"""Oracle policy of dep_search: decomposes, searches each step, concludes, and looks up what it has concluded before.

Good: decompose into the gold steps and search each of them; a step whose passage an earlier search has brought is not
searched but looked up in the memory, after a conclusion. At the end conclude what is new and read the memory before the
answer. The habits are what a cold start is taught on purpose, so that
reinforcement learning has something to mend: it searches the first step only and answers the value found there, or it
searches what it knows, a step whose passage it has seen or else the first step once more. A conclusion's summary is
written by the oracle too: a sentence for each step that is solved and was not concluded before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from verl_agentic.core.budget import Budget
from verl_agentic.core.question import Question, Step
from verl_agentic.methods.dep_search.actions import CONCLUSION, DECOMPOSE, GRAMMAR, MEMORY
from verl_agentic.methods.dep_search.environment import NOTHING, PASSAGES

LookUp = Callable[[str, str], str | None]

GOOD, EARLY, TWICE = "good", "early", "twice"
# kind of question -> how often each habit is shown; kinds not listed are shown well
HASTY_MIX: dict[str, dict[str, float]] = {
    "1hop": {GOOD: 1.0},
    "2hop": {GOOD: 0.2, EARLY: 0.5, TWICE: 0.3},
    "3hop": {GOOD: 0.2, EARLY: 0.5, TWICE: 0.3},
    "4hop": {GOOD: 0.2, EARLY: 0.5, TWICE: 0.3},
    "comparison": {GOOD: 0.4, EARLY: 0.4, TWICE: 0.2},
    "shared": {GOOD: 0.3, EARLY: 0.3, TWICE: 0.4},
}
# Questions of 3 and 4 hops and with shared sub-answers are trained too: there a memory can pay.
COLD_START_KINDS = {"1hop": 0.15, "2hop": 0.2, "3hop": 0.15, "4hop": 0.1, "comparison": 0.2, "shared": 0.2}
# The budget of the CPU recipes, under which the demo's episodes are written.
DEMO_BUDGET = Budget(
    max_actions=12, max_corrections=3, turn_tokens=96, observation_tokens=64, prompt_tokens=64, response_tokens=640
)
_REQUEST = "write facts"


def demo_environment(actions_off: Collection[str]) -> dict[str, Any]:
    """The environment's knobs in the CPU recipes: those of the ablation that lacks these actions."""
    store = {"store": PASSAGES} if CONCLUSION in actions_off else {"store": NOTHING} if MEMORY in actions_off else {}
    return {"conclusion_tokens": 80, **store}


@dataclass
class DepSearchOracle:
    """One episode's oracle: `turn` is called with what the policy newly sees and answers with the text of a turn.

    off: actions that it does not write.
    """

    question: Question
    habit: str
    off: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._summaries: list[str] = []
        self._concluded: set[Step] = set()
        self._turns = iter(self._plan())

    def turn(self, observation: str) -> str:
        """The next turn, or the summary that a conclusion asks for; `observation` is what was appended since."""
        return self._summaries.pop(0) if observation.strip().endswith(_REQUEST) else next(self._turns)

    def _plan(self) -> list[str]:
        steps = list(self.question.searches)
        plan = [] if DECOMPOSE in self.off else [f"<Decompose> {self._sub_questions()} </Decompose>"]
        if self.habit == EARLY:
            plan += [_search(steps[0]), *self._look_up(steps[0], {steps[0].passage_id})]
            return [*plan, f"<answer> {steps[0].answer} </answer>"]
        seen: set[str] = set()
        for step in steps:
            known = step.passage_id in seen
            seen.add(step.passage_id)
            plan += self._look_up(step, seen) if known and self.habit == GOOD else [_search(step)]
        if self.habit == TWICE and len(seen) == len(steps):
            plan.append(_search(steps[0]))
        return [*plan, *self._look_up(self._needed(), seen), f"<answer> {self.question.answers[0]} </answer>"]

    def _look_up(self, step: Step, seen: set[str]) -> list[str]:
        memory = [] if MEMORY in self.off else [f"<Memory> {step.entity} {step.keyword} </Memory>"]
        return [*self._conclude(seen), *memory]

    def _conclude(self, seen: set[str]) -> list[str]:
        """A conclusion of the steps that the passages seen solve; none where all of them were concluded before."""
        new = [step for step in self.question.searches if step.passage_id in seen and step not in self._concluded]
        if CONCLUSION in self.off or not new:
            return []
        self._concluded.update(new)
        facts = " ".join(f"{step.entity} {step.keyword} {step.answer} ." for step in new)
        self._summaries.append(f"{facts} <|im_end|>")
        return ["<Conclusion> </Conclusion>"]

    def _needed(self) -> Step:
        """The first step whose answer the last one needs, where the last one compares; else the last one."""
        last = self.question.steps[-1]
        return last if last.needs_search else self.question.steps[last.depends[0] - 1]

    def _sub_questions(self) -> str:
        return " ".join(f"{step.index}. {step.text} [ deps: {_references(step)} ]" for step in self.question.steps)


def _search(step: Step) -> str:
    return f"<Retrieve> {step.entity} {step.keyword} </Retrieve>"


def _references(step: Step) -> str:
    return " , ".join(f"#{number}" for number in step.depends) or "none"


def make_oracle(
    question: Question,
    look_up: LookUp,
    rng: random.Random | None = None,
    mix: dict[str, dict[str, float]] | None = None,
    actions_off: Collection[str] = (),
) -> DepSearchOracle:
    """An oracle for one episode: good where `rng` is None, else with a habit drawn from `mix` (HASTY_MIX).

    look_up: not needed; no habit reads a wrong passage.
    actions_off: actions that the policy does not have.

    Raises:
        ValueError: actions without which the oracle cannot do are taken away.
    """
    able = {action.name for action in GRAMMAR.actions} & {DECOMPOSE, MEMORY, CONCLUSION}
    if wrong := sorted(set(actions_off) - able):
        raise ValueError(f"the oracle of dep_search does without {sorted(able)}, not without {wrong}")
    shares = (HASTY_MIX if mix is None else mix).get(question.kind, {GOOD: 1.0})
    habit = GOOD if rng is None else rng.choices(list(shares), list(shares.values()))[0]
    return DepSearchOracle(question, habit, frozenset(actions_off))
