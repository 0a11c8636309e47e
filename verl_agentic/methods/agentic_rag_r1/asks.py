"""What the judge is asked about a session: how relevant each search was, and how helpful each edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agentic.core.environment import Observe, Rewrite
from verl_agentic.core.judging import Ask
from verl_agentic.core.trajectory import Episode
from verl_agentic.methods.agentic_rag_r1.memory import Memory, as_text, memories

FORMAT, RETRIEVAL, MEMORY = "format", "retrieval", "memory"
PROCESS = (FORMAT, RETRIEVAL, MEMORY)
# An edit judged by the stack before and after it has a question, and so a kind of ask, of its own.
MEMORY_CHANGE = "memory_change"
AFTER, BEFORE_AND_AFTER = "after", "before_and_after"
MEMORY_VIEWS = {AFTER: MEMORY, BEFORE_AND_AFTER: MEMORY_CHANGE}


def judged_kinds(knobs: Mapping[str, Any]) -> Sequence[str]:
    """The kinds of ask that the knobs `process` and `memory_view` lead to."""
    kinds = {RETRIEVAL: RETRIEVAL, MEMORY: MEMORY_VIEWS[knobs["memory_view"]]}
    return [ask for process, ask in kinds.items() if process in knobs["process"]]


def asks(episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any]) -> Sequence[Ask]:
    """One ask for each executed search and edit, in time order, of the kinds that are on.

    A search is judged by its query and all passages that it brought; an edit by the current stack, that after it, and
    with `memory_view: before_and_after` by that before it too.

    Source: AgenticRAG-R1, retrieval reward and memory reward.
    """
    kinds = judged_kinds(knobs)
    after = memories(episode)
    made = []
    for number, turn in enumerate(episode.turns):
        if isinstance(turn.effect, Observe):
            made.append(_search(episode.question, number, after[number]))
        elif isinstance(turn.effect, Rewrite):
            made.append(_edit(episode.question, number, after[number - 1], after[number], knobs))
    return [ask for ask in made if ask.kind in kinds]


def _search(question: str, turn: int, memory: Memory) -> Ask:
    entry = memory[-1]
    documents = "\n".join(entry.documents)
    return Ask(RETRIEVAL, turn, (("question", question), ("query", entry.text), ("documents", documents)))


def _edit(question: str, turn: int, before: Memory, after: Memory, knobs: Mapping[str, Any]) -> Ask:
    entry, kind = after[-1], MEMORY_VIEWS[knobs["memory_view"]]
    fields = [("question", question), ("action", entry.kind), ("text", entry.text), ("stack", as_text(after))]
    if kind == MEMORY_CHANGE:
        fields.insert(3, ("before", as_text(before)))
    return Ask(kind, turn, tuple(fields))
