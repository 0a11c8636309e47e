"""`build`: an index folder from a corpus."""

from __future__ import annotations

import argparse
from pathlib import Path

from retriever_server.backends.bm25 import ANALYZERS, BM25Settings
from retriever_server.encoders import RECORDS
from retriever_server.index import build_index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `build`."""
    parser.add_argument("--corpus", type=Path, required=True, help="JSON lines, plain or .gz")
    parser.add_argument(
        "--encoder",
        required=True,
        help=f"bm25, {', '.join(RECORDS)}, a model folder or hub id, or a record file (.json)",
    )
    parser.add_argument("--out", type=Path, required=True, help="the index folder to make")
    parser.add_argument("--force", action="store_true", help="replace the index that is there")
    parser.add_argument("--analyzer", choices=list(ANALYZERS), default="en", help="bm25: how text becomes words")
    parser.add_argument("--k1", type=float, default=1.5, help="bm25: saturation of repeated words")
    parser.add_argument("--b", type=float, default=0.75, help="bm25: weight of passage length, 0 to 1")


def run(options: argparse.Namespace) -> int:
    """Build the index; returns 0."""
    bm25 = BM25Settings(analyzer=options.analyzer, k1=options.k1, b=options.b)
    manifest = build_index(options.corpus, options.encoder, options.out, force=options.force, bm25=bm25)
    print(
        f"built {options.out}: {manifest.count} passages, encoder {manifest.encoder}, "
        f"{manifest.found_by_own_words:.0%} of sampled passages found by their own first words"
    )
    return 0
