"""The result cache: least recently used results go when their bytes exceed what is allowed."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence

from retriever_server.backends.base import Hit

ENTRY_BYTES = 400  # key, slot of the dictionary, and list of one entry
HIT_BYTES = 300  # a Hit and its number objects, beside its strings
Key = tuple[str, int]  # normalised query, topk


class ResultCache:
    """Hits by (normalised query, topk) for one generation of the index; 0 bytes switch it off.

    An entry costs its query and passages as Python strings (1 byte a character of Latin text, else 2 or 4), 300 bytes
    a hit and 400 more: about 3.5 KB for 3 passages of 100 words, 120 KB for 100 of them. Not thread-safe by itself.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, tuple[Sequence[Hit], int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Sequence[Hit] | None:
        """Return the hits kept under `key`, now the most recently used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, hits: Sequence[Hit]) -> None:
        """Keep `hits`, which nobody changes afterwards, unless they alone exceed what is allowed."""
        size = _size(key, hits)
        if size > self._max_bytes:
            return
        self._drop(key)
        self._entries[key] = (hits, size)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.bytes = 0

    def _drop(self, key: Key) -> None:
        _, size = self._entries.pop(key, (None, 0))
        self.bytes -= size


def _size(key: Key, hits: Sequence[Hit]) -> int:
    strings = sum(sys.getsizeof(hit.contents) + sys.getsizeof(hit.id) for hit in hits)
    return ENTRY_BYTES + sys.getsizeof(key[0]) + HIT_BYTES * len(hits) + strings
