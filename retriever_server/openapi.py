"""The OpenAPI document of the server, written by hand; the tests hold it against the application."""

from __future__ import annotations

from typing import Any

from retriever_server.schema import Limits

JSON = dict[str, Any]
VERSION = "1"
HEADERS: JSON = {"X-Request-Id": {"schema": {"type": "string"}, "description": "The request's id, kept or made."}}
CACHE: JSON = {"X-Cache-Hits": {"schema": {"type": "string"}, "description": "Queries answered from the cache."}}
RETRY: JSON = {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds to wait before trying again."}}
REFUSALS = {
    400: "The request breaks the schema; one sentence says how.",
    413: "The body is too large.",
    422: "The index cannot answer this.",
    429: "Too many requests are waiting.",
    500: "The search failed; the server's log says why.",
    503: "No index is open yet, the server is stopping, or the deadline passed.",
}
PARAMETERS: list[JSON] = [
    {
        "name": "X-Deadline-Ms",
        "in": "header",
        "required": False,
        "description": "Milliseconds after which the answer is of no use.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 3_600_000},
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "required": False,
        "description": "An id to be kept in the log and in the answer.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
    },
]


def describe(limits: Limits) -> JSON:
    """Return the OpenAPI 3.0 document of a server with these `limits`."""
    return {
        "openapi": "3.0.3",
        "info": {"title": "retriever_server", "version": VERSION},
        "paths": {**_search_paths(), **_model_paths(), **_status_paths()},
        "components": {"schemas": _schemas(limits)},
    }


def _search_paths() -> JSON:
    return {
        "/retrieve": _post("Search-R1's wire.", "RetrieveRequest", "RetrieveResponse", CACHE),
        "/queries": _post("R1-Searcher's wire.", "QueriesRequest", "QueriesResponse", CACHE),
        "/search": _post("M-ASK's wire.", "SearchRequest", "SearchResponse", CACHE),
    }


def _model_paths() -> JSON:
    absent = {404: "The server was started without the model that this needs."}
    return {
        "/embed": _post("Vectors of texts.", "EmbedRequest", "EmbedResponse", {}, absent),
        "/rerank": _post("Documents by relevance.", "RerankRequest", "RerankResponse", {}, absent),
    }


def _status_paths() -> JSON:
    unready = {503: REFUSALS[503]}
    return {
        "/health": _get("Whether the process answers.", _json(_ref("Health"))),
        "/ready": _get("Whether searches are answered.", _json(_ref("Ready")), unready),
        "/info": _get("What is served, and how.", _json(_ref("Info")), unready),
        "/metrics": _get("Prometheus metrics.", {"text/plain": {"schema": {"type": "string"}}}),
        "/openapi.json": _get("This document.", _json({"type": "object"})),
    }


def _post(summary: str, asked: str, answered: str, headers: JSON, more: dict[int, str] | None = None) -> JSON:
    responses = {"200": _response("The answer.", _json(_ref(answered)), headers)}
    operation = {
        "summary": summary,
        "parameters": PARAMETERS,
        "requestBody": {"required": True, "content": _json(_ref(asked))},
        "responses": responses | _refusals(REFUSALS | (more or {})),
    }
    return {"post": operation}


def _get(summary: str, content: JSON, refusals: dict[int, str] | None = None) -> JSON:
    responses = {"200": _response("The answer.", content, {})} | _refusals(refusals or {})
    return {"get": {"summary": summary, "responses": responses}}


def _refusals(sentences: dict[int, str]) -> JSON:
    return {
        str(status): _response(sentence, _json(_ref("Error")), RETRY if status in (429, 503) else {})
        for status, sentence in sorted(sentences.items())
    }


def _response(description: str, content: JSON, headers: JSON) -> JSON:
    return {"description": description, "headers": HEADERS | headers, "content": content}


def _json(schema: JSON) -> JSON:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> JSON:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(limits: Limits) -> JSON:
    text = {"type": "string", "maxLength": limits.max_chars}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.max_queries}
    topk = _count(limits.max_topk, limits.default_topk)
    flag = {"type": "boolean", "nullable": True, "default": False}
    return {
        "RetrieveRequest": {
            "oneOf": [
                _closed({"queries": texts, "topk": topk, "return_scores": flag}, ["queries"]),
                _closed({"query": text, "topk": topk, "return_scores": flag}, ["query"]),
            ]
        },
        "QueriesRequest": _closed({"queries": texts, "k": topk}, ["queries"]),
        "SearchRequest": _closed({"questions": texts, "N": topk}, ["questions"]),
        "EmbedRequest": _closed({"texts": texts, "kind": _kind()}, ["texts"]),
        "RerankRequest": _closed(
            {"query": text, "documents": texts, "top_n": _count(limits.max_queries, None)}, ["query", "documents"]
        ),
        **_answers(),
        **_statuses(),
    }


def _answers() -> JSON:
    string, number, whole = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
    strings = {"type": "array", "items": string}
    document = _closed({"id": string, "contents": string}, ["id", "contents"])
    scored = _closed({"document": document, "score": number}, ["document", "score"])
    found = {"type": "array", "items": {"oneOf": [scored, document]}}
    ranked = _closed({"index": whole, "relevance_score": number}, ["index", "relevance_score"])
    vectors = {"type": "array", "items": {"type": "array", "items": number}}
    return {
        "RetrieveResponse": _closed({"result": {"type": "array", "items": found}}, ["result"]),
        "QueriesResponse": _closed(
            {"queries": strings, "answers": {"type": "array", "items": strings}}, ["queries", "answers"]
        ),
        "SearchResponse": {"type": "array", "items": _closed({"top_k_docs": strings}, ["top_k_docs"])},
        "EmbedResponse": _closed(
            {"embeddings": vectors, "dimension": whole, "model": string}, ["embeddings", "dimension", "model"]
        ),
        "RerankResponse": _closed({"results": {"type": "array", "items": ranked}}, ["results"]),
    }


def _statuses() -> JSON:
    string, whole, object_ = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "object"}
    canary = _closed({"query": string, "id": string}, ["query", "id"])
    info = {
        "kind": string,
        "settings": object_,
        "count": whole,
        "encoder": {**object_, "nullable": True},
        "reranker": {**string, "nullable": True},
        "limits": object_,
        "threads": object_,
        "engine": object_,
        "generation": {"type": "integer", "minimum": 1},
        "parts": {"type": "array", "items": object_},
        "corpus_sha256": {**string, "nullable": True},
        "versions": {**object_, "nullable": True},
        "canaries": {"type": "array", "items": canary},
    }
    return {
        "Error": _closed({"error": string}, ["error"]),
        "Health": _closed({"status": {"type": "string", "enum": ["ok"]}}, ["status"]),
        "Ready": _closed({"status": {"type": "string", "enum": ["ready"]}, "count": whole}, ["status", "count"]),
        "Info": _closed(info, list(info)),
    }


def _count(most: int, default: int | None) -> JSON:
    schema: JSON = {"type": "integer", "nullable": True, "minimum": 1, "maximum": most}
    return schema if default is None else {**schema, "default": default}


def _kind() -> JSON:
    return {"type": "string", "nullable": True, "enum": ["query", "passage", None], "default": "query"}


def _closed(properties: JSON, required: list[str]) -> JSON:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
