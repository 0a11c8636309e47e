"""Requests as one flat list of (query, document) pairs, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from retriever_server.rerankers.record import Request, RerankerRecord, Scores
from retriever_server.text import clean


class PairReranker(ABC):
    """A reranker that scores pairs one by one; all pairs of a request batch go through the model together."""

    record: RerankerRecord

    @abstractmethod
    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Return one score a (query, document) pair, in order."""

    def score(self, query: str, contents: Sequence[str]) -> Scores:
        """See Reranker.score."""
        return self.score_many([(query, contents)])[0]

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """See Reranker.score_many."""
        pairs = [(clean(query), clean(document)) for query, contents in requests for document in contents]
        scores = self.score_pairs(pairs) if pairs else np.empty(0, dtype=np.float32)
        ends = np.cumsum([len(contents) for _, contents in requests])
        return np.split(scores, ends[:-1]) if requests else []
