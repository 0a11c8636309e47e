"""Retrieval over a demo corpus inside the process, as the retriever server does it over the same corpus.

Passages are ranked by BM25; vectors are those of the server's encoder `hashing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage as IndexedPassage
from retriever_server.corpus import read_corpus
from retriever_server.encoders.catalogue import RECORDS
from retriever_server.encoders.hashing import HashingEncoder
from retriever_server.encoders.opening import encode_passages, encode_queries
from verl_agentic.core.environment import Passage

TOPK = 2


_encoder = HashingEncoder(RECORDS["hashing"])


async def embed(texts: Sequence[str], kind: Literal["query", "passage"]) -> Sequence[Sequence[float]]:
    """Vectors of texts."""
    return (encode_queries if kind == "query" else encode_passages)(_encoder, texts).tolist()


class HasContents(Protocol):
    """A passage of a world or of a corpus file."""

    @property
    def id(self) -> str: ...

    @property
    def contents(self) -> str: ...


class CorpusSearch:
    """An asynchronous search function over passages, for the environment of a method; top 2 in the demo."""

    def __init__(self, passages: Iterable[HasContents], topk: int = TOPK):
        self._backend = BM25Backend.from_passages([IndexedPassage(p.id, p.contents) for p in passages])
        self._topk = topk

    @classmethod
    def from_file(cls, corpus: Path, topk: int = TOPK) -> CorpusSearch:
        """Search over a corpus.jsonl."""
        return cls(read_corpus(corpus), topk)

    def top(self, query: str) -> list[Passage]:
        """The best passages for a query, best first."""
        hits = self._backend.search([query], self._topk)[0]
        return [Passage(id=hit.id, contents=hit.contents, score=hit.score) for hit in hits]

    async def __call__(self, query: str) -> list[Passage]:
        return self.top(query)

    def finds(self, entity: str, keyword: str, passage_id: str) -> bool:
        """Whether the plain query for one step of a decomposition finds its gold passage."""
        return any(passage.id == passage_id for passage in self.top(f"{entity} {keyword}"))
