"""Dense retrieval: an encoder and an index of passage vectors, compared by inner product."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from retriever_server.backends.base import Hit, Rows, make_hits
from retriever_server.encoders import Encoder, Vectors, encode_passages, encode_queries
from retriever_server.errors import EncoderError, IndexRefused, SearchError
from retriever_server.text import clean
from retriever_server.vectors.search import Numbers, VectorIndex, VectorSearcher

if TYPE_CHECKING:
    from retriever_server.rerankers import Reranker

# cosine of a stored vector and the same passage encoded now: float16 instead of float32 leaves more than 0.99999,
# a missing `passage: ` of E5 0.996 to 0.9993, another pooling far less
SAME_VECTOR = 0.9995


class DenseBackend:
    """Passages ranked by inner product of query and passage vectors."""

    kind = "dense"

    def __init__(self, vectors: VectorSearcher, passages: Rows, encoder: Encoder) -> None:
        _check_fit(vectors, passages, encoder)
        self._vectors = vectors
        self.encoder: Encoder | None = encoder
        self.reranker: Reranker | None = None
        self._encoder = encoder
        self._owner = os.getpid()
        self.passages: Rows = passages

    @classmethod
    def from_passages(cls, passages: Rows, encoder: Encoder, batch: int = 256) -> DenseBackend:
        """Encode `passages` (batch by batch) into an exact index in memory."""
        index = faiss.IndexFlatIP(encoder.record.dimension)
        for start in range(0, len(passages), batch):
            rows = range(start, min(start + batch, len(passages)))
            vectors = encode_passages(encoder, [passages[row].contents for row in rows])
            refuse_not_finite(vectors, passages, start, encoder)
            index.add(vectors)
        return cls(VectorIndex(index), passages, encoder)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See Backend.search."""
        asked = np.array([position for position, query in enumerate(queries) if clean(query)], dtype=np.intp)
        found: list[list[Hit]] = [[] for _ in queries]
        if len(asked):
            vectors = encode_queries(self._encoder, [queries[position] for position in asked])
            # the zero vector, that of a text without features, is as far from every passage: it has no hits
            features = vectors.any(axis=1)
            for position, *line in zip(asked[features], *self.search_vectors(vectors[features], topk), strict=True):
                found[position] = self._hits(*line)
        return found

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, Numbers]:
        """Search by float32 vectors of shape (queries, dimension); returns scores and rows as VectorSearcher does.

        There are at most as many columns as passages. Raises SearchError on NaN or infinity (case P28).
        """
        if os.getpid() != self._owner:
            # faiss's thread pool does not survive a fork: the child would hang without a word (case P33)
            raise SearchError("This index was loaded before a fork; load it in the process that searches.")
        bad = not_finite(vectors)
        if bad:
            raise SearchError(f"The encoder gave no finite vector for queries {bad} of this request.")
        return self._vectors.search_vectors(vectors, min(topk, self._vectors.count))

    def check_vectors(self, rows: Sequence[int], stored: Vectors) -> None:
        """Encode the passages of `rows` again; raise IndexRefused unless `stored` are their vectors (case P46)."""
        fresh = self.encode_rows(rows)
        for row, before, now in zip(rows, stored, fresh, strict=True):
            norms = float(np.linalg.norm(before) * np.linalg.norm(now))
            cosine = float(before @ now) / norms if norms else 0.0
            if not cosine >= SAME_VECTOR:
                raise IndexRefused(
                    f"Passage '{self.passages[row].id}' encoded now by '{self._encoder.record.id}' has cosine "
                    f"{cosine:.3f} with its stored vector: weights, pooling or prefix differ from those at build time."
                )

    def encode_rows(self, rows: Sequence[int]) -> Vectors:
        """Encode the passages of `rows` as a build does; shape (rows, dimension)."""
        return encode_passages(self._encoder, [self.passages[row].contents for row in rows])

    def settings(self) -> dict[str, Any]:
        """See Backend.settings."""
        return self._encoder.record.to_dict()

    def _hits(self, scores: Vectors, rows: Numbers) -> list[Hit]:
        # a missing neighbour is marked by row -1 (case P27)
        return make_hits(
            self.passages, ((int(row), score) for score, row in zip(scores, rows, strict=True) if row >= 0)
        )


def not_finite(vectors: Vectors) -> list[int]:
    """Return the positions of the vectors that hold NaN or infinity."""
    positions: list[int] = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    return positions


def refuse_not_finite(vectors: Vectors, passages: Rows, start: int, encoder: Encoder) -> None:
    """Raise EncoderError, naming the passage, when a vector of the passages from row `start` on is not finite."""
    for position in not_finite(vectors):
        name = passages[start + position].id
        raise EncoderError(f"Encoder '{encoder.record.id}' gave no finite vector for passage '{name}'.")


def _check_fit(vectors: VectorSearcher, passages: Rows, encoder: Encoder) -> None:
    if vectors.count == 0:
        raise IndexRefused("The vector index is empty; build it from a corpus with at least one passage.")
    if vectors.dimension != encoder.record.dimension:
        raise IndexRefused(
            f"The index holds vectors of {vectors.dimension} dimensions but encoder '{encoder.record.id}' gives "
            f"{encoder.record.dimension}; serve it with the encoder that built it."
        )
    if vectors.count != len(passages):
        raise IndexRefused(
            f"The index holds {vectors.count} vectors but the passage file holds {len(passages)} passages; "
            "build the index again."
        )
