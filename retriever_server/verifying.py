"""Checking an index folder more deeply than opening it does: every byte, every passage, and what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from retriever_server.backends.base import Backend
from retriever_server.canaries import held_canaries
from retriever_server.corpus import file_sha256, read_corpus
from retriever_server.encoders import Vectors
from retriever_server.errors import RetrieverServerError
from retriever_server.manifest import FileRecord, Manifest, Part, check_edges, file_digest, read_manifest
from retriever_server.opening import OpenOptions, canary_vectors, open_part, open_passages
from retriever_server.passages import PassageStore
from retriever_server.vectors.record import VectorRecord

if TYPE_CHECKING:
    from retriever_server.backends.dense import DenseBackend

SAMPLE = 100  # passages that are encoded again
NEIGHBOURS = 10
ROUNDING = 1e-5  # of a score computed in another order
RECALL_SLACK = 0.05  # below the recall measured at build time, which was against the vectors before quantization


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its name, whether it holds, and what was found."""

    name: str
    holds: bool
    found: str


def verify_index(folder: Path, corpus: Path | None = None, options: OpenOptions | None = None) -> Iterator[Check]:
    """Yield the checks of the index in `folder`, each as soon as it was made; with `corpus`, also against that file.

    What is refused or missing is a check that does not hold. Raises IndexRefused when there is no readable manifest.
    """
    options = options or OpenOptions()
    manifest = read_manifest(folder)
    damaged = []
    for record in manifest.files:
        check = _made(f"file {record.name}", lambda record=record: _file(folder, record))  # type: ignore[misc]
        damaged += [] if check.holds else [record.name]
        yield check
    yield _made("passages", lambda: _passages(folder, manifest))
    if corpus is not None:
        yield _made("corpus", lambda: _corpus(folder, manifest, corpus))
    for part in manifest.parts:
        unsafe = sorted(name for name in damaged if part.kind == "dense" and name.endswith(".faiss"))
        if unsafe:  # faiss follows what it reads blindly, and would take the whole process with it
            yield Check("dense part", False, f"not opened, since {', '.join(unsafe)} is not as built")
        else:
            yield from _part(folder, manifest, part, options)


def _made(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # a damaged file makes each library fail in a way of its own; what it says is found
        return Check(name, False, _told(error))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RetrieverServerError) else f"{type(error).__name__}: {error}"


def _file(folder: Path, record: FileRecord) -> tuple[bool, str]:
    path = folder / record.name
    if not path.is_file():
        return False, "missing"
    if path.stat().st_size != record.bytes:
        return False, f"{path.stat().st_size} bytes where the manifest says {record.bytes}"
    found = file_digest(path)
    if found != record.sha256:
        return False, f"SHA-256 {found[:12]}... where the manifest says {record.sha256[:12]}..."
    return True, f"{record.bytes:,} bytes, SHA-256 as built"


def _passages(folder: Path, manifest: Manifest) -> tuple[bool, str]:
    store = PassageStore(folder)
    readable = sum(1 for row in range(len(store)) if store[row].id)
    return readable == manifest.count, f"{readable:,} readable where the manifest says {manifest.count:,}"


def _corpus(folder: Path, manifest: Manifest, corpus: Path) -> tuple[bool, str]:
    if file_sha256(corpus) == manifest.corpus_sha256:
        return True, f"{corpus} has the SHA-256 of the corpus that was indexed"
    store = PassageStore(folder)
    count = 0
    for count, passage in enumerate(read_corpus(corpus), start=1):
        if count > len(store) or store[count - 1] != passage:
            return False, f"{corpus} differs from the index from passage {count} ('{passage.id}') on"
    if count != len(store):
        return False, f"{corpus} holds {count:,} passages and the index {len(store):,}"
    return True, f"{corpus} has other bytes but the same {count:,} passages"


def _part(folder: Path, manifest: Manifest, part: Part, options: OpenOptions) -> Iterator[Check]:
    try:
        check_edges(folder, manifest)
        backend = open_part(folder, part, open_passages(folder, manifest), options)
    except Exception as error:  # see _made
        yield Check(f"{part.kind} part", False, _told(error))
        return
    yield Check(f"{part.kind} part", True, f"opens over {len(backend.passages):,} passages")
    yield _made(f"{part.kind} canaries", lambda: _canaries(backend, manifest))
    if part.kind == "dense":
        yield from _dense(folder, manifest, part, cast("DenseBackend", backend), options)


def _canaries(backend: Backend, manifest: Manifest) -> tuple[bool, str]:
    held = held_canaries(backend, manifest.canaries)
    return all(held), f"{held.count(True)} of {len(held)} passages are found first by their own first words"


def _dense(
    folder: Path, manifest: Manifest, part: Part, backend: DenseBackend, options: OpenOptions
) -> Iterator[Check]:
    yield _made("stored vectors", lambda: _stored(folder, manifest, backend))
    record = VectorRecord.from_dict(part.vectors)
    rows = np.unique(np.arange(SAMPLE) * manifest.count // SAMPLE)
    try:
        fresh = backend.encode_rows(rows.tolist())
        exact = _exhaustive(folder, record, fresh, options)
    except Exception as error:  # see _made
        yield Check("encoded again", False, _told(error))
        return
    yield _made("encoded again", lambda: _themselves(backend, rows, exact[1]))
    yield _made("recall", lambda: _recall(backend, record, fresh, exact))


def _stored(folder: Path, manifest: Manifest, backend: DenseBackend) -> tuple[bool, str]:
    rows = [canary.row for canary in manifest.canaries]
    backend.check_vectors(rows, canary_vectors(folder, manifest, backend.settings()["dimension"]))
    return True, f"the exact vectors of {len(rows)} canaries are those that '{backend.settings()['id']}' gives now"


def _exhaustive(
    folder: Path, record: VectorRecord, vectors: Vectors, options: OpenOptions
) -> tuple[Vectors, np.ndarray]:
    from retriever_server.backends.sharded import open_vectors

    searcher = open_vectors(folder, record, mmap=options.mmap, exhaustive=True)
    return searcher.search_vectors(vectors, min(NEIGHBOURS, searcher.count))


def _themselves(backend: Backend, rows: np.ndarray, exact: np.ndarray) -> tuple[bool, str]:
    passages = backend.passages
    held = 0
    for row, found in zip(rows, exact, strict=True):
        contents = passages[int(row)].contents
        held += any(passages[int(other)].contents == contents for other in found if other >= 0)
    what = f"{held} of {len(rows)} sampled passages, encoded now, find themselves among the first ten"
    return held == len(rows), what


def _recall(
    backend: DenseBackend, record: VectorRecord, vectors: Vectors, exact: tuple[Vectors, np.ndarray]
) -> tuple[bool, str]:
    scores = backend.search_vectors(vectors, exact[0].shape[1])[0]
    cuts = exact[0][:, -1:]  # by score, since among equal passages any is as good
    reached = float((scores >= cuts - ROUNDING * np.maximum(np.abs(cuts), 1)).mean())
    built = f" ({record.recall:.3f} against exact vectors at build time)" if record.kind != "flat" else ""
    what = f"{record.kind} finds {reached:.3f} of what an exhaustive search of the same index finds{built}"
    return reached >= record.recall - RECALL_SLACK, what
