"""Texts a second of all-MiniLM-L6-v2 in each runtime of the CPU: torch, ONNX Runtime, ONNX Runtime with 8-bit weights.

The texts are real questions. Seconds are those of CPU in one thread, which other work on the machine does not lengthen
much; of ROUNDS rounds, which take turns among the runtimes, the best counts. The cosines compare the vectors of the
questions with torch's.

    python benchmarks/encoder_runtimes.py --questions ../shared/data/multihop/questions.jsonl.gz \
        --output benchmarks/results/encoder_runtimes.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ENCODER = "all-MiniLM-L6-v2"
RUNTIMES = ("torch", "onnx", "onnx_int8")
BATCHES = (1, 8, 32, 64)
TEXTS = 128
ROUNDS = 3


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help=".jsonl.gz whose rows have `question`")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    with gzip.open(options.questions) as lines:
        texts = [json.loads(line)["question"] for _, line in zip(range(TEXTS), lines, strict=False)]
    record = measured(texts)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


def measured(texts: list[str]) -> dict[str, Any]:
    """The figures of every runtime."""
    from retriever_server.encoders import encode_queries, find_record, open_encoder

    declared = find_record(ENCODER)
    encoders = {name: open_encoder(replace(declared, runtime=name), threads=1) for name in RUNTIMES}
    vectors = {name: encode_queries(encoder, texts) for name, encoder in encoders.items()}
    rates: dict[str, dict[str, float]] = {name: {} for name in RUNTIMES}
    for batch in BATCHES:
        for _ in range(ROUNDS):
            for name, encoder in encoders.items():
                began = time.process_time()
                for start in range(0, len(texts), batch):
                    encode_queries(encoder, texts[start : start + batch])
                rate = round(len(texts) / (time.process_time() - began), 1)
                rates[name][str(batch)] = max(rate, rates[name].get(str(batch), 0.0))
    cosines = {name: np.sum(vectors[name] * vectors["torch"], axis=1) for name in RUNTIMES}
    return {
        "encoder": ENCODER,
        "texts": len(texts),
        "cores": os.cpu_count(),
        "texts_per_cpu_second": rates,
        "lowest_cosine_with_torch": {name: round(float(found.min()), 4) for name, found in cosines.items()},
    }


if __name__ == "__main__":
    main()
