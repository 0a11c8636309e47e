"""Oracle policy of agentic_rag_r1: plans, searches, sums up, and takes back a search that went wrong.

Good: plan the gold decomposition, search each step, replace each search by a summary of what it gave, conclude. The
habits are what a cold start is taught on purpose, so that reinforcement learning has something to mend: it plans one
search only and concludes the value found there, or searches with a sloppy query and trusts the first passage. In a
share of the good sessions the first query is sloppy too, but the search is popped by a backtrack and done again.
Without edits (`actions_off`) what would be a summary is a `<reasoning>`, and nothing is taken back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from verl_agentic.core.budget import Budget
from verl_agentic.core.question import Question, Step

LookUp = Callable[[str, str], str | None]

GOOD, RETRY, EARLY, SLOPPY = "good", "retry", "early", "sloppy"
# kind of question -> how often each habit is shown; kinds not listed are shown well
HASTY_MIX: dict[str, dict[str, float]] = {
    "1hop": {GOOD: 0.87, RETRY: 0.1, SLOPPY: 0.03},
    "2hop": {GOOD: 0.17, RETRY: 0.05, EARLY: 0.7, SLOPPY: 0.08},
    "comparison": {GOOD: 0.4, EARLY: 0.6},
}
# The budget of the CPU recipes, under which the demo's episodes are written.
DEMO_BUDGET = Budget(
    max_actions=10, max_corrections=3, turn_tokens=32, observation_tokens=48, prompt_tokens=320, response_tokens=384
)


@dataclass
class StackOracle:
    """One episode's oracle: `turn` is called with what the policy newly sees and answers with the text of a turn.

    `edits` False writes no backtrack and no summary.
    """

    question: Question
    look_up: LookUp
    habit: str
    rng: random.Random
    edits: bool = True
    values: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        steps = self.question.searches
        self._steps = steps[:1] if self.habit == EARLY else steps
        self._next: Callable[[str], str] = self._plan
        self._sloppy = self.habit in (SLOPPY, RETRY)

    def turn(self, observation: str) -> str:
        """The next turn; `observation` is the prompt at first, after an edit the new prompt, else what was appended."""
        return self._next(observation)

    def _plan(self, _: str) -> str:
        self._next = self._search
        steps = " ; ".join(f"find {step.keyword}" for step in self._steps)
        return f"<plan> {steps} </plan>"

    def _search(self, _: str) -> str:
        step = self._step
        entity = self.values[step.depends[0] - 1] if step.depends else step.entity
        query = f"{entity} {step.keyword}"
        if self._sloppy and not self.values:
            query = f"{step.keyword} of {self.rng.choice(entity.split())}"
        self._next = self._read
        return f"<search> {query} </search>"

    @property
    def _step(self) -> Step:
        """The step that is being worked on."""
        return self._steps[len(self.values)]

    def _read(self, observation: str) -> str:
        """Note the value found; the sloppy habit trusts whatever passage came first, a retry takes it back."""
        step = self._step
        title = " ".join(observation.partition("( 1 )")[2].split()[:2])
        if self.habit == RETRY and self._sloppy and title != step.entity:
            self._sloppy, self._next = False, self._search
            return f"<backtrack> 1 | wrong {title} </backtrack>"
        found = self.look_up(title, step.relation) or "unknown"
        self.values.append(found if self.habit == SLOPPY else step.answer)
        done = len(self.values) == len(self._steps)
        self._next = (self._compare if self._compares else self._conclude) if done else self._search
        return f"<summary> 1 | {self._finding(step)} </summary>" if self.edits else self._reasoning(self._finding(step))

    @property
    def _compares(self) -> bool:
        return self.question.compares and self.habit != EARLY

    def _finding(self, step: Step) -> str:
        """What the last search gave, in words."""
        if self.question.kind == "comparison":
            return f"{self.values[-1]} {step.entity}"
        return f"{step.keyword} is {self.values[-1]}"

    @staticmethod
    def _reasoning(text: str) -> str:
        return f"<reasoning> {text} </reasoning>"

    def _compare(self, _: str) -> str:
        winner = self.question.answers[0]
        best = next(step.answer for step in self.question.compared if step.entity == winner)
        self.values.append(winner)
        self._next = self._conclude
        return self._reasoning(f"{self.question.steps[-1].relation} {best} {winner}")

    def _conclude(self, _: str) -> str:
        return f"<conclusion> {self.values[-1]} </conclusion>"


def make_oracle(
    question: Question,
    look_up: LookUp,
    rng: random.Random | None = None,
    mix: dict[str, dict[str, float]] | None = None,
    actions_off: Collection[str] = (),
) -> StackOracle:
    """An oracle for one episode: good where `rng` is None, else with a habit drawn from `mix` (HASTY_MIX).

    look_up: ``(entity, relation) -> value`` of the world, read by the sloppy habit only.
    actions_off: actions that the policy does not have; without both edits a retry is a good session.

    Raises:
        ValueError: actions without which the oracle cannot do are taken away.
    """
    edits = {"backtrack", "summary"}
    if set(actions_off) not in (set(), edits):
        raise ValueError(
            f"the oracle of agentic_rag_r1 writes sessions with all actions or without {sorted(edits)}, not without "
            f"{sorted(actions_off)}"
        )
    if rng is None:
        return StackOracle(question, look_up, GOOD, random.Random(question.id), edits=not actions_off)
    shares = (HASTY_MIX if mix is None else mix).get(question.kind, {GOOD: 1.0})
    habit = rng.choices(list(shares), list(shares.values()))[0]
    if habit == RETRY and actions_off:
        habit = GOOD
    return StackOracle(question, look_up, habit, rng, edits=not actions_off)
