"""When an item needs no search, or one trivial search: the data recipe of AgenticRAG-R1, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from verl_agentic.core.answers import cover_match, exact_match, normalize_answer
from verl_agentic.core.environment import Passage

_YES_NO = frozenset({"yes", "no", "noanswer"})


class Verdict(StrEnum):
    """What becomes of an item, and why."""

    KEPT = "kept"
    NO_RETRIEVAL = "no_retrieval"  # a model without a retriever answers it
    ONE_SEARCH = "one_search"  # its own words, taken as the query, bring a passage that holds an answer


@dataclass(frozen=True)
class Decision:
    """What was found of one item.

    Attributes:
        number: its row in the file, from 0.
        verdict: what becomes of it.
        right: share in [0, 1] of the closed-book attempts that were right; None where none was made.
        judged_by_search: whether its aliases could be looked for in passages; None where they were not.
    """

    number: int
    verdict: Verdict
    right: float | None = None
    judged_by_search: bool | None = None


def findable(golds: Sequence[str]) -> list[str]:
    """The aliases whose presence in a passage means something: neither yes or no, nor a single letter or digit."""
    normal = [(gold, normalize_answer(gold)) for gold in golds]
    return [gold for gold, form in normal if len(form) > 1 and form not in _YES_NO]


def holds_answer(passages: Sequence[Passage], golds: Sequence[str]) -> bool:
    """Whether a passage holds one of the aliases that mean something there, as a run of whole tokens."""
    named = findable(golds)
    return bool(named) and any(cover_match(passage.contents, named) for passage in passages)


def right_share(answers: Sequence[str], golds: Sequence[str]) -> float:
    """Share in [0, 1] of at least one answer that match an alias exactly, after normalisation."""
    return sum(exact_match(answer, golds) for answer in answers) / len(answers)


def read_answer(text: str) -> str:
    """The answer in a model's reply: its first line with something on it, after any thinking."""
    said = text.rpartition("</think>")[2]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0] if lines else ""
