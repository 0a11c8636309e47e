"""`serve`: an index folder over HTTP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from retriever_server.app import ServerSettings, create_app
from retriever_server.commands.arguments import positive
from retriever_server.index import open_index
from retriever_server.serving import claim_port, url_of
from retriever_server.serving import serve as serve_app


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `serve`."""
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port")
    parser.add_argument("--max-pending", type=positive, default=256, help="searches under way before 503")
    parser.add_argument("--search-threads", type=positive, default=1, help="threads of one search or encoding")


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop; returns 0."""
    claimed = claim_port(options.host, options.port)
    os.environ["OMP_NUM_THREADS"] = str(options.search_threads)  # read when faiss or torch is imported, below
    backend, manifest = open_index(options.index)
    settings = ServerSettings(max_pending=options.max_pending)
    url = url_of(claimed)
    announce = f"retriever ready url={url} docs={manifest.count} encoder={manifest.encoder}"
    serve_app(create_app(backend, settings), claimed, settings, announce)
    return 0
