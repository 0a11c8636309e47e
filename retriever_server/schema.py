"""The one definition of the wire between a retriever and its clients (Search-R1's `/retrieve`, version 1).

Request  `{"queries": [str], "topk": int | null, "return_scores": bool}`, or `"query": str` in place of `queries`.
Response `{"result": [[{"document": {"id", "contents"}, "score"}]]}`, one list a query; bare documents without scores.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retriever_server.errors import RequestError, RetrieverServerError

KEYS = ("queries", "query", "topk", "return_scores")


class ResponseError(RetrieverServerError):
    """A response that breaks the schema; the sentence says where (case P23)."""


@dataclass(frozen=True)
class Limits:
    """`default_topk` answers a null topk; `max_topk` and `max_queries` are the most one request may ask for.

    `max_chars` is the longest query or text.
    """

    default_topk: int = 3
    max_topk: int = 100
    max_queries: int = 512
    max_chars: int = 65_536


@dataclass(frozen=True)
class RetrieveRequest:
    """A valid request: at least one query, 1 <= topk <= Limits.max_topk."""

    queries: tuple[str, ...]
    topk: int
    return_scores: bool


@dataclass(frozen=True)
class Document:
    """A passage as it travels; `score` is None when the request wanted none."""

    id: str
    contents: str
    score: float | None


def parse_request(payload: Any, limits: Limits) -> RetrieveRequest:
    """Check a decoded JSON body; raises RequestError with one sentence on whatever breaks the schema."""
    check_keys(payload, KEYS)
    return RetrieveRequest(
        _queries(payload, limits), parse_count(payload, "topk", limits.default_topk, limits.max_topk), _scores(payload)
    )


def check_keys(payload: Any, keys: Sequence[str]) -> None:
    """Raise RequestError unless `payload` is an object with no key but `keys`, of which the first is the chief one."""
    if not isinstance(payload, dict):
        raise RequestError(f"The body must be a JSON object with `{keys[0]}`, not {_kind(payload)}.")
    for key in payload:
        if key not in keys:
            raise RequestError(f"Unknown key {_quoted(key)}{_nearest(key, keys)}; the keys are {', '.join(keys)}.")


def parse_text(payload: dict[str, Any], key: str, limits: Limits, hint: str = "") -> str:
    """Return the string under `key`; `hint` ends the sentence about anything that is no string."""
    text = payload.get(key)
    if not isinstance(text, str):
        raise RequestError(f"`{key}` must be a string, not {_kind(text)}{hint}.")
    _check_length(text, key, limits)
    return text


def parse_texts(payload: dict[str, Any], key: str, limits: Limits) -> tuple[str, ...]:
    """Return the strings of the non-empty list under `key`."""
    texts = payload.get(key)
    if not isinstance(texts, list) or not texts:
        raise RequestError(f"`{key}` must be a non-empty list of strings, not {_kind(texts)}.")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(f"`{key}[{position}]` must be a string, not {_kind(text)}.")
        _check_length(text, f"{key}[{position}]", limits)
    if len(texts) > limits.max_queries:
        raise RequestError(f"`{key}` holds {len(texts)} {key}; at most {limits.max_queries} fit in one request.")
    return tuple(texts)


def parse_count(payload: dict[str, Any], key: str, default: int, most: int) -> int:
    """Return the whole number from 1 to `most` under `key`; `default` where there is none, or null."""
    value = payload.get(key)
    if value is None:
        return default
    if isinstance(value, float):
        raise RequestError(f"`{key}` must be written as a whole number such as 3, not {json.dumps(value)}.")
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"`{key}` must be a whole number or null, not {_kind(value)}.")
    if not 1 <= value <= most:
        shown = value if abs(value) < 10**12 else "a far larger number"
        raise RequestError(f"`{key}` must be between 1 and {most}, not {shown}.")
    return value


def render_request(queries: Sequence[str], topk: int | None) -> dict[str, Any]:
    """Return the JSON body that asks for `queries` with scores; `topk` None leaves the number to the server."""
    return {"queries": list(queries), "topk": topk, "return_scores": True}


def render_response(results: Sequence[Sequence[Document]], return_scores: bool) -> dict[str, Any]:
    """Return the JSON body that answers a request, one list of documents a query."""
    return {"result": [[_render(document, return_scores) for document in documents] for documents in results]}


def parse_response(payload: Any, query_count: int) -> list[list[Document]]:
    """Return the documents of a decoded response; fewer per query than asked for, or none, is fine.

    Raises ResponseError when the shape is another, or the number of lists is not `query_count`.
    """
    if not isinstance(payload, dict) or "result" not in payload:
        raise ResponseError(f"the response has no `result` key (found {_found(payload)})")
    result = payload["result"]
    if not isinstance(result, list) or not all(isinstance(documents, list) for documents in result):
        raise ResponseError("`result` is not a list of lists")
    if len(result) != query_count:
        raise ResponseError(f"`result` holds {len(result)} lists for {query_count} queries")
    return [
        [_parse_document(item, f"`result[{query}][{rank}]`") for rank, item in enumerate(documents)]
        for query, documents in enumerate(result)
    ]


def _queries(payload: dict[str, Any], limits: Limits) -> tuple[str, ...]:
    if "queries" in payload and "query" in payload:
        raise RequestError("Give either `queries` or `query`, not both.")
    if "query" in payload:
        return (parse_text(payload, "query", limits, "; use `queries` for a list"),)
    return parse_texts(payload, "queries", limits)


def _scores(payload: dict[str, Any]) -> bool:
    value = payload.get("return_scores", False)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"`return_scores` must be true or false, not {_kind(value)}.")
    return value


def _check_length(text: str, name: str, limits: Limits) -> None:
    if len(text) > limits.max_chars:
        raise RequestError(f"`{name}` has {len(text)} characters; at most {limits.max_chars} are accepted.")


def _render(document: Document, return_scores: bool) -> dict[str, Any]:
    bare = {"id": document.id, "contents": document.contents}
    return {"document": bare, "score": document.score} if return_scores else bare


def _parse_document(item: Any, where: str) -> Document:
    bare = item.get("document", item) if isinstance(item, dict) else item
    if not isinstance(bare, dict) or not isinstance(bare.get("contents"), str):
        raise ResponseError(f"{where} is not a document with a string `contents` (found {_found(bare)})")
    identifier = bare.get("id", "")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ResponseError(f"{where} has an `id` that is neither string nor number")
    return Document(str(identifier), bare["contents"], _parse_score(item, where))


def _parse_score(item: dict[str, Any], where: str) -> float | None:
    score = item.get("score")
    if score is None:
        return None
    # compared, not converted: JSON has whole numbers that no float can hold
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= sys.float_info.max:
        raise ResponseError(f"{where} has a `score` that is not a finite number")
    return float(score)


def _nearest(key: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`" if near else ""


def _quoted(key: str) -> str:
    return ascii(key[:40])


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    empty = "an empty list" if value == [] else None
    return empty or names.get(type(value), "a number")


def _found(value: Any) -> str:
    return f"keys {[key[:40] for key in sorted(value)[:5]]}" if isinstance(value, dict) else _kind(value)
