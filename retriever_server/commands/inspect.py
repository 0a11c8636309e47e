"""`inspect`: what an index folder was built from."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from retriever_server.manifest import read_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    parser.add_argument("--index", type=Path, required=True)


def run(options: argparse.Namespace) -> int:
    """Print the manifest as JSON; returns 0."""
    print(json.dumps(asdict(read_manifest(options.index)), indent=2, ensure_ascii=False))
    return 0
