"""Which kind of index suits a corpus: from its size, the memory there is, and the recall on a sample of its vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from retriever_server.encoders import Vectors
from retriever_server.errors import IndexRefused
from retriever_server.units import size
from retriever_server.vectors.kinds import fill
from retriever_server.vectors.record import VectorRecord, VectorSettings, index_bytes, resolve
from retriever_server.vectors.search import VectorIndex
from retriever_server.vectors.tuning import Sample, make_sample, tune

SAMPLE = 20_000  # vectors of the corpus that candidates are tried on
QUERIES = 100
EXACT_FLOATS = 150_000_000  # an exhaustive search of so many numbers takes 20 ms of a core (docs/scale.md)
RAM_SHARE = 0.7  # of the available memory that an index may take when it is served
EXHAUSTIVE = ("sq8", "fp16", "flat")


def advise(
    settings: VectorSettings, rows: list[int], sample: Vectors, ram: int, exact_floats: int = EXACT_FLOATS
) -> tuple[VectorSettings, list[str]]:
    """Return settings that name a kind, and sentences that say why.

    `rows` are the ranges of the shards, `sample` evenly spaced vectors of the corpus, `ram` the bytes available. Kinds
    that search faster come first; the first that fits into memory and reaches the recall target on the sample is taken.
    Raises IndexRefused when no kind fits.
    """
    count, dimension = rows[-1], sample.shape[1]
    budget = round(RAM_SHARE * ram)
    flat = VectorRecord("flat", dimension, rows)
    if count * dimension <= exact_floats and index_bytes(flat, count) <= budget:
        why = (
            f"flat: {count:,} vectors of {dimension} dimensions are few enough to be searched exhaustively and exactly"
        )
        return replace(settings, kind="flat"), [why]
    advice: list[str] = []
    best: tuple[float, VectorSettings] | None = None
    for candidate in _candidates(settings, dimension):
        reached = _try(candidate, rows, sample, budget, advice)
        if reached is not None and (best is None or reached > best[0]):
            best = (reached, candidate)
        if reached is not None and reached >= settings.recall_target:
            break
    if best is None:
        raise IndexRefused(f"No index kind of {count:,} vectors fits into memory: {'; '.join(advice)}.")
    return best[1], [*advice, f"{best[1].kind} is chosen"]


def _candidates(settings: VectorSettings, dimension: int) -> Iterator[VectorSettings]:
    yield replace(settings, kind="hnsw")
    yield replace(settings, kind="ivf_flat")
    for part in (4, 2):
        if dimension % part == 0:
            yield replace(settings, kind="ivf_pq", pq_m=dimension // part)
    for kind in EXHAUSTIVE:
        yield replace(settings, kind=kind)


def _try(candidate: VectorSettings, rows: list[int], sample: Vectors, budget: int, advice: list[str]) -> float | None:
    """Add a sentence about `candidate` to `advice`; return its recall on the sample, or None when it is out."""
    name = candidate.kind + (f" of {candidate.pq_m} bytes" if candidate.pq_m else "")
    try:
        whole = resolve(candidate, sample.shape[1], rows)
        small = resolve(candidate, sample.shape[1], [0, len(sample)])
    except IndexRefused:
        advice.append(f"{name}: too few passages to train it")
        return None
    need = index_bytes(whole, rows[-1])
    if need > budget:
        advice.append(f"{name}: {size(need)} do not fit into the {size(budget)} there are")
        return None
    reached = _sample_recall(small, sample, candidate.recall_target)
    advice.append(f"{name}: {size(need)}, recall {reached:.3f} on {len(sample):,} sampled vectors")
    return reached


def _sample_recall(record: VectorRecord, sample: Vectors, target: float) -> float:
    index = fill(record, sample, [sample])
    positions = np.unique(np.arange(QUERIES) * len(sample) // QUERIES)
    truth: Sample = make_sample(positions, sample[positions], [sample], len(sample))
    tuned = tune(record, lambda r: VectorIndex(index, 0, r.nprobe, r.ef_search), truth, lambda r: sample[r], target)
    return tuned.recall
