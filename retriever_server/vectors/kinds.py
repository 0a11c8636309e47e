"""The faiss index of each kind: made empty and trained, filled in RAM, or written in a stream."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retriever_server.encoders import Vectors
from retriever_server.vectors.record import PQ_BITS, STREAMED, VectorRecord

INNER = faiss.METRIC_INNER_PRODUCT
SEED = 1234
EF_CONSTRUCTION = 100
LEAST_POINTS = 1  # our own check of the number of points has been made; faiss would warn on standard error
SCALAR_TYPES = {"fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}


def empty_index(record: VectorRecord) -> faiss.Index:
    """Return the untrained, empty faiss index of `record`."""
    if record.kind == "flat":
        return faiss.IndexFlatIP(record.dimension)
    if record.kind in SCALAR_TYPES:
        return faiss.IndexScalarQuantizer(record.dimension, SCALAR_TYPES[record.kind], INNER)
    if record.kind == "hnsw":
        index = faiss.IndexHNSWFlat(record.dimension, record.hnsw_m, INNER)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return index
    return _inverted(record)


def _inverted(record: VectorRecord) -> Any:
    index: Any
    coarse = faiss.IndexFlatIP(record.dimension)
    if record.kind == "ivf_flat":
        index = faiss.IndexIVFFlat(coarse, record.dimension, record.nlist, INNER)
    else:
        index = faiss.IndexIVFPQ(coarse, record.dimension, record.nlist, record.pq_m, PQ_BITS, INNER)
        index.pq.cp.seed = SEED
        index.pq.cp.min_points_per_centroid = LEAST_POINTS
    index.cp.seed = SEED
    index.cp.min_points_per_centroid = LEAST_POINTS
    return index


def fill(record: VectorRecord, training: Vectors, blocks: Iterable[Vectors]) -> faiss.Index:
    """Return the index of all vectors of `blocks`, in RAM."""
    index = _trained(record, training)
    for block in blocks:
        index.add(block)
    return index


def write(record: VectorRecord, training: Vectors, blocks: Iterable[Vectors], count: int, path: Path) -> None:
    """Write the index of the `count` vectors of `blocks` to `path`; STREAMED kinds hold one block in RAM at a time."""
    if record.kind not in STREAMED:
        index = fill(record, training, blocks)
        try:
            faiss.write_index(index, str(path))
        except RuntimeError as error:  # what the system said is lost in faiss's message about its own source lines
            raise OSError(f"{path.name} could not be written whole; is the disk full?") from error
        return
    index = _trained(record, training)
    with open(path, "wb") as file:
        file.write(_header(index, count))
        for block in blocks:
            file.write(index.sa_encode(block))


def _trained(record: VectorRecord, training: Vectors) -> faiss.Index:
    index = empty_index(record)
    if not index.is_trained:
        index.train(training)
    return index


def _header(index: faiss.Index, count: int) -> bytes:
    # faiss writes: kind (4 bytes), dimension (4), number of vectors (8), ..., and last the length of the codes (8),
    # which a flat index counts in floats
    header = bytearray(faiss.serialize_index(index).tobytes())
    length = count * index.sa_code_size() // (4 if isinstance(index, faiss.IndexFlat) else 1)
    header[8:16] = np.int64(count).tobytes()
    header[-8:] = np.int64(length).tobytes()
    return bytes(header)


def search_parameters(index: faiss.Index, topk: int, nprobe: int, ef_search: int) -> Any:
    """Return faiss's parameters of one search; None for kinds that have none."""
    library: Any = faiss  # its stubs lack the parameters' constructors
    if isinstance(index, faiss.IndexIVF):
        return library.SearchParametersIVF(nprobe=min(nprobe, index.nlist))
    if isinstance(index, faiss.IndexHNSW):
        return library.SearchParametersHNSW(efSearch=max(ef_search, topk))
    return None


def read(path: Path, mmap: bool) -> faiss.Index:
    """Read a faiss file, mapped into memory where `mmap`; raises RuntimeError when it is missing or damaged."""
    if not mmap:
        return faiss.read_index(str(path))
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
