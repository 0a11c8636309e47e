"""The other wires of a retriever: those of R1-Searcher (`/queries`) and M-ASK (`/search`), `/embed` and `/rerank`.

`/queries` `{"queries": [str], "k": int | null}`   -> `{"queries": [str], "answers": [[str]]}`
`/search`  `{"questions": [str], "N": int | null}` -> `[{"top_k_docs": [str]}]`
`/embed`   `{"texts": [str], "kind": "query" | "passage"}` -> `{"embeddings": [[float]], "dimension", "model"}`
`/rerank`  `{"query", "documents": [str], "top_n": int | null}` -> `{"results": [{"index", "relevance_score"}]}`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retriever_server.backends.base import Hit
from retriever_server.errors import RequestError
from retriever_server.schema import (
    Document,
    Limits,
    check_keys,
    parse_count,
    parse_request,
    parse_text,
    parse_texts,
    render_response,
)

Hits = Sequence[Sequence[Hit]]
KINDS = ("query", "passage")


@dataclass(frozen=True)
class Wanted:
    """What a search request asks for, whatever its wire; `return_scores` matters to `/retrieve` alone."""

    queries: tuple[str, ...]
    topk: int
    return_scores: bool = True


@dataclass(frozen=True)
class EmbedRequest:
    """Texts to encode, with the prefix of queries or of passages."""

    texts: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class RerankRequest:
    """Documents to order by relevance to `query`; the `top_n` best are wanted."""

    query: str
    documents: tuple[str, ...]
    top_n: int


def parse_retrieve(payload: Any, limits: Limits) -> Wanted:
    """Check a body of `/retrieve`; raises RequestError, as the functions below do."""
    request = parse_request(payload, limits)
    return Wanted(request.queries, request.topk, request.return_scores)


def render_retrieve(wanted: Wanted, results: Hits) -> Any:
    """Return the JSON body that answers `/retrieve`."""
    documents = [[Document(hit.id, hit.contents, hit.score) for hit in hits] for hits in results]
    return render_response(documents, wanted.return_scores)


def parse_queries(payload: Any, limits: Limits) -> Wanted:
    """Check a body of `/queries`."""
    check_keys(payload, ("queries", "k"))
    return Wanted(
        parse_texts(payload, "queries", limits), parse_count(payload, "k", limits.default_topk, limits.max_topk)
    )


def render_queries(wanted: Wanted, results: Hits) -> Any:
    """Return the JSON body that answers `/queries`."""
    return {"queries": list(wanted.queries), "answers": [[hit.contents for hit in hits] for hits in results]}


def parse_questions(payload: Any, limits: Limits) -> Wanted:
    """Check a body of `/search`."""
    check_keys(payload, ("questions", "N"))
    return Wanted(
        parse_texts(payload, "questions", limits), parse_count(payload, "N", limits.default_topk, limits.max_topk)
    )


def render_questions(wanted: Wanted, results: Hits) -> Any:
    """Return the JSON body that answers `/search`."""
    return [{"top_k_docs": [hit.contents for hit in hits]} for hits in results]


def parse_embed(payload: Any, limits: Limits) -> EmbedRequest:
    """Check a body of `/embed`."""
    check_keys(payload, ("texts", "kind"))
    kind = KINDS[0] if payload.get("kind") is None else payload["kind"]
    if kind not in KINDS:
        raise RequestError('`kind` must be "query" or "passage".')
    return EmbedRequest(parse_texts(payload, "texts", limits), kind)


def parse_rerank(payload: Any, limits: Limits) -> RerankRequest:
    """Check a body of `/rerank`; `top_n` may exceed the number of documents, as in the field's rerankers."""
    check_keys(payload, ("query", "documents", "top_n"))
    query, documents = parse_text(payload, "query", limits), parse_texts(payload, "documents", limits)
    return RerankRequest(query, documents, parse_count(payload, "top_n", len(documents), limits.max_queries))


def render_rerank(request: RerankRequest, scores: Sequence[float]) -> Any:
    """Return the JSON body that answers `/rerank`: best first, ties in the order given."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    return {"results": [{"index": index, "relevance_score": float(scores[index])} for index in order]}
