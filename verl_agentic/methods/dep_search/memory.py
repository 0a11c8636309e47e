"""The memory: facts with their vectors, of which the least recently used leaves where the capacity is exceeded.

When an entry was written and when it was last used are two times: recall looks at the first, eviction at the second.

Source: Dep-Search, section 3.2, "Memory token", and section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Entry:
    """One fact.

    Attributes:
        text: what it says; no two entries say the same.
        vector: its embedding, at least one number.
        written: when it was last written, in steps of the memory.
        used: when it was last written or recalled, in steps of the memory.
    """

    text: str
    vector: tuple[float, ...]
    written: int
    used: int


class Memory:
    """A memory of fixed capacity.

    Each write and each recall is one step of its time. Vectors are sequences of numbers, all of one length.

    Args:
        capacity: the most entries that it holds, at least 1.
        entries: what it holds from the start, in any order; beyond the capacity the least recently used are left out.

    Raises:
        ValueError: the capacity is less than 1, or two entries say the same or differ in the length of their vectors.
    """

    def __init__(self, capacity: int, entries: Iterable[Entry] = ()):
        if capacity < 1:
            raise ValueError(f"the capacity of a memory must be at least 1, got {capacity}")
        self.capacity = capacity
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            if entry.text in self._entries:
                raise ValueError(f"two entries of a memory say {entry.text[:60]!r}")
            self._add(entry)
        self._now = max((max(e.written, e.used) for e in self._entries.values()), default=0)
        self._evict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, the last written first."""
        return tuple(sorted(self._entries.values(), key=lambda entry: -entry.written))

    def write(self, text: str, vector: ArrayLike) -> None:
        """Add a fact as the last written and last used; one that is there already is refreshed, with its new vector.

        Raises:
            ValueError: the vector has another length than those in the memory.
        """
        self._now += 1
        self._add(Entry(text, tuple(np.asarray(vector, dtype=float).tolist()), written=self._now, used=self._now))
        self._evict()

    def recall(self, vector: ArrayLike, recent: int, threshold: float) -> tuple[Entry, ...]:
        """The `recent` last written entries, and every other one whose similarity to `vector` is above `threshold`.

        The similarity is the cosine, clipped to [-1, 1], and 0 where a vector is all zeros. What is recalled has been
        used.

        Args:
            vector: the embedding of the query.
            recent: at least 0.
            threshold: in [-1, 1]; a similarity that equals it is not above it.

        Returns:
            First the recent entries, the last written first; then the others by falling similarity, and among equals
            the last written first.

        Raises:
            ValueError: the vector has another length than those in the memory.
        """
        query = np.asarray(vector, dtype=float)
        latest, others = self.entries[:recent], self.entries[recent:]
        scored = [(cosine(query, np.asarray(entry.vector)), entry) for entry in others]
        similar = sorted((pair for pair in scored if pair[0] > threshold), key=lambda pair: -pair[0])
        self._now += 1
        recalled = tuple(replace(entry, used=self._now) for entry in (*latest, *(entry for _, entry in similar)))
        self._entries.update((entry.text, entry) for entry in recalled)
        return recalled

    def _add(self, entry: Entry) -> None:
        length = next((len(other.vector) for other in self._entries.values()), len(entry.vector))
        if len(entry.vector) != length:
            raise _other_encoder(len(entry.vector), length)
        self._entries[entry.text] = entry

    def _evict(self) -> None:
        """Drop the least recently used beyond the capacity; of those used in the same step, the one written first."""
        while len(self._entries) > self.capacity:
            oldest = min(self._entries.values(), key=lambda entry: (entry.used, entry.written))
            del self._entries[oldest.text]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine similarity of two vectors of equal length, clipped to [-1, 1]; 0 where one is all zeros.

    Raises:
        ValueError: their lengths differ.
    """
    if a.shape != b.shape:
        raise _other_encoder(a.size, b.size)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip(np.dot(a, b) / norms, -1.0, 1.0)) if norms else 0.0


def _other_encoder(given: int, there: int) -> ValueError:
    return ValueError(
        f"a vector of {given} numbers in a memory whose vectors have {there}: they come from different encoders; embed "
        "with the encoder that filled the memory, or start it anew"
    )
