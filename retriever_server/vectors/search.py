"""Searching passage vectors: rows and scores, best first, ties in row order, missing neighbours marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_server.encoders import Vectors
from retriever_server.errors import IndexRefused
from retriever_server.vectors.kinds import read, search_parameters
from retriever_server.vectors.record import VectorRecord

Numbers = NDArray[np.int64]
MISSING = -1  # row of a neighbour that there is not; its score is minus infinity
ROUNDING = 1e-5  # relative; the same product computed by blocks of a matrix and pair by pair differ by less
LEAST = 1e-30  # scores below are as good as equal; above it a float32 still tells `cut` from `cut - slack`
DEFAULT_NPROBE = 8
DEFAULT_EF = 64
WIDER = 1000  # neighbours beyond the cut among which ties are put in order where ranges are searched slowly or not


class VectorSearcher(Protocol):
    """Vectors of the rows `first` to `first + count`."""

    dimension: int
    count: int

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, Numbers]:
        """Return scores and rows, each of shape (queries, topk): best first, ties in row order, MISSING at the end."""


class VectorIndex:
    """A faiss index over the passages from row `first` on.

    An exact index gives every score as the product of one pair, computed the same way whatever the batch or the shard.
    Of more than WIDER ties at the cut, a graph or a scalar-quantized index may give others than the first rows.
    """

    def __init__(self, index: Any, first: int = 0, nprobe: int = 0, ef_search: int = 0) -> None:
        self._index = index
        self._exact = isinstance(index, faiss.IndexFlat)
        self._first = first
        self._nprobe, self._ef_search = nprobe or DEFAULT_NPROBE, ef_search or DEFAULT_EF
        self.dimension: int = index.d
        self.count: int = index.ntotal

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, Numbers]:
        """See VectorSearcher."""
        scores = np.full((len(vectors), topk), -np.inf, dtype=np.float32)
        rows = np.full((len(vectors), topk), MISSING, dtype=np.int64)
        width = min(topk + 1, self.count)
        found, places, others = self._candidates(vectors, width)
        kept = min(topk, width)
        scores[:, :kept], rows[:, :kept] = found[:, :kept], places[:, :kept]
        if width == topk + 1:
            # a tie at the cut, or scores too near to it to be told apart: look at all that come so near
            for query in np.flatnonzero((others >= scores[:, -1]) & (places[:, -1] >= 0)):
                slack = ROUNDING * max(np.abs(scores[query]).max(), LEAST)
                near = self._near(vectors[query : query + 1], scores[query, -1] - 2 * slack, topk)
                scores[query], rows[query] = (values[0, :topk] for values in near)
        rows[rows >= 0] += self._first
        return scores, rows

    def _candidates(self, vectors: Vectors, width: int) -> tuple[Vectors, Numbers, Vectors]:
        """Return scores and rows in order, and for each query the highest score that what was not found may have."""
        scores, rows = self._index.search(vectors, width, params=self._parameters(width))
        others = scores[:, -1].copy()
        if self._exact:
            others += ROUNDING * np.abs(scores).max(axis=1)
            scores = _pair_scores(self._index, vectors, rows)
        scores[rows < 0] = -np.inf
        return *_in_order(scores, rows), others

    def _near(self, vector: Vectors, radius: float, topk: int) -> tuple[Vectors, Numbers]:
        """Return scores and rows in order of what has a score above `radius`, which at least `topk` rows have."""
        if not self._exact and not isinstance(self._index, faiss.IndexIVF):
            return self._candidates(vector, min(topk + WIDER, self.count))[:2]
        _, scores, rows = self._index.range_search(vector, radius, params=self._parameters(topk))
        scores, rows = scores[np.newaxis], rows[np.newaxis]
        return _in_order(_pair_scores(self._index, vector, rows) if self._exact else scores, rows)

    def _parameters(self, width: int) -> Any:
        return search_parameters(self._index, width, self._nprobe, self._ef_search)


def _in_order(scores: Vectors, rows: Numbers) -> tuple[Vectors, Numbers]:
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _pair_scores(index: Any, vectors: Vectors, rows: Numbers) -> Vectors:
    vectors, rows = np.ascontiguousarray(vectors), np.ascontiguousarray(rows)
    scores = np.empty(rows.shape, dtype=np.float32)
    pointers = (faiss.swig_ptr(scores), faiss.swig_ptr(rows))
    index.compute_distance_subset(len(vectors), faiss.swig_ptr(vectors), rows.shape[1], *pointers)
    return scores


def open_file(
    folder: Path,
    record: VectorRecord,
    number: int,
    *,
    mmap: bool = True,
    nprobe: int | None = None,
    ef_search: int | None = None,
    exhaustive: bool = False,
) -> VectorIndex:
    """Open one of the vectors' files, `exhaustive` to compare with every vector of it whatever its kind.

    Raises IndexRefused when it is damaged or not what `record` declares.
    """
    path = folder / record.file_names()[number]
    try:
        index = read(path, mmap)
    except RuntimeError as error:
        raise IndexRefused(f"{path} is missing or damaged; build the index again.") from error
    first, stop = record.rows[number], record.rows[number + 1]
    _check(path, "kind", kind_of(index), record.kind)
    _check(path, "dimensions", index.d, record.dimension)
    _check(path, "vectors", index.ntotal, stop - first)
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise IndexRefused(f"{path} does not compare by inner product; build the index again.")
    if exhaustive:
        return VectorIndex(_storage(index), first, record.nlist)
    return VectorIndex(index, first, nprobe or record.nprobe, ef_search or record.ef_search)


def _storage(index: Any) -> Any:
    if not isinstance(index, faiss.IndexHNSW):
        return index
    storage: Any = faiss.downcast_index(index.storage)
    storage.referenced_objects = [index]  # or the vectors would go with the graph
    return storage


def kind_of(index: faiss.Index) -> str:
    """Return the name that this package has for the kind of a faiss index."""
    if isinstance(index, faiss.IndexScalarQuantizer):
        return "fp16" if index.sq.qtype == faiss.ScalarQuantizer.QT_fp16 else "sq8"
    kinds = {faiss.IndexIVFPQ: "ivf_pq", faiss.IndexIVFFlat: "ivf_flat", faiss.IndexHNSWFlat: "hnsw"}
    kinds |= {faiss.IndexFlat: "flat"}
    return next((name for kind, name in kinds.items() if isinstance(index, kind)), type(index).__name__)


def _check(path: Path, what: str, found: object, declared: object) -> None:
    if found != declared:
        raise IndexRefused(f"{path} has {what} {found} where the manifest says {declared}; build the index again.")
