"""Records that model folders and users' files declare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retriever_server.encoders.record import EncoderRecord
from retriever_server.errors import EncoderError
from retriever_server.records import read_object

# how sentence-transformers names our poolings: keys of older files, values of `pooling_mode` in newer ones
POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last_token",
}
POOLING_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last_token"}
LENGTH = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
MODULES = ("Transformer", "Pooling", "Normalize")
LONGEST = 1 << 20
PASSAGE_PROMPTS = ("document", "passage")


def record_file(path: Path) -> EncoderRecord:
    """Read a user's record from a .yaml or .json file."""
    return EncoderRecord.from_dict(read_object(path, "encoder record", EncoderError))


def is_sentence_transformers(folder: Path) -> bool:
    """Whether `folder` states a pooling as sentence-transformers writes it."""
    return (folder / "1_Pooling" / "config.json").is_file()


def sentence_transformers_record(folder: Path) -> EncoderRecord:
    """Return the record that a sentence-transformers folder declares: pooling, normalisation, length and prompts."""
    path = folder / "1_Pooling" / "config.json"
    config = _read(path, "pooling configuration")
    prompts = _prompts(folder / PROMPTS)
    pooling = _pooling(config, path)
    return EncoderRecord(
        folder.name,
        _positive(config, _dimension_key(config), path),
        str(folder),
        pooling=pooling,
        query_prefix=prompts.get("query", ""),
        passage_prefix=next((prompts[name] for name in PASSAGE_PROMPTS if name in prompts), ""),
        normalise=_normalises(folder),
        max_tokens=_length(folder),
    )


def _pooling(config: dict[str, Any], path: Path) -> str:
    modes = [mode for key, mode in POOLING_KEYS.items() if config.get(key)]
    if isinstance(config.get("pooling_mode"), str):
        modes = [POOLING_NAMES[name] for name in [config["pooling_mode"]] if name in POOLING_NAMES]
    if config.get("include_prompt") is False:
        raise EncoderError(
            f"{path} leaves the prompt out of pooling, which a record cannot declare; use another model."
        )
    if len(modes) != 1:
        raise EncoderError(f"{path} states no single pooling among {tuple(POOLING_NAMES.values())}.")
    return modes[0]


def _dimension_key(config: dict[str, Any]) -> str:
    return "embedding_dimension" if "embedding_dimension" in config else "word_embedding_dimension"


def _normalises(folder: Path) -> bool:
    """Whether the folder has a Normalize module; where it lists no modules, cosine is what its vectors are for."""
    path = folder / "modules.json"
    if not path.is_file():
        return True
    kinds = _module_kinds(path)
    unknown = [kind for kind in kinds if kind not in MODULES]
    if unknown:
        raise EncoderError(f"{path} lists the modules {unknown}, which a record cannot declare; use another model.")
    return "Normalize" in kinds


def _module_kinds(path: Path) -> list[str]:
    try:
        return [str(module["type"]).rsplit(".", 1)[-1] for module in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EncoderError(f"The module list {path} cannot be read: {error}.") from error


def _length(folder: Path) -> int:
    path = folder / LENGTH
    config = _read(path, "length configuration") if path.is_file() else {"transformer_task": ""}
    if "transformer_task" not in config:
        return _positive(config, "max_seq_length", path)
    # newer files leave the length to the tokenizer, whose own default is astronomic
    path = folder / "tokenizer_config.json"
    length = _read(path, "tokenizer configuration").get("model_max_length") if path.is_file() else None
    return length if type(length) is int and 0 < length <= LONGEST else 512


def _prompts(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    prompts = _read(path, "prompt configuration").get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise EncoderError(f"{path} states prompts that are no texts.")
    return prompts


def _positive(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise EncoderError(f"{path} states no usable `{key}` (a whole number > 0, found {value!r}).")
    return value


def _read(path: Path, what: str) -> dict[str, Any]:
    return read_object(path, what, EncoderError)
