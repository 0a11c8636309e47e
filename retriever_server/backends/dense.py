"""Dense retrieval: an encoder and a faiss index of passage vectors, compared by inner product."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from retriever_server.backends.base import Hit, Rows, make_hits
from retriever_server.encoders import Encoder, Vectors, encode_passages, encode_queries
from retriever_server.errors import EncoderError, IndexRefused, SearchError
from retriever_server.text import clean

if TYPE_CHECKING:
    from retriever_server.rerankers import Reranker

VECTORS = "vectors.faiss"
SAME_VECTOR = 0.99  # cosine of a stored vector and the same passage encoded now; another pooling gives far less


class DenseBackend:
    """Passages ranked by inner product of query and passage vectors."""

    kind = "dense"

    def __init__(self, index: faiss.Index, passages: Rows, encoder: Encoder) -> None:
        _check_index(index, passages, encoder)
        self._index = index
        self.encoder: Encoder | None = encoder
        self.reranker: Reranker | None = None
        self._encoder = encoder
        self._owner = os.getpid()
        self.passages: Rows = passages

    @classmethod
    def from_passages(cls, passages: Rows, encoder: Encoder, batch: int = 256) -> DenseBackend:
        """Encode `passages` (batch by batch) into an exact index."""
        index = faiss.IndexFlatIP(encoder.record.dimension)
        for start in range(0, len(passages), batch):
            rows = range(start, min(start + batch, len(passages)))
            vectors = encode_passages(encoder, [passages[row].contents for row in rows])
            for position in _not_finite(vectors):
                name = passages[start + position].id
                raise EncoderError(f"Encoder '{encoder.record.id}' gave no finite vector for passage '{name}'.")
            index.add(vectors)
        return cls(index, passages, encoder)

    @classmethod
    def load(cls, folder: Path, passages: Rows, encoder: Encoder) -> DenseBackend:
        """Open the vectors that `save` wrote."""
        try:
            index = faiss.read_index(str(folder / VECTORS))
        except RuntimeError as error:
            raise IndexRefused(f"{folder / VECTORS} is missing or damaged; build the index again.") from error
        return cls(index, passages, encoder)

    def save(self, folder: Path) -> None:
        """Write the vectors (not the passages) into `folder`."""
        faiss.write_index(self._index, str(folder / VECTORS))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See Backend.search."""
        if os.getpid() != self._owner:
            # faiss's thread pool does not survive a fork: the child would hang without a word (case P33)
            raise SearchError("This index was loaded before a fork; load it in the process that searches.")
        asked = [position for position, query in enumerate(queries) if clean(query)]
        found: list[list[Hit]] = [[] for _ in queries]
        if asked:
            vectors = encode_queries(self._encoder, [queries[position] for position in asked])
            for position, hits in zip(asked, self.search_vectors(vectors, topk), strict=True):
                found[position] = hits
        return found

    def search_vectors(self, vectors: Vectors, topk: int) -> list[list[Hit]]:
        """Search by float32 vectors of shape (queries, dimension); raises SearchError on NaN or infinity (case P28).

        A zero vector, which is that of a text without features, is as far from every passage and has no hits.
        """
        bad = _not_finite(vectors)
        if bad:
            raise SearchError(f"The encoder gave no finite vector for queries {bad} of this request.")
        scores, rows = self._index.search(vectors, min(topk, self._index.ntotal))
        found = zip(vectors, scores, rows, strict=True)
        return [self._hits(*line) if vector.any() else [] for vector, *line in found]

    def check_vectors(self, rows: Sequence[int]) -> None:
        """Encode the passages of `rows` again; raise IndexRefused unless the stored vectors are theirs (case P46)."""
        fresh = encode_passages(self._encoder, [self.passages[row].contents for row in rows])
        for row, vector in zip(rows, fresh, strict=True):
            stored = self._index.reconstruct(int(row))
            norms = float(np.linalg.norm(stored) * np.linalg.norm(vector))
            cosine = float(stored @ vector) / norms if norms else 0.0
            if not cosine >= SAME_VECTOR:
                raise IndexRefused(
                    f"Passage '{self.passages[row].id}' encoded now by '{self._encoder.record.id}' has cosine "
                    f"{cosine:.3f} with its stored vector: weights, pooling or prefix differ from those at build time."
                )

    def settings(self) -> dict[str, Any]:
        """See Backend.settings."""
        return self._encoder.record.to_dict()

    def _hits(self, scores: Vectors, rows: np.ndarray) -> list[Hit]:
        # faiss marks a missing neighbour by row -1 (case P27) and leaves ties in no stated order
        pairs = sorted((-float(score), int(row)) for score, row in zip(scores, rows, strict=True) if row >= 0)
        return make_hits(self.passages, ((row, -negated) for negated, row in pairs))


def _not_finite(vectors: Vectors) -> list[int]:
    """Return the positions of the vectors that hold NaN or infinity."""
    positions: list[int] = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    return positions


def _check_index(index: faiss.Index, passages: Rows, encoder: Encoder) -> None:
    if index.ntotal == 0:
        raise IndexRefused("The vector index is empty; build it from a corpus with at least one passage.")
    if index.d != encoder.record.dimension:
        raise IndexRefused(
            f"The index holds vectors of {index.d} dimensions but encoder '{encoder.record.id}' gives "
            f"{encoder.record.dimension}; serve it with the encoder that built it."
        )
    if index.ntotal != len(passages):
        raise IndexRefused(
            f"The index holds {index.ntotal} vectors but the passage file holds {len(passages)} passages; "
            "build the index again."
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise IndexRefused("The vector index does not compare by inner product; build the index again.")
