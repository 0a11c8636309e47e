"""Parts of an index that are elsewhere, as the rest of the server expects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retriever_server.backends.base import Hit, Rows, make_hits
from retriever_server.backends.sharded import merge
from retriever_server.encoders import Encoder, EncoderRecord, Vectors
from retriever_server.ray_engine.deployments import Deployment, call_all
from retriever_server.rerankers import Reranker, RerankerRecord
from retriever_server.vectors.search import Numbers


class RemoteIndex:
    """A backend whose searches run in one of several equal replicas, `concurrency` of them at once."""

    def __init__(self, deployment: Deployment, passages: Rows, replicas: int) -> None:
        found = deployment.call("describe")
        self._deployment = deployment
        self._settings: dict[str, Any] = found.settings
        self.kind: str = found.kind
        self.concurrency = replicas
        self.passages = passages
        self.encoder: Encoder | None = RemoteEncoder(deployment, found.encoder) if found.encoder else None
        self.reranker: Reranker | None = RemoteReranker(deployment, found.reranker) if found.reranker else None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See Backend.search."""
        found = self._deployment.call("search", list(queries), topk)
        return [make_hits(self.passages, scored_rows) for scored_rows in found]

    def settings(self) -> dict[str, Any]:
        """See Backend.settings."""
        return self._settings


class RemoteEncoder:
    """The encoder of a replica."""

    def __init__(self, deployment: Deployment, record: EncoderRecord) -> None:
        self._deployment = deployment
        self.record = record

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode."""
        vectors: Vectors = self._deployment.call("encode", list(texts))
        return vectors


class RemoteReranker:
    """The reranker of a replica."""

    def __init__(self, deployment: Deployment, record: RerankerRecord) -> None:
        self._deployment = deployment
        self.record = record

    def score(self, query: str, contents: Sequence[str]) -> np.ndarray:
        """See Reranker.score."""
        return self.score_many([(query, contents)])[0]

    def score_many(self, requests: Sequence[tuple[str, Sequence[str]]]) -> list[np.ndarray]:
        """See Reranker.score_many."""
        scores: list[np.ndarray] = self._deployment.call("score_many", [(q, list(texts)) for q, texts in requests])
        return scores


class RemoteVectors:
    """The shards of an index's vectors: all are asked at once, and what they find is merged."""

    def __init__(self, shards: Sequence[Deployment]) -> None:
        self._shards = shards
        described = call_all([(shard, "describe", ()) for shard in shards])
        self.dimension: int = described[0][0]
        self.count: int = sum(count for _, count in described)

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, Numbers]:
        """See VectorSearcher.search_vectors."""
        return merge(call_all([(shard, "search_vectors", (vectors, topk)) for shard in self._shards]), topk)
