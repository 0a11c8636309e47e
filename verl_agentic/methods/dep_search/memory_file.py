"""A memory as a file: what an inference run knows from earlier questions, and keeps for later ones.

JSON lines in UTF-8. The first says `{"format": "dep_search memory", "version": 1, "entries": N}`; each of the N others
is an entry `{"text": ..., "vector": [...], "written": ..., "used": ...}`.

Source: Dep-Search, section 3.3: a cross-question memory may be injected at inference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_agentic.data.files import replacing
from verl_agentic.methods.dep_search.memory import Entry, Memory

FORMAT = "dep_search memory"
VERSION = 1


def save(memory: Memory, path: Path) -> None:
    """Write a memory to `path`, whole or not at all; missing parent folders are made."""
    header = {"format": FORMAT, "version": VERSION, "entries": len(memory)}
    lines = [header, *(_as_json(entry) for entry in memory.entries)]
    with replacing(path) as partial:
        partial.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")


def load(path: Path) -> tuple[Entry, ...]:
    """The entries of a saved memory, for `Memory(capacity, entries)`; the file is only read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no memory, is damaged, or was written by a newer version.
    """
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        header = _object(lines[0])
    except ValueError:
        raise _no_memory(path) from None
    if header.get("format") != FORMAT or not _whole(header.get("version")) or header["version"] < 1:
        raise _no_memory(path)
    if header["version"] > VERSION:
        raise ValueError(
            f"the memory file {path} has version {header['version']} and this program reads up to {VERSION}; use the "
            "version of verl-agentic that wrote it, or a newer one"
        )
    if header.get("entries") != len(lines) - 1:
        raise ValueError(
            f"the memory file {path} should hold {header.get('entries')} entries and holds {len(lines) - 1}; it was "
            "cut or added to, so take it from a copy or start without it"
        )
    return _entries(path, lines[1:])


def _no_memory(path: Path) -> ValueError:
    return ValueError(f"{path} is no memory file of dep_search: its first line is no header; name another file")


def _entries(path: Path, lines: Sequence[str]) -> tuple[Entry, ...]:
    entries = []
    for number, line in enumerate(lines, start=2):
        try:
            entries.append(_entry(_object(line)))
        except (ValueError, KeyError):
            raise ValueError(
                f"line {number} of the memory file {path} is no entry; take the file from a copy or start without it"
            ) from None
    try:
        Memory(max(1, len(entries)), entries)
    except ValueError as error:
        raise ValueError(
            f"the memory file {path} is damaged: {error}; take it from a copy or start without it"
        ) from None
    return tuple(entries)


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"text": entry.text, "vector": entry.vector, "written": entry.written, "used": entry.used}


def _object(line: str) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _entry(found: dict[str, Any]) -> Entry:
    text, vector, written, used = (found[key] for key in ("text", "vector", "written", "used"))
    numbers = isinstance(vector, list) and vector and all(map(_number, vector))
    if not (isinstance(text, str) and text and numbers and _whole(written) and _whole(used)):
        raise ValueError("a value is of the wrong type")
    return Entry(text, tuple(map(float, vector)), written, used)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
