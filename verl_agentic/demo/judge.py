"""A judge for the demo without a model: it knows the world's facts and the solution of every question about it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from verl_agentic.core.judging import Ask, Judgement, Missing, Verdict
from verl_agentic.core.question import Question
from verl_agentic.demo.questions import COMPARISONS, PATHS, chain_questions, comparison_question
from verl_agentic.demo.world import World, WorldSizes, generate_world

NAME = "demo world scorer (exact facts, no model)"
UNKNOWN_QUESTION, UNKNOWN_KIND = "unknown_question", "unknown_kind"


class WorldJudge:
    """Scores searches and context edits by what is true in a demo world; the same ask always has the same verdict.

    Asks it knows, by kind, and the fields that it reads beside `question`:

    - `retrieval` (documents): 1 where a passage that the question needs is among the documents, else 0.
    - `memory` (action, text): a `summary` scores 1 where its text holds the answer of a needed step (in a comparison
      with the entity that it belongs to), a `backtrack` 1 where its text names nothing that the question needs.
    - `memory_change` (before, stack too): the same, and 0 where the answer of a needed step stood in the stack before
      the edit and stands there no more.

    A question that is none of the world's is missing (`unknown_question`), as is any other kind (`unknown_kind`).

    Args:
        world: the `world.json` that `python -m verl_agentic.demo prepare` wrote.

    Raises:
        ValueError: the file is not that of a world that this version makes.
    """

    name = NAME

    def __init__(self, world: str):
        self._path = Path(world)

    async def __call__(self, asks: Sequence[Ask]) -> list[Judgement]:
        return [self._judge(ask.kind, dict(ask.fields)) for ask in asks]

    def _judge(self, kind: str, fields: dict[str, str]) -> Judgement:
        rules = {"retrieval": self._retrieval, "memory": self._memory, "memory_change": self._memory_change}
        if kind not in rules:
            return Missing(UNKNOWN_KIND)
        question = self._question(fields["question"])
        return Missing(UNKNOWN_QUESTION) if question is None else Verdict(float(rules[kind](question, fields)))

    def _retrieval(self, question: Question, fields: dict[str, str]) -> bool:
        return any(_holds(fields["documents"], self._contents[step.passage_id]) for step in question.searches)

    def _memory(self, question: Question, fields: dict[str, str]) -> bool:
        text = fields["text"]
        if fields["action"] == "summary":
            paired = question.kind == "comparison"
            return any(
                _holds(text, step.answer) and (not paired or _holds(text, step.entity)) for step in question.searches
            )
        return not any(_holds(text, name) for step in question.searches for name in (step.entity, step.answer))

    def _memory_change(self, question: Question, fields: dict[str, str]) -> bool:
        answers = [step.answer for step in question.searches]
        lost = any(_holds(fields["before"], a) and not _holds(fields["stack"], a) for a in answers)
        return self._memory(question, fields) and not lost

    def _question(self, text: str) -> Question | None:
        return self._chains.get(text) or self._comparison(text)

    def _comparison(self, text: str) -> Question | None:
        for name, (_, wording) in COMPARISONS.items():
            pattern = re.escape(wording)
            for part in ("order", "a", "b"):
                pattern = pattern.replace(re.escape(f"{{{part}}}"), f"(?P<{part}>.+)")
            found = re.fullmatch(pattern, text)
            if found and {found["a"], found["b"]} <= set(self._world.entities[name]) and found["a"] != found["b"]:
                return comparison_question(self._world, found["a"], found["b"], found["order"])
        return None

    @cached_property
    def _chains(self) -> dict[str, Question]:
        return {question.text: question for kind in PATHS for question in chain_questions(self._world, kind)}

    @cached_property
    def _contents(self) -> dict[str, str]:
        return {passage.id: passage.contents for passage in self._world.passages}

    @cached_property
    def _world(self) -> World:
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            world = generate_world(record["seed"], WorldSizes(**record["sizes"]))
            facts = {(entity, relation): value for entity, relation, value in record["facts"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"agentic.judge.options.world: {self._path} is no world.json of the demo ({error}); write it with "
                "python -m verl_agentic.demo prepare"
            ) from error
        if facts != world.facts:
            raise ValueError(
                f"agentic.judge.options.world: {self._path} holds a world of another version of the demo; write it "
                "again with python -m verl_agentic.demo prepare"
            )
        return world


def _holds(text: str, words: str) -> bool:
    """Whether `words` stand in `text` as whole words."""
    return f" {words} " in f" {' '.join(text.split())} "
