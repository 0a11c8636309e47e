"""Vectors in chunks -> the index files of one dense part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from retriever_server.backends.base import Rows
from retriever_server.backends.sharded import open_vectors
from retriever_server.building.chunks import Chunks, evenly_spaced
from retriever_server.building.preflight import Limits
from retriever_server.encoders import Encoder, encode_queries
from retriever_server.vectors.advisor import SAMPLE, advise
from retriever_server.vectors.kinds import write
from retriever_server.vectors.record import AUTO, VectorRecord, VectorSettings, resolve, training_size
from retriever_server.vectors.tuning import QUERIES, make_sample, tune

Line = Callable[[str], None]
QUERY_WORDS = 12


def shard_rows(count: int, shards: int) -> list[int]:
    """Return the first row of each shard, and last `count`; shards are contiguous and as even as can be."""
    return [number * count // shards for number in range(shards + 1)]


def choose(settings: VectorSettings, rows: list[int], chunks: Chunks, limits: Limits) -> VectorRecord:
    """Return the record to assemble: as asked for, or for `auto` as advised."""
    if settings.kind != AUTO:
        return resolve(settings, chunks.dimension, rows)
    sample = chunks.take(evenly_spaced(chunks.count, SAMPLE))
    settings, advice = advise(settings, rows, sample, limits.ram_bytes())
    return replace(resolve(settings, chunks.dimension, rows), advice=advice)


def assemble(record: VectorRecord, chunks: Chunks, folder: Path, line: Line) -> None:
    """Write the index files of `record` into `folder`."""
    for number, name in enumerate(record.file_names()):
        first, stop = record.rows[number], record.rows[number + 1]
        line(f"assembling {name}: {record.kind} of rows {first:,} to {stop - 1:,}")
        training = chunks.take(first + evenly_spaced(stop - first, training_size(record, stop - first)))
        write(record, training, chunks.blocks(first, stop), stop - first, folder / name)


def measure(
    record: VectorRecord, chunks: Chunks, folder: Path, passages: Rows, encoder: Encoder, target: float
) -> VectorRecord:
    """Return the assembled `record` with the search parameters that reach `target`, and the recall measured.

    Queries are the first words of passages, encoded as queries: passages themselves lie among their like, and are found
    with less effort than questions are.
    """
    if record.kind == "flat":
        return record
    rows = evenly_spaced(chunks.count, QUERIES)
    queries = [" ".join(passages[int(row)].contents.split()[:QUERY_WORDS]) for row in rows]
    sample = make_sample(rows, encode_queries(encoder, queries), chunks.blocks(), chunks.count)
    return tune(record, lambda tried: open_vectors(folder, tried), sample, chunks.take, target)
