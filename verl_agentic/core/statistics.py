"""Statistics of a session that mean the same for every method: which actions were done, how long its contexts were."""

from __future__ import annotations

from verl_agentic.core.grammar import Grammar
from verl_agentic.core.trajectory import Episode


def action_counts(episode: Episode, grammar: Grammar) -> dict[str, float]:
    """Executed non-terminal actions by tag, 0.0 for those never done, as `actions/TAG`."""
    names = [action.name for action in grammar.actions if not action.terminal]
    return {f"actions/{name}": float(episode.actions.get(name, 0)) for name in names}


def context_lengths(episode: Episode) -> list[tuple[int, int]]:
    """Tokens before each turn: those that the policy saw, and those of the same session had nothing been edited away.

    The second is the first prompt and everything that was written since, by policy or environment; equal to the first
    in a session of one row.
    """
    lengths = []
    written = len(episode.rows[0].prompt_ids)
    for row in episode.rows:
        lengths += [(len(row.prompt_ids) + turn.start, written + turn.start) for turn in row.turns]
        written += len(row.response_ids)
    return lengths


def session_statistics(episode: Episode, grammar: Grammar) -> dict[str, float]:
    """Scalars of a session: `actions/TAG`, `context/seen` and `context/unedited` (mean tokens per turn), `rows`."""
    lengths = context_lengths(episode)
    return {
        **action_counts(episode, grammar),
        "context/seen": sum(seen for seen, _ in lengths) / len(lengths),
        "context/unedited": sum(unedited for _, unedited in lengths) / len(lengths),
        "rows": float(len(episode.rows)),
    }
