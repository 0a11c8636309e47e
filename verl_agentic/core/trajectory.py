"""What a rollout leaves behind: turns inside rows inside an episode.

A row is one append-only token sequence: a prompt and a response in which the policy's tokens (mask 1) and the
environment's (mask 0) alternate. An episode is one session: usually one row, several where a method edits its context
or asks several agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from verl_agentic.core.environment import Effect
from verl_agentic.core.grammar import Action
from verl_agentic.core.outcomes import FaultCode, Outcome


class TokenTruthError(AssertionError):
    """A row's tokens, masks, log-probabilities or rewards contradict each other or what was sampled."""


@dataclass(frozen=True)
class SideCall:
    """A generation that an action asked for, which is no part of a row and is never trained."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """One turn of the policy.

    Attributes:
        start, end: its token span [start, end) in the row's response.
        text: the decoded span, end-of-turn token included.
        action, fault: what the parser found; exactly one is set.
        dropped_tokens: sampled tokens after the completed action, neither kept nor trained.
        tags_seen: markup outside the thinking, executed or not.
        effect: what executing the action did; None where there was nothing to execute.
        action_span: the tokens [first, last) of the row's response that hold the action with its tags, found from the
            ids that were generated; None where no action was found.
        side_call: the generation that executing the action took, if any.
    """

    start: int
    end: int
    text: str
    action: Action | None
    fault: FaultCode | None
    dropped_tokens: int
    tags_seen: int = 0
    effect: Effect | None = None
    action_span: tuple[int, int] | None = None
    side_call: SideCall | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The action's tokens, or the whole turn's where no action was found."""
        return self.action_span or (self.start, self.end)

    @property
    def untrained_tokens(self) -> int:
        """Tokens sampled after the kept ones: those that were dropped, and those of the side call."""
        return self.dropped_tokens + (len(self.side_call.response_ids) if self.side_call else 0)


@dataclass(frozen=True)
class Row:
    """One training row; `response_ids`, `response_mask` and `log_probs` (if any) have equal length."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_mask: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    turns: tuple[Turn, ...]

    @property
    def last_trainable(self) -> int | None:
        """Index in the response of the last policy token, or None where there is none."""
        positions = [i for i, m in enumerate(self.response_mask) if m]
        return positions[-1] if positions else None


@dataclass(frozen=True)
class Episode:
    """One session of one question.

    Attributes:
        question: the question as asked.
        rows: its rows in time order, at least one.
        outcome: how it ended.
        prediction: the answer given, or None.
        actions: count of executed actions by tag name.
        corrections: invalid turns that were answered by a corrective message.
        passages: the ids retrieved, one tuple a search.
    """

    question: str
    rows: tuple[Row, ...]
    outcome: Outcome
    prediction: str | None
    actions: dict[str, int] = field(default_factory=dict)
    corrections: int = 0
    passages: tuple[tuple[str, ...], ...] = ()

    @property
    def turns(self) -> list[Turn]:
        return [turn for row in self.rows for turn in row.turns]

    @property
    def side_rows(self) -> list[Row]:
        """The side calls as rows without turns: for supervised training alone, never for reinforcement learning."""
        calls = [turn.side_call for turn in self.turns if turn.side_call and turn.side_call.response_ids]
        return [Row(call.prompt_ids, call.response_ids, (1,) * len(call.response_ids), None, ()) for call in calls]

    @property
    def dropped_tokens(self) -> int:
        return sum(turn.dropped_tokens for turn in self.turns)


@dataclass
class RowBuilder:
    """A row while it grows; only appends, so that what generation saw is what is trained."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    has_log_probs: bool = True

    @property
    def context(self) -> list[int]:
        """Prompt and response so far: what the next generation call is given."""
        return self.prompt_ids + self.response_ids

    def append_policy(self, ids: Sequence[int], log_probs: Sequence[float] | None) -> tuple[int, int]:
        """Append sampled tokens (mask 1); returns their span in the response."""
        start = len(self.response_ids)
        if log_probs is None:
            self.has_log_probs = False
            log_probs = [0.0] * len(ids)
        if len(log_probs) != len(ids):
            raise TokenTruthError(f"generation returned {len(ids)} tokens and {len(log_probs)} log-probabilities")
        self._extend(ids, log_probs, mask=1)
        return start, len(self.response_ids)

    def append_environment(self, ids: Sequence[int]) -> None:
        """Append tokens that the environment wrote (mask 0)."""
        self._extend(ids, [0.0] * len(ids), mask=0)

    def _extend(self, ids: Sequence[int], log_probs: Sequence[float], mask: int) -> None:
        self.response_ids.extend(ids)
        self.log_probs.extend(log_probs)
        self.response_mask.extend([mask] * len(ids))

    def freeze(self) -> Row:
        return Row(
            prompt_ids=tuple(self.prompt_ids),
            response_ids=tuple(self.response_ids),
            response_mask=tuple(self.response_mask),
            log_probs=tuple(self.log_probs) if self.has_log_probs else None,
            turns=tuple(self.turns),
        )


