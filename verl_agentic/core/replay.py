"""An episode read back from a finished response, for loops that are not ours (verl's own single-turn and tool loops)."""

from __future__ import annotations

import re

from verl_agentic.core.grammar import Grammar, Parsed
from verl_agentic.core.outcomes import FaultCode, ModelFault, Ok, Outcome
from verl_agentic.core.trajectory import Episode, Row, Turn


def episode_from_response(
    question: str, text: str, response_ids: list[int], response_mask: list[int], grammar: Grammar
) -> Episode:
    """Parse a response turn by turn, as the turn engine would have.

    The text is split at the environment's observation blocks; each piece between them is one turn of the policy. The
    token spans of the turns are not known, so the whole response is one span: only rewards on the last trainable token
    can be placed.

    Args:
        question: the question.
        text: the decoded response, end-of-turn token stripped.
        response_ids: its tokens.
        response_mask: 1 for the policy's tokens.
        grammar: the method's tags.
    """
    pieces = _observations(grammar).split(text)
    parsed = [grammar.parse(piece) for piece in pieces]
    actions: dict[str, int] = {}
    for turn in parsed[: len(pieces) - 1]:
        if turn.action:
            actions[turn.action.tag.name] = actions.get(turn.action.tag.name, 0) + 1
    last = parsed[-1]
    span = Turn(0, len(response_ids), text, last.action, last.fault, dropped_tokens=0, tags_seen=last.tags_seen)
    row = Row((), tuple(response_ids), tuple(response_mask), None, (span,))
    prediction, outcome = _ending(last)
    return Episode(question=question, rows=(row,), outcome=outcome, prediction=prediction, actions=actions)


def _observations(grammar: Grammar) -> re.Pattern[str]:
    blocks = (f"<{name}>.*?</{name}>" for name in map(re.escape, grammar.observation))
    return re.compile("|".join(blocks) or r"(?!)", re.DOTALL)


def _ending(last: Parsed) -> tuple[str | None, Outcome]:
    if last.action and last.action.tag.terminal:
        return last.action.body, Ok()
    return None, ModelFault(last.fault or FaultCode.TURNS_EXHAUSTED)
