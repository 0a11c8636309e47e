"""An episode read back from a finished response, for verl's own single-turn loop."""

from __future__ import annotations

from verl_agentic.core.grammar import Grammar
from verl_agentic.core.outcomes import FaultCode, ModelFault, Ok, Outcome
from verl_agentic.core.trajectory import Episode, Row, Turn


def episode_from_response(question: str, text: str, response_ids: list[int], grammar: Grammar) -> Episode:
    """Read a response that the policy wrote in one piece.

    All of it is the policy's, so an observation in it is forged markup, and a search leads nowhere.

    Args:
        question: the question.
        text: the decoded response, end-of-turn token stripped.
        response_ids: its tokens.
        grammar: the method's tags.
    """
    parsed = grammar.parse(text)
    turn = Turn(0, len(response_ids), text, parsed.action, parsed.fault, dropped_tokens=0, tags_seen=parsed.tags_seen)
    row = Row((), tuple(response_ids), (1,) * len(response_ids), None, (turn,))
    if parsed.action and parsed.action.tag.terminal:
        return Episode(question=question, rows=(row,), outcome=Ok(), prediction=parsed.action.body)
    outcome: Outcome = ModelFault(parsed.fault or FaultCode.TURNS_EXHAUSTED)
    return Episode(question=question, rows=(row,), outcome=outcome, prediction=None)
