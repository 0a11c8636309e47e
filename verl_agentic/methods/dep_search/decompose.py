"""The reasoning trace: sub-questions and what they depend on, read from the body of `<Decompose>`.

An item is `k. question [deps: #i, #j]`. It takes a line; its brackets end it too, so that several items may stand on
one line. `[deps: none]`, `[deps:]` and no brackets at all declare nothing. A reference `#i` in the question is a
dependency as well, as in QDMR.

Source: Dep-Search, section 3.2, "Decompose token"; the syntax is ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

# At most six digits: a longer number names nothing, and is never turned into one.
_ITEM = re.compile(r"([0-9]{1,6})\s*\.(?![0-9])\s*(.*?)\s*(?:\[\s*deps:([^\[\]]*)\])?", re.DOTALL)
_ITEM_END = re.compile(r"(\[\s*deps:[^\[\]]*\])|[\r\n]+")
_REFERENCE = re.compile(r"#([0-9]{1,6})(?![0-9])")
_DECLARED = re.compile(r"\s*(?:none|(?:#[0-9]{1,6}(?:\s*,\s*|\s+))*#[0-9]{1,6})?\s*")
_OPEN_DEPS = re.compile(r"\[\s*deps\b")

NO_SUB_QUESTION = "no_sub_question"
MALFORMED_LINE = "malformed_line"
DEPENDENCIES_INVALID = "dependencies_invalid"
NUMBER_WRONG = "number_wrong"
REFERENCE_TO_ITSELF = "reference_to_itself"
REFERENCE_UNKNOWN = "reference_unknown"
DEPENDENCY_CYCLE = "dependency_cycle"
NOTICES = (
    NO_SUB_QUESTION,
    MALFORMED_LINE,
    DEPENDENCIES_INVALID,
    NUMBER_WRONG,
    REFERENCE_TO_ITSELF,
    REFERENCE_UNKNOWN,
    DEPENDENCY_CYCLE,
)


class InvalidDecompositionError(ValueError):
    """A decomposition that cannot be taken; `notice` names the text that tells the policy."""

    def __init__(self, notice: str):
        super().__init__(notice)
        self.notice = notice


@dataclass(frozen=True)
class SubQuestion:
    """One sub-question.

    Attributes:
        number: from 1, over all decompositions of the session.
        text: the question, with its references `#i`.
        dependencies: numbers of the sub-questions whose answers it needs.
    """

    number: int
    text: str
    dependencies: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Trace:
    """All sub-questions of a session, in the order of their numbers, which run from 1 without a gap."""

    questions: tuple[SubQuestion, ...] = ()

    def extend(self, body: str, linear: bool = False) -> Trace:
        """The trace with the sub-questions of one more decomposition; this one stays as it is.

        The new numbers go on where the trace ends; their lines may stand in any order. A sub-question may refer to any
        other of the trace or of its own decomposition. Equal questions are sub-questions of their own.

        Args:
            body: what stands between the tags.
            linear: each sub-question depends on the one before it too (the ablation "sequential").

        Raises:
            InvalidDecompositionError: by its notice, the first of these that is the case: no sub-question; a line that
                is no item; brackets that list no references; numbers that do not go on; a reference to itself; one to
                a number that does not exist; a cycle.
        """
        new = sorted(map(_sub_question, _items(body)), key=lambda question: question.number)
        if not new:
            raise InvalidDecompositionError(NO_SUB_QUESTION)
        first = len(self.questions) + 1
        if [question.number for question in new] != list(range(first, first + len(new))):
            raise InvalidDecompositionError(NUMBER_WRONG)
        extended = Trace((*self.questions, *(map(_after_the_one_before, new) if linear else new)))
        extended._check_references()
        extended.order()
        return extended

    def order(self) -> tuple[int, ...]:
        """Numbers in the order of solving: level by level of the graph, each level by number.

        Raises:
            InvalidDecompositionError: there is a cycle.
        """
        sorter = TopologicalSorter({question.number: question.dependencies for question in self.questions})
        try:
            sorter.prepare()
        except CycleError:
            raise InvalidDecompositionError(DEPENDENCY_CYCLE) from None
        order: list[int] = []
        while sorter.is_active():
            level = sorted(sorter.get_ready())
            order += level
            sorter.done(*level)
        return tuple(order)

    def _check_references(self) -> None:
        for question in self.questions:
            if question.number in question.dependencies:
                raise InvalidDecompositionError(REFERENCE_TO_ITSELF)
            if not all(1 <= number <= len(self.questions) for number in question.dependencies):
                raise InvalidDecompositionError(REFERENCE_UNKNOWN)


def _items(body: str) -> list[str]:
    """The items of a body: its lines, cut again after each closed list of dependencies."""
    separated = _ITEM_END.sub(lambda found: f"{found.group(1) or ''}\n", body)
    return [line.strip() for line in separated.split("\n") if line.strip()]


def _sub_question(item: str) -> SubQuestion:
    found = _ITEM.fullmatch(item)
    if found is None or not found.group(2):
        raise InvalidDecompositionError(MALFORMED_LINE)
    number, text, declared = int(found.group(1)), found.group(2), found.group(3) or ""
    if _OPEN_DEPS.search(text) or not _DECLARED.fullmatch(declared):
        raise InvalidDecompositionError(DEPENDENCIES_INVALID)
    references = _REFERENCE.findall(f"{text} {declared}")
    return SubQuestion(number, text, frozenset(map(int, references)))


def _after_the_one_before(question: SubQuestion) -> SubQuestion:
    before = {question.number - 1} - {0}
    return SubQuestion(question.number, question.text, question.dependencies | before)
