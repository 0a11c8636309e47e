"""Vectors in files of a fixed number of rows, so that a build that was killed goes on where it stood."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from retriever_server.backends.base import Rows
from retriever_server.backends.dense import refuse_not_finite
from retriever_server.encoders import Encoder, Vectors, encode_passages
from retriever_server.errors import IndexRefused


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that is there whole or not at all, whenever the process is killed."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with open(unfinished, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


class Chunks:
    """The float32 vectors of `count` passages in `folder`, `size` rows a file."""

    def __init__(self, folder: Path, count: int, size: int, dimension: int) -> None:
        self._folder = folder
        self._size = size
        self.count = count
        self.dimension = dimension

    def present(self) -> int:
        """Return the number of vectors that an earlier run has written."""
        return sum(self._rows_of(start) for start in self._starts() if self._path(start).is_file())

    def encode(self, passages: Rows, encoder: Encoder, progress: Callable[[int, int], None]) -> None:
        """Encode what is not there yet; `progress` gets the rows there are, and those made now, after each file.

        Raises EncoderError, naming the passage, for a vector with NaN or infinity (case P28).
        """
        self._folder.mkdir(exist_ok=True)
        made = 0
        for start in self._starts():
            rows = range(start, start + self._rows_of(start))
            if not self._is_whole(start):
                vectors = encode_passages(encoder, [passages[row].contents for row in rows])
                refuse_not_finite(vectors, passages, start, encoder)
                write_atomically(self._path(start), lambda file, whole=vectors: np.save(file, whole))  # type: ignore[misc]
                made += len(rows)
            progress(rows.stop, made)

    def blocks(self, first: int = 0, stop: int | None = None) -> Iterator[Vectors]:
        """Yield the vectors of the rows `first` to `stop` in order, one file at a time."""
        stop = self.count if stop is None else stop
        for start in range(first - first % self._size, stop, self._size):
            block = np.load(self._path(start), allow_pickle=False)
            yield np.ascontiguousarray(block[max(first - start, 0) : stop - start])

    def take(self, rows: np.ndarray) -> Vectors:
        """Return the vectors of `rows` (ascending), read from their files alone."""
        taken = np.empty((len(rows), self.dimension), dtype=np.float32)
        starts = rows - rows % self._size
        for start in np.unique(starts):
            here = starts == start
            taken[here] = np.load(self._path(int(start)), mmap_mode="r", allow_pickle=False)[rows[here] - start]
        return taken

    def _starts(self) -> range:
        return range(0, self.count, self._size)

    def _rows_of(self, start: int) -> int:
        return min(self._size, self.count - start)

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:012d}.npy"

    def _is_whole(self, start: int) -> bool:
        path = self._path(start)
        if not path.is_file():
            return False
        try:
            shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
        except (ValueError, EOFError) as error:
            raise IndexRefused(f"{path} is damaged ({error}); pass --restart to build anew.") from error
        if shape != (self._rows_of(start), self.dimension):
            raise IndexRefused(f"{path} holds vectors of shape {shape}; pass --restart to build anew.")
        return True


def evenly_spaced(count: int, wanted: int) -> np.ndarray:
    """Return at most `wanted` row numbers of `count`, ascending and evenly spaced."""
    return np.unique(np.arange(min(wanted, count), dtype=np.int64) * count // max(min(wanted, count), 1))
