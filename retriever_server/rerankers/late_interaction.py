"""Late interaction (ColBERT, Khattab and Zaharia 2020) over an encoder's token vectors, without any training for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retriever_server.encoders import find_record, open_encoder
from retriever_server.encoders.tokens import TokenEncoder
from retriever_server.errors import RerankerError
from retriever_server.rerankers.record import Request, RerankerRecord, Scores
from retriever_server.text import clean


class LateInteraction:
    """Mean over a query's tokens of their best cosine with a document's token, in -1..1; an empty text scores 0.

    The encoder was trained for pooled vectors, not for this: its token vectors still tell which words of a document
    answer which of the query, where one pooled vector blurs them. A document is encoded once a call, without a prefix.
    """

    def __init__(self, record: RerankerRecord, device: str = "cpu", threads: int = 0) -> None:
        self.record = record
        declared = find_record(record.model)
        shorter = replace(declared, max_tokens=min(record.max_tokens, declared.max_tokens))
        encoder = open_encoder(shorter, device, threads)
        if not isinstance(encoder, TokenEncoder):
            raise RerankerError(
                f"Reranker '{record.id}' needs an encoder with a vector a token, which '{declared.id}' lacks."
            )
        self._encoder = encoder

    def score(self, query: str, contents: Sequence[str]) -> Scores:
        """See Reranker.score."""
        return self.score_many([(query, contents)])[0]

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """See Reranker.score_many."""
        queries = self._unit_tokens([query for query, _ in requests])
        documents = sorted({document for _, contents in requests for document in contents})
        vectors = dict(zip(documents, self._unit_tokens(documents), strict=True))
        return [
            np.array([best_matches(query, vectors[document]) for document in contents], dtype=np.float32)
            for query, (_, contents) in zip(queries, requests, strict=True)
        ]

    def _unit_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        tokens = self._encoder.token_vectors([clean(text) for text in texts])
        return [line / np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-12) for line in tokens]


def best_matches(query: np.ndarray, document: np.ndarray) -> float:
    """Return the mean over unit vectors `query` of the largest inner product with one of `document`; 0 if none."""
    if not len(query) or not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).mean())
