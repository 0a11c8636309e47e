"""Collecting traces: what becomes of each session, on record as it ends, and the file that is made of the good ones.

Beside OUT lies OUT.sessions.jsonl, to which every session is appended; the same command goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from verl_agentic import __version__
from verl_agentic.core.answers import cover_match, exact_match, f1_score
from verl_agentic.core.outcomes import InfraFault, ModelFault
from verl_agentic.core.trajectory import Episode
from verl_agentic.data.ledger import Ledger
from verl_agentic.warm_start.trace_file import Trace, write_traces

METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {"em": exact_match, "f1": f1_score, "cover": cover_match}
KEPT, WRONG, INVALID_TURN = "kept", "wrong_answer", "invalid_turn"
SHOWN_EVERY = 16  # sessions
Line = Callable[[str], None]


@dataclass(frozen=True)
class Standard:
    """Which answers are right: those whose metric (em, f1 or cover) reaches the threshold, in (0, 1]."""

    metric: str = "em"
    threshold: float = 1.0

    def __post_init__(self) -> None:
        if self.metric not in METRICS or not 0 < self.threshold <= 1:
            raise ValueError(
                f"--metric must be one of {', '.join(METRICS)} and --threshold above 0 and at most 1, got "
                f"{self.metric!r} and {self.threshold:g}."
            )

    def judge(self, number: int, episode: Episode, golds: Sequence[str]) -> tuple[str, Trace | None]:
        """What becomes of a session, and its trace where it is kept.

        A session ends well where its outcome is ok, no turn of it was invalid, and the answer is right: a policy is to
        learn from every turn of a trace. Raises ValueError for a session that the infrastructure broke off.
        """
        if isinstance(episode.outcome, InfraFault):
            raise ValueError(f"not a session that ended: {episode.outcome.message}")
        if isinstance(episode.outcome, ModelFault):
            return episode.outcome.code.value, None
        if any(turn.fault for turn in episode.turns):
            return INVALID_TURN, None
        score = METRICS[self.metric](episode.prediction or "", golds)
        return (KEPT, Trace.of(number, episode, score)) if score >= self.threshold else (WRONG, None)


class Collection:
    """The sessions of one command, by number.

    Args:
        out: the file of traces.
        count: sessions that are due.
        standard: which of them are kept.
        settings: what they depend on (method, recipe, tokenizer and source among it); a run with others is refused.
        line: shows progress.

    Raises:
        ValueError: the record beside `out` is damaged or of other settings.
    """

    def __init__(self, out: Path, count: int, standard: Standard, settings: Mapping[str, Any], line: Line):
        if count < 1:
            raise ValueError(f"--count must be at least 1, got {count}.")
        self._out, self._count, self._standard, self._line = out, count, standard, line
        self.settings = {**settings, "count": count, **asdict(standard)}
        path = out.with_name(f"{out.name}.sessions.jsonl")
        self._ledger = Ledger(path, "traces", self.settings)
        self._traces: dict[int, Trace] = {}
        self._reasons: dict[int, str] = {}
        try:
            for entry in self._ledger.entries:
                self._note(entry["number"], entry["reason"], Trace.read(entry["trace"]) if entry["trace"] else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete it to start again.") from error
        if self._reasons:
            line(f"traces: {len(self._reasons)} sessions taken from {path}")

    @property
    def left(self) -> list[int]:
        """Numbers of the sessions that have not ended yet."""
        return [number for number in range(self._count) if number not in self._reasons]

    def add(self, sessions: Sequence[tuple[int, Episode, Sequence[str]]]) -> None:
        """Put ended sessions on record: number, episode and gold aliases of each."""
        found = [(number, *self._standard.judge(number, episode, golds)) for number, episode, golds in sessions]
        records = [(number, reason, asdict(trace) if trace else None) for number, reason, trace in found]
        self._ledger.append({"number": n, "reason": reason, "trace": trace} for n, reason, trace in records)
        for number, reason, trace in found:
            self._note(number, reason, trace)
        ended = len(self._reasons)
        if ended == self._count or ended // SHOWN_EVERY > (ended - len(found)) // SHOWN_EVERY:
            shown = ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts().items()))
            self._line(f"traces {ended}/{self._count}: {shown}")

    def counts(self) -> dict[str, int]:
        """Sessions by what became of them; `kept` is always there."""
        return {KEPT: 0, **Counter(self._reasons.values())}

    def write(self, failed: int = 0) -> dict[str, int]:
        """Write the file of traces; `failed` sessions met a fault of the infrastructure. Returns the counts."""
        counts = {**self.counts(), "infra_fault": failed}
        versions = {"verl_agentic": __version__, "transformers": version("transformers")}
        traces = [self._traces[number] for number in sorted(self._traces)]
        header = {name: self.settings[name] for name in ("method", "recipe", "tokenizer", "source")}
        write_traces(self._out, {**header, "settings": self.settings, "versions": versions}, traces, counts)
        self._line(f"traces: {len(traces)} of {self._count} sessions kept in {self._out}")
        return counts

    def _note(self, number: int, reason: str, trace: Trace | None) -> None:
        self._reasons[number] = reason
        if trace:
            self._traces[number] = trace
