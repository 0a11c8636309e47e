"""What runs in the processes of a Ray cluster: a whole index, or one shard of its vectors."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retriever_server.errors import IndexRefused
from retriever_server.manifest import MANIFEST

if TYPE_CHECKING:
    from retriever_server.encoders import EncoderRecord, Vectors
    from retriever_server.index import OpenOptions
    from retriever_server.rerankers import RerankerRecord
    from retriever_server.vectors.search import Numbers

ScoredRows = list[tuple[int, float]]


@dataclass(frozen=True)
class Description:
    """What a replica of a whole index has opened."""

    kind: str
    settings: dict[str, Any]
    encoder: EncoderRecord | None
    reranker: RerankerRecord | None


def identity(folder: Path) -> str:
    """Return what tells the index in `folder` from another one that is built in its place."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise IndexRefused(f"{folder} holds no index ({MANIFEST} is missing); make one with `build`.") from error


def refuse_another(folder: Path, expected: str) -> None:
    """Raise IndexRefused when the index in `folder` is not the one that the server opened (see `identity`)."""
    if identity(folder) != expected:
        raise IndexRefused(f"The index in {folder} is not the one that the server opened; reload the server (SIGHUP).")


class IndexReplica:
    """A whole index. Its passages stay here only as far as a reranker reads them: rows and scores travel."""

    def __init__(self, folder: str, options: OpenOptions, expected: str) -> None:
        from retriever_server.index import open_index

        refuse_another(Path(folder), expected)
        self._backend, _ = open_index(Path(folder), options)
        self._turn = threading.Lock()  # its CPU slots are for one search at a time; others wait for their turn

    def describe(self) -> Description:
        """Return what is open here."""
        encoder, reranker = self._backend.encoder, self._backend.reranker
        return Description(
            self._backend.kind,
            self._backend.settings(),
            encoder.record if encoder else None,
            reranker.record if reranker else None,
        )

    def search(self, queries: Sequence[str], topk: int) -> list[ScoredRows]:
        """Return for each query the rows and scores of its hits; see Backend.search."""
        with self._turn:
            found = self._backend.search(queries, topk)
        return [[(hit.row, hit.score) for hit in hits] for hits in found]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode."""
        assert self._backend.encoder is not None
        with self._turn:
            return self._backend.encoder.encode(texts)

    def score_many(self, requests: Sequence[tuple[str, Sequence[str]]]) -> list[Any]:
        """See Reranker.score_many."""
        assert self._backend.reranker is not None
        with self._turn:
            return self._backend.reranker.score_many(requests)


class ShardReplica:
    """One shard of the vectors, searched by vectors; nothing else of the index is opened."""

    def __init__(self, folder: str, number: int, options: OpenOptions, expected: str) -> None:
        from retriever_server.index import open_shard

        refuse_another(Path(folder), expected)
        self._vectors = open_shard(Path(folder), number, options)
        self._turn = threading.Lock()

    def describe(self) -> tuple[int, int]:
        """Return the dimension and the number of vectors."""
        return self._vectors.dimension, self._vectors.count

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, Numbers]:
        """See VectorSearcher.search_vectors."""
        with self._turn:
            return self._vectors.search_vectors(vectors, topk)
