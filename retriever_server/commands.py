"""Commands: build an index from a corpus, serve it over HTTP, inspect it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

from retriever_server.app import ServerSettings, create_app
from retriever_server.backends.bm25 import ANALYZERS, BM25Settings
from retriever_server.encoders import RECORDS
from retriever_server.errors import RetrieverServerError
from retriever_server.index import build_index, open_index
from retriever_server.manifest import read_manifest
from retriever_server.serving import claim_port, serve, url_of


def run(argv: list[str] | None = None) -> int:
    """Run a command; returns 0, or 2 after printing one sentence about what was wrong."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    try:
        return int(options.command(options))
    except RetrieverServerError as error:
        print(f"retriever: {error}", file=sys.stderr)
        return 2


def _build(options: argparse.Namespace) -> int:
    bm25 = BM25Settings(analyzer=options.analyzer, k1=options.k1, b=options.b)
    manifest = build_index(options.corpus, options.encoder, options.out, force=options.force, bm25=bm25)
    print(
        f"built {options.out}: {manifest.count} passages, encoder {manifest.encoder}, "
        f"{manifest.found_by_own_words:.0%} of sampled passages found by their own first words"
    )
    return 0


def _serve(options: argparse.Namespace) -> int:
    claimed = claim_port(options.host, options.port)
    os.environ["OMP_NUM_THREADS"] = str(options.search_threads)  # read when faiss or torch is imported, below
    backend, manifest = open_index(options.index)
    settings = ServerSettings(max_pending=options.max_pending)
    url = url_of(claimed)
    announce = f"retriever ready url={url} docs={manifest.count} encoder={manifest.encoder}"
    serve(create_app(backend, settings), claimed, settings, announce)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    print(json.dumps(asdict(read_manifest(options.index)), indent=2, ensure_ascii=False))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="retriever_server", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="build an index folder from a corpus"))
    _add_serve(commands.add_parser("serve", help="serve an index folder over HTTP"))
    inspect = commands.add_parser("inspect", help="print what an index folder was built from")
    inspect.add_argument("--index", type=Path, required=True)
    inspect.set_defaults(command=_inspect)
    return parser


def _add_build(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(command=_build)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port")
    parser.add_argument("--max-pending", type=_positive, default=256, help="searches under way before 503")
    parser.add_argument("--search-threads", type=_positive, default=1, help="threads of one search or encoding")
    parser.set_defaults(command=_serve)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
