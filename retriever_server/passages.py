"""Passages of an index on disk: a JSON-lines file with line offsets, read at random without loading it."""

from __future__ import annotations

import json
import mmap
import os
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from retriever_server.corpus import Passage
from retriever_server.errors import IndexRefused

PASSAGES = "passages.jsonl"
OFFSETS = "passages.offsets.npy"


def write_passages(folder: Path, passages: Iterable[Passage]) -> int:
    """Write `passages` into `folder` in order, one row each, and return how many there were."""
    offsets = array("q", [0])  # 8 bytes a passage
    with open(folder / PASSAGES, "wb") as file:
        for passage in passages:
            record = {"id": passage.id, "contents": passage.contents}
            offsets.append(offsets[-1] + file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n"))
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    return len(offsets) - 1


class PassageStore:
    """Row number -> Passage, memory-mapped; rows are those of the index that was built with it.

    Raises OSError or ValueError when a file is missing or the two do not fit, IndexRefused for a row that is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        if self._offsets.dtype != np.int64 or self._offsets.ndim != 1 or not len(self._offsets):
            raise ValueError(f"{OFFSETS} holds no offsets")
        with open(folder / PASSAGES, "rb") as file:
            size, expected = os.fstat(file.fileno()).st_size, int(self._offsets[-1])
            if size != expected:
                raise ValueError(f"{PASSAGES} has {size} bytes instead of {expected}")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if len(self) else b""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside the {len(self)} passages of this index")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            record = json.loads(self._bytes[start:end])
            return Passage(_text(record["id"]), _text(record["contents"]))
        except (ValueError, KeyError, TypeError) as error:
            raise IndexRefused(f"Passage {row} of {self._folder} is damaged; build the index again.") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a passage's values are strings")
    return value
