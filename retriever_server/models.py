"""What `/embed` and `/rerank` do with the served encoder and reranker, in the executor and in small portions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from retriever_server.adapters import EmbedRequest, RerankRequest, render_rerank
from retriever_server.backends.base import Backend
from retriever_server.encoders import encode_passages, encode_queries
from retriever_server.errors import NotOffered, SearchError
from retriever_server.service import Service

PORTION = 32  # texts or documents a call, so that the searches of others run in between


def embed(service: Service, wanted: EmbedRequest, deadline_s: float | None) -> dict[str, Any]:
    """Return the vectors of the texts; raises NotOffered without an encoder, SearchError for a vector with NaN."""
    calls = [partial(_encode, texts=texts, kind=wanted.kind) for texts in _portions(wanted.texts)]
    parts = _call(service, calls, deadline_s)
    vectors = np.concatenate([vectors for vectors, _ in parts])
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    if bad:
        raise SearchError(f"The encoder gave no finite vector for the texts {bad}.")
    return {"embeddings": vectors.tolist(), "dimension": vectors.shape[1], "model": parts[0][1]}


def rerank(service: Service, wanted: RerankRequest, deadline_s: float | None) -> dict[str, Any]:
    """Return the documents' order by relevance; raises NotOffered without a reranker, SearchError for a NaN."""
    calls = [partial(_score, query=wanted.query, documents=part) for part in _portions(wanted.documents)]
    scores = np.concatenate(_call(service, calls, deadline_s))
    if not np.isfinite(scores).all():
        raise SearchError("The reranker gave no finite score for some document.")
    answer: dict[str, Any] = render_rerank(wanted, scores.tolist())
    return answer


def _call(service: Service, calls: Sequence[Callable[[Backend], Any]], deadline_s: float | None) -> list[Any]:
    return service.engine.call(calls, deadline_s)


def _encode(backend: Backend, texts: Sequence[str], kind: str) -> Any:
    encoder = backend.encoder
    if encoder is None:
        raise NotOffered("This server has no encoder; start it with `serve --embedder NAME` for /embed.")
    return (encode_queries if kind == "query" else encode_passages)(encoder, texts), encoder.record.id


def _score(backend: Backend, query: str, documents: Sequence[str]) -> Any:
    reranker = backend.reranker
    if reranker is None:
        raise NotOffered("This server has no reranker; start it with `serve --reranker NAME` for /rerank.")
    return np.asarray(reranker.score(query, documents), dtype=np.float32)


def _portions(texts: Sequence[str]) -> list[Sequence[str]]:
    return [texts[start : start + PORTION] for start in range(0, len(texts), PORTION)]
