"""Reading a corpus: JSON lines (plain or gzip), one passage a line, with `id` and `contents` or `title` + `text`."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retriever_server.errors import CorpusError

EXPECTED = 'expected {"id", "contents"} or {"id", "title", "text"}'


@dataclass(frozen=True)
class Passage:
    """One passage; `contents` is what is indexed and returned, by custom a quoted title, a newline and the text."""

    id: str
    contents: str


def join_title(title: str, text: str) -> str:
    """Return the usual retrieval format of a titled passage: `"title"`, a newline, the text."""
    return f'"{title}"\n{text}'


def read_corpus(path: Path) -> Iterator[Passage]:
    """Yield the passages of `path` (.jsonl or .jsonl.gz) in file order.

    Raises CorpusError, naming file and line, on a missing file, bad JSON, bad UTF-8, a row without the expected keys or
    an identifier that an earlier row has.
    """
    line_number = 0
    seen: set[int] = set()  # 64-bit hashes: a fraction of the identifiers' memory, and no two of 10^7 are likely equal
    try:
        with _open(path) as lines:
            for line_number, raw in enumerate(lines, start=1):
                if raw.strip():
                    passage = _parse_line(raw, f"{path} line {line_number}")
                    if hash(passage.id) in seen:
                        raise CorpusError(f"{path} line {line_number} repeats the id '{passage.id}'; make ids unique.")
                    seen.add(hash(passage.id))
                    yield passage
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path} cannot be read after line {line_number}: {error}.") from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the file's bytes in hexadecimal; raises CorpusError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"The corpus {path} cannot be read: {error.strerror}.") from error


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _parse_line(raw: bytes, where: str) -> Passage:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise CorpusError(f"{where} is not a JSON object: {error}.") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where} holds a JSON {type(row).__name__}; {EXPECTED}.")
    return Passage(_identifier(row, where), _contents(row, where))


def _identifier(row: dict[str, Any], where: str) -> str:
    value = row.get("id")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise CorpusError(f"{where} has no usable `id` (a string or a whole number); {EXPECTED}, found {_keys(row)}.")
    return _encodable(str(value), "id", where)


def _contents(row: dict[str, Any], where: str) -> str:
    if "contents" in row:
        return _text(row, "contents", where)
    if "title" in row and "text" in row:
        return join_title(_text(row, "title", where), _text(row, "text", where))
    raise CorpusError(f"{where} has no `contents`; {EXPECTED}, found {_keys(row)}.")


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise CorpusError(f"{where} has a `{key}` that is not a non-empty string.")
    return _encodable(value, key, where)


def _encodable(value: str, key: str, where: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise CorpusError(f"{where} has a lone surrogate in `{key}`; write the character as UTF-8.")
    return value


def _keys(row: dict[str, Any]) -> str:
    return "{" + ", ".join(f'"{key}"' for key in list(row)[:8]) + "}"