def check_episode(episode: Episode, rewards: Sequence[Sequence[float]], sampled: Sequence[int]) -> None:
    """Token truth of an episode.

    Args:
        episode: its rows.
        rewards: per row, per response token.
        sampled: every id that generation returned, in order, as recorded where it was returned.

    Raises:
        TokenTruthError: lengths differ; a mask is not 0/1; the tokens under mask 1 are not exactly the sampled ones in
            order, dropped tails and side calls apart; a reward or log-probability is not finite; a reward lies on a
            token that is not trained.
    """
    if len(rewards) != len(episode.rows):
        raise TokenTruthError(f"an episode has {len(episode.rows)} rows and rewards for {len(rewards)}")
    for row, row_rewards in zip(episode.rows, rewards, strict=True):
        _check_lengths(row, row_rewards)
        _check_finite(row, row_rewards)
    lengths = [(turn.end - turn.start, turn.untrained_tokens) for turn in episode.turns]
    kept = kept_tokens(sampled, lengths)
    trained = [t for row in episode.rows for t, m in zip(row.response_ids, row.response_mask, strict=True) if m]
    if trained != kept:
        raise TokenTruthError(f"the {len(trained)} trained tokens are not the {len(kept)} kept sampled ones in order")


def kept_tokens(sampled: Sequence[int], turn_lengths: Iterable[tuple[int, int]]) -> list[int]:
    """The sampled ids less those after each turn that are not trained.

    Args:
        sampled: every id that generation returned, in order.
        turn_lengths: per turn, the tokens kept and those after them that were not.

    Raises:
        TokenTruthError: the turns do not account for exactly the sampled ids.
    """
    kept: list[int] = []
    position = 0
    for length, dropped in turn_lengths:
        kept.extend(sampled[position : position + length])
        position += length + dropped
    if position != len(sampled):
        raise TokenTruthError(f"the turns account for {position} sampled tokens, generation returned {len(sampled)}")
    return kept


def _check_lengths(row: Row, rewards: Sequence[float]) -> None:
    n = len(row.response_ids)
    lengths = {"mask entries": len(row.response_mask), "rewards": len(rewards)}
    if row.log_probs is not None:
        lengths["log-probabilities"] = len(row.log_probs)
    for name, length in lengths.items():
        if length != n:
            raise TokenTruthError(f"a row has {n} response tokens and {length} {name}")
    if set(row.response_mask) - {0, 1}:
        raise TokenTruthError(f"a response mask holds {sorted(set(row.response_mask))}, only 0 and 1 are allowed")


def _check_finite(row: Row, rewards: Sequence[float]) -> None:
    if not all(map(isfinite, [*rewards, *(row.log_probs or ())])):
        raise TokenTruthError("a reward or log-probability of a row is not finite")
    misplaced = [i for i, (r, m) in enumerate(zip(rewards, row.response_mask, strict=True)) if r and not m]
    if misplaced:
        raise TokenTruthError(f"a reward lies on response token {misplaced[0]}, which is not trained")
