"""The file of traces: sessions as token ids, ready for supervised training.

JSON lines. The first is a header {"format", "kind", "method", "recipe", "tokenizer", "source", "settings", "versions"};
then one line a session (`Trace`); the last is a footer {"sessions", "counts"}, without which the file is not whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_agentic.core.trajectory import Episode
from verl_agentic.data.files import replacing

FORMAT = 1
KIND = "verl-agentic traces"
HEADER = {"format", "kind", "method", "recipe", "tokenizer", "source", "settings", "versions"}


@dataclass(frozen=True)
class TraceRow:
    """One append-only context; `response_ids` and `response_mask` have equal length, mask 1 marks the policy's."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_mask: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.response_ids) != len(self.response_mask):
            raise ValueError(f"{len(self.response_ids)} response tokens and {len(self.response_mask)} mask entries")
        if set(self.response_mask) - {0, 1} or not any(self.response_mask):
            raise ValueError("a response mask holds something else than 0 and 1, or no 1 at all")
        if not all(type(token) is int and token >= 0 for token in self.prompt_ids + self.response_ids):
            raise ValueError("a token id is not a whole number of at least 0")

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True)
class Trace:
    """One session that ended well.

    Attributes:
        number: of the question among those that the source was asked, from 0.
        question, answer: as asked, and as the policy answered.
        score: of the answer, by the metric of the header's settings.
        texts: what the policy wrote, one text a turn, in time order.
        rows: its contexts in time order, then what an action made the policy write beside them; every token of the
            policy lies in one of them, once.
    """

    number: int
    question: str
    answer: str
    score: float
    texts: tuple[str, ...]
    rows: tuple[TraceRow, ...]

    @classmethod
    def of(cls, number: int, episode: Episode, score: float) -> Trace:
        """The trace of an episode with an answer."""
        contexts = (*episode.rows, *episode.side_rows)
        rows = tuple(TraceRow(row.prompt_ids, row.response_ids, row.response_mask) for row in contexts)
        texts = tuple(turn.text for turn in episode.turns)
        return cls(number, episode.question, episode.prediction or "", score, texts, rows)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Trace:
        """Raises ValueError, TypeError or KeyError for anything but what `asdict` gives."""
        rows = tuple(TraceRow(**{name: tuple(ids) for name, ids in row.items()}) for row in record["rows"])
        return cls(**{**record, "texts": tuple(record["texts"]), "rows": rows})


@dataclass(frozen=True)
class TraceFile:
    """What a file of traces holds: its header, the sessions, and how many sessions ended in which way."""

    header: Mapping[str, Any]
    traces: tuple[Trace, ...]
    counts: Mapping[str, int]


def fingerprint(tokenizer: Any) -> str:
    """What traces and a model must agree in: the text of every token id, 16 hexadecimal digits."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def write_traces(path: Path, header: Mapping[str, Any], traces: Iterable[Trace], counts: Mapping[str, int]) -> None:
    """Write a whole file, or none."""
    records = [asdict(trace) for trace in traces]
    lines = [{"format": FORMAT, "kind": KIND, **header}, *records, {"sessions": len(records), "counts": dict(counts)}]
    with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def read_traces(path: Path) -> TraceFile:
    """Read a file of traces.

    Raises:
        ValueError: in one sentence, where it is missing, no file of traces, of a newer format, damaged or empty.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"the trace file {path} does not exist; write one with `verl-agentic traces`.") from None
    except UnicodeDecodeError:
        lines = ["not text"]
    header = _header(path, lines[0] if lines else "")
    footer = _record(lines[-1])
    if not isinstance(footer, dict) or footer.keys() != {"sessions", "counts"}:
        raise ValueError(f"{path} is cut short: its last line is no footer; write the traces again.")
    traces = tuple(_trace(path, number, line) for number, line in enumerate(lines[1:-1], start=2))
    if footer["sessions"] != len(traces):
        raise ValueError(f"{path} is damaged: it holds {len(traces)} sessions of {footer['sessions']}; write it again.")
    if not traces:
        raise ValueError(f"{path} holds no session; write traces of a source that answers some questions right.")
    return TraceFile(header, traces, footer["counts"])


def _header(path: Path, line: str) -> dict[str, Any]:
    header = _record(line)
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ValueError(f"{path} is not a file of traces; give one that `verl-agentic traces` wrote.")
    if header["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {header['format']}, this version reads {FORMAT}; install the version that wrote it, or "
            "write the traces again."
        )
    if missing := HEADER - header.keys():
        raise ValueError(f"{path} is damaged: its header lacks {min(missing)!r}; write the traces again.")
    return header


def _trace(path: Path, number: int, line: str) -> Trace:
    try:
        return Trace.read(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"line {number} of {path} is damaged ({error}); write the traces again.") from error


def _record(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
