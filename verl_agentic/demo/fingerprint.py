"""A hash of source files: what a cache compares to know whether the code behind a result has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]  # where verl_agentic and retriever_server lie


def source_files(patterns: Iterable[str]) -> list[Path]:
    """Files below ROOT that match the patterns, sorted. Raises FileNotFoundError where a pattern matches none."""
    found: set[Path] = set()
    for pattern in patterns:
        matches = set(ROOT.glob(pattern))
        if not matches:
            raise FileNotFoundError(f"no source file matches {pattern} in {ROOT}: install the package again.")
        found |= matches
    return sorted(found)


def code_hash(patterns: Iterable[str]) -> str:
    """SHA-256 in hexadecimal over the bytes of the files that match."""
    digests = (hashlib.sha256(path.read_bytes()).hexdigest() for path in source_files(patterns))
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
