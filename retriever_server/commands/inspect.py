"""`inspect`: what an index folder was built from, and what it holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from retriever_server.manifest import Manifest, Part, read_manifest
from retriever_server.units import size
from retriever_server.vectors.record import VectorRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print the whole manifest as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the manifest; returns 0."""
    manifest = read_manifest(options.index)
    if options.json:
        print(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(options.index, manifest)))
    return 0


def _lines(folder: Path, manifest: Manifest) -> list[str]:
    lines = [
        f"index       {folder} ({manifest.kind}, format {manifest.format})",
        f"passages    {manifest.count:,} of {manifest.corpus} (SHA-256 {manifest.corpus_sha256})",
        f"canaries    {len(manifest.canaries)} ({manifest.found_by_own_words:.0%} of sampled passages are found by "
        "their own first words)",
    ]
    for part in manifest.parts:
        lines += _part_lines(part)
    lines.append("libraries   " + ", ".join(f"{name} {number}" for name, number in manifest.versions.items()))
    lines += [f"file        {size(record.bytes):>12}  {record.name}" for record in manifest.files]
    lines.append(f"in all      {size(sum(record.bytes for record in manifest.files)):>12}")
    return lines


def _part_lines(part: Part) -> list[str]:
    lines = [f"{part.kind:12}" + ", ".join(f"{name} {value!r}" for name, value in part.settings.items() if value != "")]
    if part.kind == "dense":
        record = VectorRecord.from_dict(part.vectors)
        shown = {name: value for name, value in part.vectors.items() if name not in ("advice", "rows") and value}
        told = ", ".join(f"{name} {value}" for name, value in shown.items())
        lines.append(f"vectors     {told}, shards {record.shards}")
        lines += [f"advice      {sentence}" for sentence in record.advice]
    return lines
