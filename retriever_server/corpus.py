"""Reading a corpus: JSON lines (plain or gzip), one passage a line, with `id` and `contents` or `title` + `text`."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retriever_server.errors import CorpusError

BUFFER = 1 << 20  # bytes of one read
EXPECTED = 'expected {"id", "contents"} or {"id", "title", "text"}'


@dataclass(frozen=True)
class Passage:
    """One passage; `contents` is what is indexed and returned, by custom a quoted title, a newline and the text."""

    id: str
    contents: str


def join_title(title: str, text: str) -> str:
    """Return the usual retrieval format of a titled passage: `"title"`, a newline, the text."""
    return f'"{title}"\n{text}'


class CorpusReader:
    """The passages of a .jsonl or .jsonl.gz file in file order, read line by line.

    Iterating raises CorpusError, naming file and line, on a missing file, bad JSON, bad UTF-8, a row without the
    expected keys, and at the end on an identifier that two rows have. `sha256`, of the file's bytes, is known once it
    was read to its end; of an identifier 8 bytes are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was read of the file, compressed as it is, in hexadecimal."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[Passage]:
        self.bytes_read, self._digest = 0, hashlib.sha256()
        hashes = array("q")
        for _, passage in self._numbered():
            hashes.append(hash(passage.id))
            yield passage
        repeated = _repeated(hashes)
        if repeated:
            self._refuse_repeats(repeated)

    def _numbered(self) -> Iterator[tuple[int, Passage]]:
        line_number = 0
        try:
            with open(self.path, "rb", buffering=0) as file, _lines(self.path, _Watched(file, self._watch)) as lines:
                for line_number, raw in enumerate(lines, start=1):
                    if line_number == 1:
                        raw = raw.removeprefix(codecs.BOM_UTF8)
                    if raw.strip():
                        yield line_number, _parse_line(raw, f"{self.path} line {line_number}")
        except (OSError, EOFError, zlib.error) as error:
            raise CorpusError(f"{self.path} cannot be read after line {line_number}: {error}.") from error

    def _watch(self, data: memoryview) -> None:
        self.bytes_read += len(data)
        self._digest.update(data)

    def _refuse_repeats(self, hashes: set[int]) -> None:
        # two identifiers may share a hash: the second reading compares the identifiers themselves
        first: dict[str, int] = {}
        digest = self._digest
        for line_number, passage in self._numbered():
            if hash(passage.id) not in hashes:
                continue
            if passage.id in first:
                raise CorpusError(
                    f"{self.path} line {line_number} repeats the id '{passage.id}' of line {first[passage.id]}; "
                    "make ids unique."
                )
            first[passage.id] = line_number
        self._digest = digest


def read_corpus(path: Path) -> Iterator[Passage]:
    """Yield the passages of `path` in file order; raises CorpusError as CorpusReader does."""
    return iter(CorpusReader(path))


def corpus_stat(path: Path) -> list[int]:
    """Return the bytes of a corpus file and its time of change in nanoseconds; raises CorpusError when it is none."""
    try:
        stat = path.stat()
    except OSError as error:
        raise CorpusError(f"The corpus {path} cannot be read: {error.strerror}.") from error
    if not path.is_file():
        raise CorpusError(f"The corpus {path} is not a file; expected .jsonl or .jsonl.gz.")
    return [stat.st_size, stat.st_mtime_ns]


def _repeated(hashes: array[int]) -> set[int]:
    ordered = np.sort(np.frombuffer(hashes, dtype=np.int64)) if hashes else np.empty(0, dtype=np.int64)
    return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())


class _Watched(io.RawIOBase):
    """A file that shows every byte read from it to `watch`."""

    def __init__(self, file: io.RawIOBase, watch: Callable[[memoryview], None]) -> None:
        self._file = file
        self._watch = watch

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self._watch(memoryview(buffer)[:count])
        return count


def _lines(path: Path, file: io.RawIOBase) -> Any:
    buffered = io.BufferedReader(file, BUFFER)
    return gzip.GzipFile(fileobj=buffered) if path.suffix == ".gz" else buffered


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the file's bytes in hexadecimal; raises CorpusError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"The corpus {path} cannot be read: {error.strerror}.") from error


def _parse_line(raw: bytes, where: str) -> Passage:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
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
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{where} has a lone surrogate in `{key}`; write the character as UTF-8.") from error
    return value


def _keys(row: dict[str, Any]) -> str:
    return "{" + ", ".join(f'"{key}"' for key in list(row)[:8]) + "}"
