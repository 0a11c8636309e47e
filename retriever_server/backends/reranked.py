"""A backend whose best candidates are put in order again by a reranker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from retriever_server.backends.base import Backend, Hit, Rows, make_hits
from retriever_server.errors import SearchError, SettingsError
from retriever_server.fusion import FusionSettings, fuse

if TYPE_CHECKING:
    from retriever_server.encoders import Encoder
    from retriever_server.rerankers import Reranker


class RerankedBackend:
    """The first `depth` hits (topk if larger) of `backend`, ordered by `reranker`.

    A hit's score is the reranker's, or, where the reranker's record gives the first stage a weight, the reciprocal rank
    fusion of both orders. Ties are in row order. Raises SettingsError unless `depth` >= 1.
    """

    def __init__(self, backend: Backend, reranker: Reranker, depth: int = 50) -> None:
        if depth < 1:
            raise SettingsError(f"Reranking needs a depth of at least 1 candidate, found {depth}.")
        self.first_stage = backend
        self.depth = depth
        self.kind = backend.kind
        self.passages: Rows = backend.passages
        self.encoder: Encoder | None = backend.encoder
        self.reranker: Reranker | None = reranker
        self._reranker = reranker

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See Backend.search. Each query is scored with its own candidates only."""
        found = self.first_stage.search(queries, max(topk, self.depth))
        requests = [(query, [hit.contents for hit in hits]) for query, hits in zip(queries, found, strict=True)]
        scores = self._reranker.score_many(requests)
        bad = [position for position, line in enumerate(scores) if not np.isfinite(line).all()]
        if bad:
            raise SearchError(f"The reranker gave no finite score for queries {bad} of this request.")
        return [self._order(hits, line, topk) for hits, line in zip(found, scores, strict=True)]

    def settings(self) -> dict[str, Any]:
        """See Backend.settings; those of the first stage, since the index on disk holds nothing of the reranker."""
        return self.first_stage.settings()

    def _order(self, hits: list[Hit], scores: np.ndarray, topk: int) -> list[Hit]:
        before = [(hit.row, hit.score) for hit in hits]
        scored = ((hit.row, float(score)) for hit, score in zip(hits, scores, strict=True))
        after = sorted(scored, key=lambda pair: (-pair[1], pair[0]))
        weight = self._reranker.record.first_stage_weight
        if weight:
            after = fuse([before, after], FusionSettings(weights=(weight, 1.0)))
        return make_hits(self.passages, after[:topk])
