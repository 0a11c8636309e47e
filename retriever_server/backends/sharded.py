"""Shards of one set of passage vectors, searched apart and merged into what one index over all rows would give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retriever_server.encoders import Vectors
from retriever_server.vectors.record import VectorRecord
from retriever_server.vectors.search import Numbers, VectorSearcher, open_file


def merge(found: Sequence[tuple[Vectors, Numbers]], topk: int) -> tuple[Vectors, Numbers]:
    """Merge the (scores, rows) of shards for the same queries into the best `topk` of all, ties in row order."""
    scores = np.concatenate([part for part, _ in found], axis=1)
    rows = np.concatenate([part for _, part in found], axis=1)
    order = np.lexsort((np.where(rows < 0, np.iinfo(np.int64).max, rows), -scores), axis=1)[:, :topk]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


class ShardedVectors:
    """Shards that are searched one after the other and merged: exactly as one index over all their rows."""

    def __init__(self, shards: Sequence[VectorSearcher]) -> None:
        self._shards = shards
        self.dimension = shards[0].dimension
        self.count = sum(shard.count for shard in shards)

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, Numbers]:
        """See VectorSearcher."""
        return merge([shard.search_vectors(vectors, topk) for shard in self._shards], topk)


def open_vectors(folder: Path, record: VectorRecord, **options: Any) -> VectorSearcher:
    """Open all files of `record`; takes the options of `open_file` and raises as it does."""
    shards = [open_file(folder, record, number, **options) for number in range(record.shards)]
    return shards[0] if len(shards) == 1 else ShardedVectors(shards)
