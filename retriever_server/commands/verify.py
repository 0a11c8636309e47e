"""`verify`: whether an index folder is whole and finds what it should."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from retriever_server.opening import OpenOptions
from retriever_server.verifying import Check, verify_index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, help="also compare the passages with this corpus file")
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu", help="what encodes")


def run(options: argparse.Namespace) -> int:
    """Print a line a check; returns 0, or 1 after naming the checks that failed."""
    failed: list[Check] = []
    for check in verify_index(options.index, options.corpus, OpenOptions(device=options.device)):
        print(f"{'ok' if check.holds else 'FAILED':8}{check.name:34}{check.found}", flush=True)
        if not check.holds:
            failed.append(check)
    if failed:
        names = ", ".join(check.name for check in failed)
        print(f"retriever: {options.index} fails {len(failed)} checks: {names}.", file=sys.stderr)
    return 1 if failed else 0
