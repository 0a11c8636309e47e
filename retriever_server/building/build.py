"""Building an index folder from a corpus, in steps that a killed build need not repeat."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retriever_server.backends.base import Backend
from retriever_server.backends.bm25 import BM25Backend, BM25Settings
from retriever_server.building.preflight import Limits, check_bm25, check_passages, check_vectors
from retriever_server.building.progress import Progress, say
from retriever_server.building.workplace import Workplace, claim
from retriever_server.canaries import choose_canaries
from retriever_server.corpus import CorpusReader, Passage, corpus_stat, file_sha256
from retriever_server.encoders import Encoder, EncoderRecord, find_record, open_encoder
from retriever_server.errors import IndexRefused
from retriever_server.manifest import CANARY_VECTORS, MANIFEST, Manifest, Part, file_records
from retriever_server.passages import PASSAGES, PassageStore, write_passages
from retriever_server.text import clean
from retriever_server.vectors.record import AUTO, VectorRecord, VectorSettings, resolve

CHUNK_ROWS = 2048
TELL_EVERY = 10_000  # passages between two looks at the clock


@dataclass(frozen=True)
class BuildOptions:
    """How an index is built.

    `vectors` declares the index of a dense part and `shards` the number of its files; `chunk_rows` is the number of
    passages that a killed build encodes again at most; `limits` are the bytes of disk and memory there are; `device`
    and `threads` are what encodes (see open_encoder); `line` gets each line of progress.
    """

    vectors: VectorSettings = field(default_factory=VectorSettings)
    shards: int = 1
    chunk_rows: int = CHUNK_ROWS
    limits: Limits = field(default_factory=Limits)
    device: str = "cpu"
    threads: int = 0
    line: Callable[[str], None] = say

    def __post_init__(self) -> None:
        if self.shards < 1 or self.chunk_rows < 1:
            raise IndexRefused(f"A build needs at least 1 shard and 1 row a chunk, found {self.shards} and "
                               f"{self.chunk_rows}.")  # fmt: skip


@dataclass(frozen=True)
class _Job:
    corpus: Path
    parts: list[BM25Settings | EncoderRecord]
    encoder: Encoder | None
    options: BuildOptions
    place: Workplace


def build_index(
    corpus: Path,
    encoder: str,
    out: Path,
    *,
    force: bool = False,
    restart: bool = False,
    bm25: BM25Settings | None = None,
    options: BuildOptions | None = None,
) -> Manifest:
    """Build the index of `corpus` in the folder `out` and return its manifest.

    `encoder` is `bm25`, what `find_record` accepts, or `bm25+` and that for both. The work is done in `OUT.building`,
    from which the same call goes on after a kill; `restart` discards what lies there. The index appears under its name
    only when it is complete. Raises IndexRefused when `out` exists (unless `force`, and then only over an index or an
    empty folder; case P41), or cannot be written, or does not fit on the disk or into memory; CorpusError for a bad
    row; EncoderError for an unusable encoder.
    """
    options = options or BuildOptions()
    parts = _parts(encoder, bm25 or BM25Settings())
    real = Path(os.path.realpath(out))  # behind a link lies the disk that is meant
    try:
        _refuse_overwrite(real, force)
        with claim(real, _identity(corpus, parts, options)) as place:
            _refuse_overwrite(real, force)  # again: another build may have finished, or an old index come back
            corpus_stat(corpus)
            job = _Job(corpus, parts, _open_encoder(parts, options), options, place)
            if restart:
                place.discard()
            manifest = _write_index(job)
            place.move_into_place(real)
    except OSError as error:
        raise IndexRefused(f"The index {out} cannot be written ({error}); choose another folder.") from error
    return manifest


def _parts(encoder: str, bm25: BM25Settings) -> list[BM25Settings | EncoderRecord]:
    if encoder == "bm25":
        return [bm25]
    if encoder.startswith("bm25+"):
        return [bm25, find_record(encoder.removeprefix("bm25+"))]
    return [find_record(encoder)]


def _open_encoder(parts: list[BM25Settings | EncoderRecord], options: BuildOptions) -> Encoder | None:
    # first of all: a model that is absent should be known before hours of reading and indexing, not after
    record = next((part for part in parts if isinstance(part, EncoderRecord)), None)
    return open_encoder(record, options.device, options.threads) if record else None


def _identity(corpus: Path, parts: list[BM25Settings | EncoderRecord], options: BuildOptions) -> dict[str, Any]:
    identity: dict[str, Any] = {"corpus": os.path.realpath(corpus)}
    for part in parts:
        identity["bm25" if isinstance(part, BM25Settings) else "encoder"] = asdict(part)
    if any(isinstance(part, EncoderRecord) for part in parts):
        identity |= {"index": asdict(options.vectors), "shards": options.shards, "chunk_rows": options.chunk_rows}
    return identity


def _write_index(job: _Job) -> Manifest:
    passages = _passages(job)
    if job.encoder:
        _refuse_early(job, job.encoder.record, len(passages))
    parts: list[Part] = []
    for settings in job.parts:
        if isinstance(settings, BM25Settings):
            parts.append(_write_bm25(job, settings, passages))
    if job.encoder:
        parts.append(_write_dense(job, job.encoder, passages))
    return _finish(job, parts, passages)


def _passages(job: _Job) -> PassageStore:
    place, options = job.place, job.options
    if place.resume() and _has_passages(job):
        options.line(f"going on in {place.folder}: {place.state['passages']:,} passages are there")
        return PassageStore(place.index)
    place.clear()
    check_passages(job.corpus, place.folder, options.limits)
    stat = corpus_stat(job.corpus)
    place.note()
    place.index.mkdir()
    reader = CorpusReader(job.corpus)
    count = write_passages(place.index, _told(reader, Progress("read", stat[0], "bytes", options.line)))
    if count == 0:
        raise IndexRefused(f"The corpus {job.corpus} holds no passages; an index needs at least one.")
    place.note(passages=count, corpus_sha256=reader.sha256, corpus_stat=stat)
    options.line(f"{count:,} passages in {job.corpus}")
    return PassageStore(place.index)


def _has_passages(job: _Job) -> bool:
    state = job.place.state
    if corpus_stat(job.corpus) != state["corpus_stat"] and file_sha256(job.corpus) != state["corpus_sha256"]:
        raise IndexRefused(
            f"The unfinished build in {job.place.folder} is of another content of {job.corpus} (the SHA-256 differs); "
            "pass --restart to discard it."
        )
    try:
        return len(PassageStore(job.place.index)) == state["passages"]
    except (OSError, ValueError, EOFError):
        return False  # the run ended after it had moved the index into place, or before it was on the disk


def _told(reader: CorpusReader, progress: Progress) -> Iterator[Passage]:
    for number, passage in enumerate(reader):
        yield passage
        if number % TELL_EVERY == TELL_EVERY - 1:
            progress(reader.bytes_read)


def _refuse_early(job: _Job, record: EncoderRecord, count: int) -> None:
    from retriever_server.building.assembly import shard_rows
    from retriever_server.building.chunks import Chunks

    options = job.options
    if count < options.shards:
        raise IndexRefused(f"{count} passages cannot be split into {options.shards} shards.")
    made = Chunks(job.place.chunks, count, options.chunk_rows, record.dimension).present()
    rows = shard_rows(count, options.shards)
    # what `auto` will choose is known once there are vectors; the flat index is the largest on disk, but for links
    planned = VectorRecord("flat", record.dimension, rows) if options.vectors.kind == AUTO else None
    planned = planned or resolve(options.vectors, record.dimension, rows)
    options.line(check_vectors(planned, made, job.place.folder, options.limits))


def _write_bm25(job: _Job, settings: BM25Settings, passages: PassageStore) -> Part:
    if not job.place.state.get("bm25"):
        if job.options.shards > 1:
            job.options.line("the BM25 part stays whole; --shards concerns the vectors")
        size = (job.place.index / PASSAGES).stat().st_size
        check_bm25(size, job.place.folder, job.options.limits)
        job.options.line(f"indexing {len(passages):,} passages for BM25")
        BM25Backend.from_passages(passages, settings).save(job.place.index)
        job.place.note(bm25=True)
    return Part("bm25", asdict(settings), {})


def _write_dense(job: _Job, encoder: Encoder, passages: PassageStore) -> Part:
    from retriever_server.building.assembly import assemble, choose, measure, shard_rows
    from retriever_server.building.chunks import Chunks

    options, place = job.options, job.place
    chunks = Chunks(place.chunks, len(passages), options.chunk_rows, encoder.record.dimension)
    if chunks.present() < len(passages):
        chunks.encode(passages, encoder, Progress("encoded", len(passages), "passages", options.line))
    if "vectors" not in place.state:
        record = choose(options.vectors, shard_rows(len(passages), options.shards), chunks, options.limits)
        for sentence in record.advice:
            options.line(sentence)
        check_vectors(record, len(passages), place.folder, options.limits)
        place.note(vectors=record.to_dict())
    record = VectorRecord.from_dict(place.state["vectors"])
    assemble(record, chunks, place.index, options.line)
    final = measure(record, chunks, place.index, passages, encoder, options.vectors.recall_target)
    for sentence in final.advice[len(record.advice) :]:
        options.line(sentence)
    return Part("dense", encoder.record.to_dict(), final.to_dict())


def _finish(job: _Job, parts: list[Part], passages: PassageStore) -> Manifest:
    from retriever_server.opening import OpenOptions, open_part

    place, options = job.place, job.options
    (place.index / MANIFEST).unlink(missing_ok=True)
    (place.index / CANARY_VECTORS).unlink(missing_ok=True)
    opening = OpenOptions(device=options.device, threads=options.threads)
    backends: list[Backend] = [open_part(place.index, part, passages, opening) for part in parts]
    canaries, share = choose_canaries(backends)
    dense = next((part for part in parts if part.kind == "dense"), None)
    if dense:
        _write_canary_vectors(job, dense, np.array([canary.row for canary in canaries]), len(passages))
    options.line("hashing the files")
    manifest = Manifest(
        count=len(passages),
        parts=parts,
        corpus=clean(job.corpus.name),
        corpus_sha256=place.state["corpus_sha256"],
        canaries=canaries,
        found_by_own_words=share,
        files=file_records(place.index),
    )
    manifest.write(place.index)
    return manifest


def _write_canary_vectors(job: _Job, part: Part, rows: np.ndarray, count: int) -> None:
    from retriever_server.building.chunks import Chunks

    chunks = Chunks(job.place.chunks, count, job.options.chunk_rows, part.vectors["dimension"])
    np.save(job.place.index / CANARY_VECTORS, chunks.take(rows))


def _refuse_overwrite(out: Path, force: bool) -> None:
    if not os.path.lexists(out):
        return
    if os.path.ismount(out):
        raise IndexRefused(f"{out} is a mount point, which cannot be replaced; choose a folder in it.")
    if not force:
        raise IndexRefused(f"{out} exists already; choose another folder, or pass --force to replace the index there.")
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise IndexRefused(f"{out} is not an index, so --force does not replace it; choose another folder.")
