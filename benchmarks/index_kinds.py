"""Recall, size and speed of each kind of vector index on at least 200,000 vectors.

The vectors are those of real passages (all-MiniLM-L6-v2, 384 dimensions) and copies of them with noise: a real vector
plus a Gaussian vector of expected length JITTER, brought back to length 1. The queries are real questions. Recall@10
is the share of the ten rows that Flat finds. nprobe and ef_search are the least that reach the recall target on every
other question, found as a build finds them; recall and speed are those of the other questions. Times are seconds of
CPU, which other work on the machine does not lengthen much.

    python benchmarks/index_kinds.py --data ../shared/data --output benchmarks/results/index_kinds.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ENCODER = "all-MiniLM-L6-v2"
JITTER = 0.6
SEED = 0
BLOCK = 4096
TOPK = 10
SECONDS = 3.0  # of searching for each figure
KINDS = (
    ("flat", {}),
    ("fp16", {}),
    ("sq8", {}),
    ("ivf_flat", {}),
    ("ivf_pq", {"pq_m": 96}),
    ("ivf_pq", {"pq_m": 192}),
    ("hnsw", {}),
)


def main() -> None:
    """Measure every kind and write the record after each."""
    options = arguments()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before faiss and torch are imported
    real, queries, rate = encoded(options)
    vectors = with_copies(real, options.vectors)
    record: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "threads": options.threads},
        "encoder": ENCODER,
        "vectors": {
            "all": len(vectors),
            "real": len(real),
            "jitter": JITTER,
            "corpora": options.corpora,
            "dimension": vectors.shape[1],
        },
        "queries": len(queries),
        "recall_target": options.recall_target,
        "passages_encoded_per_second": rate,
        "kinds": [],
    }
    truth = None
    for kind, parameters in KINDS:
        row, found = measured(kind, parameters, vectors, queries, options.recall_target)
        truth = found if truth is None else truth
        row["recall"] = round(overlap(found, truth), 4)
        record["kinds"].append(row)
        options.output.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(row), flush=True)


def arguments() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with multihop/ and 2wiki/")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="file that keeps the real vectors for another run")
    parser.add_argument("--corpora", nargs="+", default=["multihop", "2wiki"], help="folders of --data to encode")
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--recall-target", type=float, default=0.95)
    return parser.parse_args()


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl.gz file."""
    with gzip.open(path) as lines:
        for line in lines:
            yield json.loads(line)


def encoded(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, float]:
    """The vectors of passages and of questions, and the passages encoded in a second."""
    data, cache, corpora = options.data, options.cache, options.corpora
    if cache is not None and cache.is_file():
        kept = np.load(cache)
        return kept["passages"], kept["queries"], float(kept["rate"])
    from retriever_server.encoders import encode_passages, encode_queries, find_record, open_encoder

    encoder = open_encoder(find_record(ENCODER), threads=options.threads)
    texts = [row["contents"] for name in corpora for row in rows_of(data / name / "corpus.jsonl.gz")]
    questions = [row["question"] for name in corpora for row in rows_of(data / name / "questions.jsonl.gz")]
    began = time.perf_counter()
    passages = np.concatenate([encode_passages(encoder, texts[at : at + BLOCK]) for at in range(0, len(texts), BLOCK)])
    rate = round(len(texts) / (time.perf_counter() - began), 1)
    queries = encode_queries(encoder, questions)
    if cache is not None:
        np.savez(cache, passages=passages, queries=queries, rate=rate)
    return passages, queries, rate


def with_copies(real: np.ndarray, count: int) -> np.ndarray:
    """`real` followed by noisy copies of them, `count` vectors of length 1 in all."""
    rng = np.random.default_rng(SEED)
    vectors = np.concatenate([real, real[rng.integers(len(real), size=max(count - len(real), 0))]])
    noise = rng.standard_normal((len(vectors) - len(real), real.shape[1]), dtype=np.float32)
    vectors[len(real) :] += noise * np.float32(JITTER / np.sqrt(real.shape[1]))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measured(
    kind: str, parameters: dict[str, int], vectors: np.ndarray, queries: np.ndarray, target: float
) -> tuple[dict[str, Any], np.ndarray]:
    """Build one kind as `build` does; its figures, and the rows that it finds for the queries."""
    from retriever_server.backends.sharded import open_vectors
    from retriever_server.building.chunks import evenly_spaced
    from retriever_server.vectors.kinds import write
    from retriever_server.vectors.record import VectorSettings, resolve, training_size
    from retriever_server.vectors.tuning import make_sample, tune

    record = resolve(VectorSettings(kind, **parameters), vectors.shape[1], [0, len(vectors)])
    blocks = [vectors[at : at + BLOCK] for at in range(0, len(vectors), BLOCK)]
    with TemporaryDirectory() as work:
        folder = Path(work)
        began = time.process_time()
        training = vectors[evenly_spaced(len(vectors), training_size(record, len(vectors)))]
        write(record, training, blocks, len(vectors), folder / "vectors.faiss")
        seconds = time.process_time() - began
        tuning, queries = queries[::2], queries[1::2]
        sample = make_sample(np.full(len(tuning), -1), tuning, blocks, len(vectors))
        record = tune(record, lambda tried: open_vectors(folder, tried), sample, lambda taken: vectors[taken], target)
        searcher = open_vectors(folder, record)
        found = searcher.search_vectors(queries, TOPK)[1]
        figures = {
            "kind": kind,
            "parameters": {name: value for name in PARAMETERS if (value := getattr(record, name))},
            "bytes": (folder / "vectors.faiss").stat().st_size,
            "build_seconds": round(seconds, 1),
            "recall_when_tuned": record.recall,
            "queries_per_second": {str(batch): speed(searcher, queries, batch) for batch in (1, 64)},
        }
    return figures, found


PARAMETERS = ("nlist", "pq_m", "hnsw_m", "nprobe", "ef_search")


def speed(searcher: Any, queries: np.ndarray, batch: int) -> float:
    """Queries a second of CPU, searched `batch` at a time for SECONDS of it."""
    batches = [queries[at : at + batch] for at in range(0, len(queries) - batch + 1, batch)]
    searcher.search_vectors(batches[0], TOPK)
    done, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        searcher.search_vectors(batches[done % len(batches)], TOPK)
        done += 1
    return round(done * batch / (time.process_time() - began), 1)


def overlap(found: np.ndarray, truth: np.ndarray) -> float:
    """The mean share of the true rows that were found."""
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))


if __name__ == "__main__":
    main()
