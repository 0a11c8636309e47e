"""`build`: an index folder from a corpus."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from retriever_server.backends.bm25 import ANALYZERS, BM25Settings
from retriever_server.building.build import CHUNK_ROWS, BuildOptions
from retriever_server.building.preflight import Limits
from retriever_server.commands.arguments import positive
from retriever_server.encoders import RECORDS
from retriever_server.errors import RetrieverServerError
from retriever_server.index import build_index
from retriever_server.vectors.record import AUTO, KINDS, VectorSettings

MOST_GB = 1e9
OF_VECTORS = ("nlist", "pq_m", "hnsw_m", "nprobe", "ef_search")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `build`."""
    parser.add_argument("--corpus", type=Path, required=True, help="JSON lines, plain or .gz")
    parser.add_argument(
        "--encoder",
        required=True,
        help=f"bm25, {', '.join(RECORDS)}, a model folder or hub id, a .yaml or .json record, or bm25+ one of these",
    )
    parser.add_argument("--out", type=Path, required=True, help="the index folder to make")
    parser.add_argument("--force", action="store_true", help="replace the index that is there")
    parser.add_argument("--restart", action="store_true", help="discard what an unfinished build left")
    _add_bm25(parser)
    _add_vectors(parser)
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu", help="what encodes (cpu)")
    parser.add_argument("--threads", type=positive, default=0, help="threads that encode (default: the libraries' own)")
    parser.add_argument("--max-ram", type=gigabytes, help="GB of memory to plan with (default: what is available)")


def _add_bm25(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--analyzer", choices=list(ANALYZERS), default="en", help="bm25: how text becomes words (en)")
    parser.add_argument("--k1", type=float, default=1.5, help="bm25: saturation of repeated words (1.5)")
    parser.add_argument("--b", type=float, default=0.75, help="bm25: weight of passage length, 0 to 1 (0.75)")


def _add_vectors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", choices=[*KINDS, AUTO], default="flat", help="kind of the vectors' index (flat)")
    parser.add_argument("--nlist", type=positive, default=0, help="ivf: number of lists (default: 4 sqrt(passages))")
    parser.add_argument("--pq-m", type=positive, default=0, help="ivf_pq: bytes a vector (default: dimension / 4)")
    parser.add_argument("--hnsw-m", type=positive, default=0, help="hnsw: links of a node (default: 32)")
    parser.add_argument("--nprobe", type=positive, default=0, help="ivf: lists a search looks at (default: measured)")
    parser.add_argument("--ef-search", type=positive, default=0, help="hnsw: breadth of a search (default: measured)")
    parser.add_argument("--recall-target", type=float, default=0.95, help="what nprobe or ef_search is to reach (0.95)")
    parser.add_argument(
        "--shards", type=positive, default=1, help="number of files that the vectors are split into (1)"
    )
    parser.add_argument(
        "--chunk-rows", type=positive, default=CHUNK_ROWS, help=f"passages encoded between two saves ({CHUNK_ROWS})"
    )


def gigabytes(text: str) -> int:
    """Return `text`, a number of GB above 0, in bytes."""
    value = float(text)
    if not 0 < value < MOST_GB:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and below {MOST_GB:g}")
    return round(value * 1e9)


def run(options: argparse.Namespace) -> int:
    """Build the index; returns 0, or 130 when it was interrupted."""
    _refuse_vectors_of_bm25(options)
    names = ("nlist", "pq_m", "hnsw_m", "nprobe", "ef_search", "recall_target")
    vectors = VectorSettings(options.index, **{name: getattr(options, name) for name in names})
    how = BuildOptions(
        vectors=vectors,
        shards=options.shards,
        chunk_rows=options.chunk_rows,
        limits=Limits(ram=options.max_ram),
        device=options.device,
        threads=options.threads,
    )
    bm25 = BM25Settings(analyzer=options.analyzer, k1=options.k1, b=options.b)
    try:
        manifest = build_index(
            options.corpus,
            options.encoder,
            options.out,
            force=options.force,
            restart=options.restart,
            bm25=bm25,
            options=how,
        )
    except KeyboardInterrupt:
        print("retriever: The build was interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    print(
        f"built {options.out}: {manifest.count} passages, encoder {manifest.encoder}, "
        f"{manifest.found_by_own_words:.0%} of sampled passages found by their own first words"
    )
    return 0


def _refuse_vectors_of_bm25(options: argparse.Namespace) -> None:
    chosen = options.index != "flat" or any(getattr(options, name) for name in OF_VECTORS)
    if options.encoder == "bm25" and chosen:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ("index", *OF_VECTORS))
        raise RetrieverServerError(
            f"{names} are for vectors, and --encoder bm25 has none; leave them out, or build bm25+ENCODER."
        )
