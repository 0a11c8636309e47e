"""Hybrid retrieval: the hits of several backends over the same passages, fused into one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from retriever_server.backends.base import Backend, Hit, Rows, make_hits
from retriever_server.errors import IndexRefused
from retriever_server.fusion import FusionSettings, fuse

if TYPE_CHECKING:
    from retriever_server.encoders import Encoder
    from retriever_server.rerankers import Reranker

__all__ = ["FusionSettings", "HybridBackend"]


class HybridBackend:
    """Several backends over the same rows; a hit's score is its fused score, `encoder` the first part's that has one.

    Raises IndexRefused when the parts cover different numbers of passages, SettingsError when weights do not fit them.
    """

    kind = "hybrid"

    def __init__(self, parts: Sequence[Backend], settings: FusionSettings | None = None) -> None:
        counts = [len(part.passages) for part in parts]
        if len(set(counts)) != 1:
            raise IndexRefused(f"A hybrid index needs parts over the same passages; these cover {counts}.")
        self.fusion = settings or FusionSettings()
        self.fusion.weights_for(len(parts))
        self.parts = tuple(parts)
        self.passages: Rows = parts[0].passages
        self.encoder: Encoder | None = next((part.encoder for part in parts if part.encoder), None)
        self.reranker: Reranker | None = None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See Backend.search."""
        depth = max(topk, self.fusion.depth)
        found = [part.search(queries, depth) for part in self.parts]
        return [self._join([lists[position] for lists in found], topk) for position in range(len(queries))]

    def settings(self) -> dict[str, Any]:
        """See Backend.settings."""
        parts = [{"kind": part.kind, "settings": part.settings()} for part in self.parts]
        return {"parts": parts, "fusion": asdict(self.fusion)}

    def _join(self, lists: list[list[Hit]], topk: int) -> list[Hit]:
        fused = fuse([[(hit.row, hit.score) for hit in hits] for hits in lists], self.fusion)
        return make_hits(self.passages, fused[:topk])
