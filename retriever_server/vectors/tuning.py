"""Recall against exact search on sampled queries, and the search parameters that reach a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retriever_server.encoders import Vectors
from retriever_server.vectors.record import GRAPH, INVERTED, VectorRecord
from retriever_server.vectors.search import Numbers, VectorSearcher

NEIGHBOURS = 10
QUERIES = 200
NEAR = 0.005
ROUNDING = 1e-6
EF_VALUES = (16, 32, 64, 128, 256, 512, 1024)

Take = Callable[[Numbers], Vectors]  # ascending rows -> their exact vectors


@dataclass(frozen=True)
class Sample:
    """Query vectors, and the exact score of each one's last true neighbour.

    `rows` are the passages that queries were made of, which are not counted as neighbours; -1 where there is none.
    """

    rows: Numbers
    vectors: Vectors
    cuts: Vectors
    neighbours: int


def make_sample(rows: Numbers, vectors: Vectors, blocks: Iterable[Vectors], count: int) -> Sample:
    """Find the true neighbours of `vectors` by one pass over `blocks`, which are all `count` vectors in row order."""
    neighbours = min(NEIGHBOURS, count - 1)
    best = np.full((len(rows), neighbours), -np.inf, dtype=np.float32)
    start = 0
    for block in blocks:
        scores = vectors @ block.T
        own = (rows >= start) & (rows < start + len(block))
        scores[own, rows[own] - start] = -np.inf
        best = -np.sort(-np.concatenate([best, scores], axis=1), axis=1)[:, :neighbours]
        start += len(block)
    return Sample(rows, vectors, best[:, -1] if neighbours else np.empty(len(rows), np.float32), neighbours)


def recall(searcher: VectorSearcher, sample: Sample, take: Take) -> float:
    """Return the share of the sample's true neighbours that `searcher` finds; passages that tie with one count."""
    if not sample.neighbours:
        return 1.0
    _, found = searcher.search_vectors(sample.vectors, sample.neighbours + 1)
    shares = [_share(sample, position, line, take) for position, line in enumerate(found)]
    return float(np.mean(shares))


def _share(sample: Sample, position: int, found: Numbers, take: Take) -> float:
    others = found[(found >= 0) & (found != sample.rows[position])][: sample.neighbours]
    scores = take(np.sort(others)) @ sample.vectors[position]
    cut = sample.cuts[position]
    return float((scores >= cut - ROUNDING * max(abs(cut), 1)).sum()) / sample.neighbours


def tune(
    record: VectorRecord,
    open_searcher: Callable[[VectorRecord], VectorSearcher],
    sample: Sample,
    take: Take,
    target: float,
) -> VectorRecord:
    """Return `record` with the least nprobe or ef_search that reaches `target` (or the one it has), and its recall.

    Where none reaches it, the least that comes within NEAR of the best: what quantization loses, no search brings back.
    `open_searcher` opens the index with the parameters of a record. The record's advice says what was measured.
    """
    if record.kind == "flat":
        return record
    name, values = _parameter(record)
    measured: list[VectorRecord] = []
    for value in values:
        tried = _with(record, name, value)
        measured.append(replace(tried, recall=round(recall(open_searcher(tried), sample, take), 4)))
        if measured[-1].recall >= target:
            break
    enough = min(target, max(line.recall for line in measured) - NEAR)
    tried = next(line for line in measured if line.recall >= enough)
    setting = f" with {name} {getattr(tried, name)}" if name else ""
    verdict = "which reaches" if tried.recall >= target else "which is below"
    sentence = (
        f"{tried.kind}{setting} finds {tried.recall:.3f} of the {sample.neighbours} nearest neighbours of "
        f"{len(sample.rows)} queries, {verdict} the target {target:g}"
    )
    return replace(tried, advice=[*record.advice, sentence])


def _with(record: VectorRecord, name: str, value: int) -> VectorRecord:
    changes: dict[str, Any] = {name: value} if name else {}
    return replace(record, **changes)


def _parameter(record: VectorRecord) -> tuple[str, list[int]]:
    if record.kind in INVERTED:
        doubling = [2**power for power in range(record.nlist.bit_length()) if 2**power < record.nlist]
        return "nprobe", [record.nprobe] if record.nprobe else [*doubling, record.nlist]
    if record.kind in GRAPH:
        return "ef_search", [record.ef_search] if record.ef_search else list(EF_VALUES)
    return "", [0]
