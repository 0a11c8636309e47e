"""Opening an index folder: its parts, joined and reranked as asked for, once everything is found to fit together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retriever_server.backends.base import Backend
from retriever_server.backends.bm25 import BM25Backend, BM25Settings
from retriever_server.canaries import check_canaries
from retriever_server.encoders import Encoder, EncoderRecord, Vectors, find_record, open_encoder
from retriever_server.errors import IndexRefused
from retriever_server.manifest import CANARY_VECTORS, Manifest, Part, check_edges, check_sizes, read_manifest
from retriever_server.passages import PassageStore
from retriever_server.vectors.record import GRAPH, INVERTED, MOST, VectorRecord

if TYPE_CHECKING:
    from retriever_server.backends.dense import DenseBackend
    from retriever_server.fusion import FusionSettings
    from retriever_server.vectors.search import VectorIndex, VectorSearcher


@dataclass(frozen=True)
class OpenOptions:
    """How an index is opened.

    `use` is `bm25` or `dense` to serve one part of a hybrid index, empty for all. `fusion` joins the parts (None: its
    defaults). `reranker` names one, empty for none, and `rerank_depth` hits are reranked. `embedder` names an encoder
    for /embed where the index has none. `device` (`cpu`, `cuda`, `auto`) and `threads` (0: the libraries' own choice)
    are for encoders, rerankers and faiss. `mmap` maps vectors into memory instead of reading them. `nprobe` and
    `ef_search` replace the manifest's search parameters.
    """

    use: str = ""
    fusion: FusionSettings | None = None
    reranker: str = ""
    rerank_depth: int = 50
    embedder: str = ""
    device: str = "cpu"
    threads: int = 0
    mmap: bool = True
    nprobe: int | None = None
    ef_search: int | None = None

    def __post_init__(self) -> None:
        if self.use not in ("", "bm25", "dense"):
            raise IndexRefused(f"A part to use is bm25 or dense, not '{self.use}'.")
        for name in ("nprobe", "ef_search"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise IndexRefused(f"{name} {value} is not at least 1 and at most {MOST}.")


def open_index(
    folder: Path, options: OpenOptions | None = None, vectors: VectorSearcher | None = None
) -> tuple[Backend, Manifest]:
    """Open an index folder; raise IndexRefused unless its parts belong together and its canaries hold.

    `vectors`, where given, are searched in place of the dense part's files: shards that are open elsewhere.

    Sizes and edges of the files are checked here, their SHA-256 by `verify`. Raises EncoderError or RerankerError
    when a model cannot be loaded.
    """
    options = options or OpenOptions()
    manifest = read_manifest(folder)
    parts = _chosen(manifest, options, folder)
    check_edges(folder, manifest)
    passages = open_passages(folder, manifest)
    check_sizes(folder, manifest)
    backends = [_open_checked(folder, part, passages, manifest, options, vectors) for part in parts]
    backend = backends[0]
    if len(backends) > 1:
        from retriever_server.backends.hybrid import HybridBackend

        backend = HybridBackend(backends, options.fusion)
    return _with_models(backend, options), manifest


def open_shard(folder: Path, number: int, options: OpenOptions | None = None) -> VectorIndex:
    """Open shard `number` (from 0) of the vectors alone, without passages and encoder.

    Its `search_vectors(vectors, topk)` gives scores and rows of the whole index, which `backends.sharded.merge` joins.
    Raises IndexRefused when the index has no such shard.
    """
    from retriever_server.vectors.search import open_file

    options = options or OpenOptions()
    manifest = read_manifest(folder)
    dense = next((part for part in manifest.parts if part.kind == "dense"), None)
    if dense is None:
        raise IndexRefused(f"{folder} holds no vectors, so it has no shards; build it with an encoder.")
    record = VectorRecord.from_dict(dense.vectors)
    if not 0 <= number < record.shards:
        raise IndexRefused(f"{folder} has {record.shards} shards, so there is no shard {number} (they count from 0).")
    check_sizes(folder, manifest)
    check_edges(folder, manifest)
    _check_parameters(record, options)
    _set_threads(options.threads)
    return open_file(folder, record, number, mmap=options.mmap, nprobe=options.nprobe, ef_search=options.ef_search)


def open_part(
    folder: Path, part: Part, passages: PassageStore, options: OpenOptions, vectors: VectorSearcher | None = None
) -> Backend:
    """Open one part of an index, of a dense one in place of its files `vectors` if given, without its canaries."""
    if part.kind == "bm25":
        return BM25Backend.load(folder, passages, BM25Settings.from_dict(part.settings))
    from retriever_server.backends.dense import DenseBackend
    from retriever_server.backends.sharded import open_vectors

    settings, record = EncoderRecord.from_dict(part.settings), VectorRecord.from_dict(part.vectors)
    if record.dimension != settings.dimension:
        raise IndexRefused(
            f"The index in {folder} holds vectors of {record.dimension} dimensions but encoder '{settings.id}' gives "
            f"{settings.dimension}; serve it with the encoder that built it."
        )
    _check_parameters(record, options)
    _set_threads(options.threads)
    if vectors is None:
        vectors = open_vectors(folder, record, mmap=options.mmap, nprobe=options.nprobe, ef_search=options.ef_search)
    return DenseBackend(vectors, passages, _encoder(settings, options))


def open_passages(folder: Path, manifest: Manifest) -> PassageStore:
    """Open the passages of an index; raises IndexRefused when they are damaged or not as many as the manifest says."""
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
    return passages


def canary_vectors(folder: Path, manifest: Manifest, dimension: int) -> Vectors:
    """Read the exact vectors of the canaries' passages; raises IndexRefused when they are damaged."""
    path = folder / CANARY_VECTORS
    try:
        vectors: Vectors = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise IndexRefused(f"{path} is missing or damaged; build the index again.") from error
    expected = (len(manifest.canaries), dimension)
    if vectors.shape != expected or vectors.dtype != np.float32:
        raise IndexRefused(f"{path} holds {vectors.shape} numbers where the manifest says {expected}; build it again.")
    return vectors


def _chosen(manifest: Manifest, options: OpenOptions, folder: Path) -> list[Part]:
    parts = [part for part in manifest.parts if options.use in ("", part.kind)]
    if not parts:
        raise IndexRefused(f"{folder} has no {options.use} part; it is an index of {manifest.encoder}.")
    return parts


def _open_checked(
    folder: Path,
    part: Part,
    passages: PassageStore,
    manifest: Manifest,
    options: OpenOptions,
    vectors: VectorSearcher | None,
) -> Backend:
    backend = open_part(folder, part, passages, options, vectors)
    if part.kind == "dense":
        dense: DenseBackend = backend  # type: ignore[assignment]
        rows = [canary.row for canary in manifest.canaries]
        dense.check_vectors(rows, canary_vectors(folder, manifest, part.settings["dimension"]))
    check_canaries(backend, manifest.canaries, _replaced_parameters(part, options))
    return backend


def _replaced_parameters(part: Part, options: OpenOptions) -> str:
    replaced = {name: getattr(options, name) for name in ("nprobe", "ef_search")} if part.vectors else {}
    return " and ".join(
        f"{name} {value} where the index was built for {part.vectors[name]}"
        for name, value in replaced.items()
        if value is not None and value < part.vectors[name]
    )


def _with_models(backend: Backend, options: OpenOptions) -> Backend:
    if options.embedder and backend.encoder is None:
        backend.encoder = _encoder(find_record(options.embedder), options)
    if not options.reranker:
        return backend
    from retriever_server.backends.reranked import RerankedBackend
    from retriever_server.rerankers import find_reranker, open_reranker

    reranker = open_reranker(find_reranker(options.reranker), options.device, options.threads)
    return RerankedBackend(backend, reranker, options.rerank_depth)


def _encoder(record: EncoderRecord, options: OpenOptions) -> Encoder:
    return open_encoder(record, options.device, options.threads)


def _check_parameters(record: VectorRecord, options: OpenOptions) -> None:
    for name, value, kinds in (("nprobe", options.nprobe, INVERTED), ("ef_search", options.ef_search, GRAPH)):
        if value is not None and record.kind not in kinds:
            raise IndexRefused(f"An index of kind '{record.kind}' has no {name}; that is for {' and '.join(kinds)}.")


def _set_threads(threads: int) -> None:
    if threads:
        import faiss

        faiss.omp_set_num_threads(threads)
