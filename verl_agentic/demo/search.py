"""Retrieval over a demo world inside the process, ranked as the retriever server's BM25 ranks the same corpus."""

from __future__ import annotations

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage as IndexedPassage

from verl_agentic.core.environment import Passage
from verl_agentic.demo.world import World

TOPK = 2


class WorldSearch:
    """An asynchronous search function over the passages of a world, for the environment of a method."""

    def __init__(self, world: World, topk: int = TOPK):
        self._backend = BM25Backend.from_passages([IndexedPassage(p.id, p.contents) for p in world.passages])
        self._topk = topk

    def top(self, query: str) -> list[Passage]:
        """The best passages for a query, best first."""
        hits = self._backend.search([query], self._topk)[0]
        return [Passage(id=hit.id, contents=hit.contents, score=hit.score) for hit in hits]

    async def __call__(self, query: str) -> list[Passage]:
        return self.top(query)

    def finds(self, entity: str, keyword: str, passage_id: str) -> bool:
        """Whether the plain query for one step of a decomposition finds its gold passage."""
        return any(passage.id == passage_id for passage in self.top(f"{entity} {keyword}"))
