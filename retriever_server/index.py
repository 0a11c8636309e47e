"""Building and opening an index folder: manifest, passages, and a BM25 model or passage vectors."""

from __future__ import annotations

import tempfile
from pathlib import Path

from retriever_server.backends.base import Backend
from retriever_server.backends.bm25 import BM25Backend, BM25Settings
from retriever_server.canaries import check_canaries, choose_canaries
from retriever_server.corpus import file_sha256, read_corpus
from retriever_server.encoders import EncoderRecord, find_record, open_encoder
from retriever_server.errors import IndexRefused
from retriever_server.manifest import MANIFEST, Manifest, read_manifest
from retriever_server.passages import PassageStore, write_passages


def build_index(
    corpus: Path, encoder: str, out: Path, *, force: bool = False, bm25: BM25Settings | None = None
) -> Manifest:
    """Build the index of `corpus` in the folder `out` and return its manifest.

    `encoder` is `bm25` or what `find_record` accepts. The folder appears under its name only when it is complete.
    Raises IndexRefused when `out` exists (unless `force`, and then only over an index or an empty folder; case P41),
    or cannot be written, CorpusError for a bad row, EncoderError for an unusable encoder.
    """
    _refuse_overwrite(out, force)
    settings = (bm25 or BM25Settings()) if encoder == "bm25" else find_record(encoder)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f"{out.name}.building-") as workplace:
            # a folder inside it: the workplace itself is readable by nobody else
            unfinished = Path(workplace) / "unfinished"
            unfinished.mkdir()
            manifest = _write_index(corpus, settings, unfinished)
            _move_into_place(unfinished, out)
    except OSError as error:
        raise IndexRefused(f"The index {out} cannot be written ({error}); choose another folder.") from error
    return manifest


def open_index(folder: Path) -> tuple[Backend, Manifest]:
    """Open an index folder; raise IndexRefused unless its parts belong together and its canaries hold."""
    manifest = read_manifest(folder)
    try:
        passages = PassageStore(folder)
    except (OSError, EOFError, ValueError) as error:
        sentence = f"The passages of {folder} are missing or damaged ({error}); build the index again."
        raise IndexRefused(sentence) from error
    if len(passages) != manifest.count:
        raise IndexRefused(
            f"The manifest of {folder} counts {manifest.count} passages but its passage file holds {len(passages)}; "
            "build the index again."
        )
    outside = [canary.row for canary in manifest.canaries if not 0 <= canary.row < manifest.count]
    if outside:
        raise IndexRefused(
            f"The manifest of {folder} names canary rows {outside} of {manifest.count} passages; build the index again."
        )
    backend = _open_backend(folder, manifest, passages)
    check_canaries(backend, manifest.canaries)
    return backend, manifest


def _open_backend(folder: Path, manifest: Manifest, passages: PassageStore) -> Backend:
    if manifest.kind == "bm25":
        return BM25Backend.load(folder, passages, BM25Settings.from_dict(manifest.settings))
    if manifest.kind != "dense":
        raise IndexRefused(f"The manifest of {folder} names the unknown kind '{manifest.kind}'; build the index again.")
    from retriever_server.backends.dense import DenseBackend

    dense = DenseBackend.load(folder, passages, open_encoder(EncoderRecord.from_dict(manifest.settings)))
    dense.check_vectors([canary.row for canary in manifest.canaries])
    return dense


def _write_index(corpus: Path, settings: BM25Settings | EncoderRecord, folder: Path) -> Manifest:
    sha256 = file_sha256(corpus)
    count = write_passages(folder, read_corpus(corpus))
    if count == 0:
        raise IndexRefused(f"The corpus {corpus} holds no passages; an index needs at least one.")
    passages = PassageStore(folder)
    backend: Backend
    if isinstance(settings, BM25Settings):
        backend = BM25Backend.from_passages(passages, settings)
    else:
        from retriever_server.backends.dense import DenseBackend

        backend = DenseBackend.from_passages(passages, open_encoder(settings))
    backend.save(folder)
    canaries, share = choose_canaries(backend)
    manifest = Manifest(
        kind=backend.kind,
        count=count,
        settings=backend.settings(),
        corpus=corpus.name,
        corpus_sha256=sha256,
        canaries=canaries,
        found_by_own_words=share,
    )
    manifest.write(folder)
    return manifest


def _refuse_overwrite(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise IndexRefused(f"{out} exists already; choose another folder, or pass --force to replace the index there.")
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise IndexRefused(f"{out} is not an index, so --force does not replace it; choose another folder.")


def _move_into_place(unfinished: Path, out: Path) -> None:
    replaced = unfinished.with_name("replaced")
    if out.exists():
        out.rename(replaced)
    try:
        unfinished.rename(out)
    except OSError:
        if replaced.exists():
            replaced.rename(out)
        raise
