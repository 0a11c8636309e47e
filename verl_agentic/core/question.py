"""Frozen records of a question whose solution is known: gold answers, gold passages, gold decomposition.

Oracle policies render these records in the grammar of their method; data sets are written from them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One sub-question of a gold decomposition.

    index: 1-based place in the decomposition; later steps refer to its answer as ``#index``.
    text: the sub-question, with references to earlier answers (``Where was #1 born ?``).
    entity: what the step asks about, references resolved; empty for a step that only compares.
    relation: name of the relation followed from the entity.
    keyword: the word that passages use for the relation, fit for a search query.
    answer: the step's gold answer.
    depends: indices of the earlier steps whose answers the step needs.
    passage_id: the passage that states the answer; empty when no passage is needed.
    """

    index: int
    text: str
    entity: str
    relation: str
    keyword: str
    answer: str
    depends: tuple[int, ...] = ()
    passage_id: str = ""

    @property
    def needs_search(self) -> bool:
        """Whether the step's answer must be looked up in a passage."""
        return bool(self.passage_id)


@dataclass(frozen=True)
class Question:
    """A question with everything that is known about its solution.

    kind: 1hop, 2hop, 3hop, 4hop, comparison or shared. path: the relations followed, in order.
    """

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    passage_ids: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def path(self) -> tuple[str, ...]:
        """Relations of the steps, in order."""
        return tuple(step.relation for step in self.steps)

    @property
    def start(self) -> tuple[str, ...]:
        """Entities that the question itself names (those of steps without dependencies)."""
        return tuple(step.entity for step in self.steps if not step.depends)

    @property
    def compares(self) -> bool:
        """Whether the last step only compares what the earlier ones found."""
        return not self.steps[-1].needs_search

    @property
    def compared(self) -> tuple[Step, ...]:
        """The steps whose answers the last one compares; none where it does not compare."""
        return tuple(self.steps[number - 1] for number in self.steps[-1].depends) if self.compares else ()

    @property
    def searches(self) -> tuple[Step, ...]:
        """The steps that need a search."""
        return tuple(step for step in self.steps if step.needs_search)
