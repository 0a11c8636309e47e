"""The stack as it stood after each turn of a finished session, read back from what the turns did."""

from __future__ import annotations

from dataclasses import dataclass

from verl_agentic.core.environment import Observe, Proceed, Rewrite
from verl_agentic.core.trajectory import Episode, Turn
from verl_agentic.methods.agentic_rag_r1.environment import EDITS
from verl_agentic.methods.agentic_rag_r1.stack import parse_edit


@dataclass(frozen=True)
class Entry:
    """One action on the stack.

    Attributes:
        id: its number among the session's executed actions, from 0.
        kind: its tag.
        text: the plan, thought, query, reason or summary.
        step: its turn in the session, from 0.
        row, span: the row it was sampled in, and its tokens [first, last) in that row's response.
        documents: the rendered passages of a search.
    """

    id: int
    kind: str
    text: str
    step: int
    row: int
    span: tuple[int, int]
    documents: tuple[str, ...] = ()


Memory = tuple[Entry, ...]


def memories(episode: Episode) -> list[Memory]:
    """The stack after each turn, the bottom first; a turn that did nothing leaves it as it was."""
    executed: list[Entry] = []
    stack: Memory = ()
    after: list[Memory] = []
    for row, turn in ((number, turn) for number, own in enumerate(episode.rows) for turn in own.turns):
        if isinstance(turn.effect, Observe | Proceed | Rewrite):
            executed.append(_entry(len(executed), len(after), row, turn))
            kept = [entry.id for entry in stack] + [executed[-1].id]
            if isinstance(turn.effect, Rewrite):
                kept = list(turn.effect.kept)
            stack = tuple(executed[number] for number in kept)
        after.append(stack)
    return after


def _entry(number: int, step: int, row: int, turn: Turn) -> Entry:
    assert turn.action is not None
    kind = turn.action.tag.name
    text = parse_edit(turn.action.body).text if kind in EDITS else turn.action.body
    documents = turn.effect.texts if isinstance(turn.effect, Observe) else ()
    return Entry(number, kind, text, step, row, turn.span, documents)


def as_text(memory: Memory) -> str:
    """The stack as a judge reads it: an entry a line, the bottom first, the passages of a search below it."""
    lines = []
    for place, entry in enumerate(memory, start=1):
        lines += [f"{place}. {entry.kind}: {entry.text}", *(f"   {document}" for document in entry.documents)]
    return "\n".join(lines) or "(empty)"
