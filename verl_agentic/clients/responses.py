"""The answers of /embed and /rerank, checked before anybody computes with them; that of /retrieve is in the schema."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_server.schema import ResponseError

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Ranked:
    """A document of a rerank call by its index in that call, with its score (higher is better)."""

    index: int
    score: float


def parse_embeddings(payload: Any, text_count: int) -> Vectors:
    """Return `embeddings` as float32 of shape (text_count, dimension); raises ResponseError for anything else."""
    rows = payload.get("embeddings") if isinstance(payload, dict) else None
    if not isinstance(rows, list) or len(rows) != text_count:
        found = len(rows) if isinstance(rows, list) else "no"
        raise ResponseError(f"`embeddings` holds {found} vectors for {text_count} texts")
    try:
        array = np.asarray(rows)
    except ValueError as error:
        raise ResponseError("`embeddings` holds vectors of different lengths") from error
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "fi":
        raise ResponseError("`embeddings` is not a list of equally long lists of numbers")
    with np.errstate(over="ignore"):
        vectors = array.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ResponseError("`embeddings` holds a number that is not finite")
    return vectors


def parse_ranking(payload: Any, document_count: int, wanted: int) -> list[Ranked]:
    """Return `results`, best first; raises ResponseError unless they are `wanted` different documents with scores."""
    items = payload.get("results") if isinstance(payload, dict) else None
    if not isinstance(items, list) or len(items) != wanted:
        found = len(items) if isinstance(items, list) else "no"
        raise ResponseError(f"`results` holds {found} documents where {wanted} are due")
    ranking = [_ranked(item, f"`results[{place}]`", document_count) for place, item in enumerate(items)]
    if len({ranked.index for ranked in ranking}) != len(ranking):
        raise ResponseError("`results` names a document twice")
    return sorted(ranking, key=lambda ranked: -ranked.score)


def _ranked(item: Any, where: str, document_count: int) -> Ranked:
    index, score = (item.get("index"), item.get("relevance_score")) if isinstance(item, dict) else (None, None)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < document_count:
        raise ResponseError(f"{where} has no `index` of one of the {document_count} documents")
    # compared, not converted: JSON has whole numbers that no float can hold
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= sys.float_info.max:
        raise ResponseError(f"{where} has no finite `relevance_score`")
    return Ranked(index, float(score))
