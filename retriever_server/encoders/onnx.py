"""Encoders run by ONNX Runtime on the CPU: in float32 (torch's vectors, faster) or with 8-bit weights (near them)."""

from __future__ import annotations

import importlib
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retriever_server.checkpoints import BATCH_ROWS, Checkpoint, padded
from retriever_server.encoders.pooling import pool
from retriever_server.encoders.record import EncoderRecord, Vectors
from retriever_server.encoders.tokens import TokenEncoder, open_checkpoint
from retriever_server.errors import EncoderError

INPUTS = ("input_ids", "attention_mask")
OPSET = 17
LARGEST = 1_900_000_000  # bytes of weights; a protobuf file ends at 2 GiB


class OnnxEncoder(TokenEncoder):
    """A checkpoint exported to ONNX each time it is opened (a second or two for small models), so that none is stale.

    `onnx_int8` has its matrices in 8 bits, scaled by column, and rounds activations at run time: its vectors are near
    torch's, not equal, so build and serve an index with the same record. Activations are scaled by the largest of a
    forward pass, so each text has a pass of its own: otherwise its vector would depend on its neighbours.
    """

    def __init__(self, record: EncoderRecord, device: str = "cpu", threads: int = 0) -> None:
        self.record = record
        if device == "cuda" or record.dtype not in ("auto", "float32"):
            raise EncoderError(
                f"Encoder '{record.id}': {record.runtime} runs in float32 on a CPU; use torch for others."
            )
        for package in ("onnx", "onnxruntime"):
            _require(package, record)
        checkpoint = open_checkpoint(record, "cpu", threads)
        self.tokenizer = checkpoint.tokenizer
        self._pad = checkpoint.pad
        self.batch_rows = 1 if record.runtime == "onnx_int8" else BATCH_ROWS
        self._session = _session(checkpoint, record, threads)

    def states(self, rows: list[list[int]]) -> Vectors:
        """See TokenEncoder.states."""
        return self._run(rows)[0]

    def pooled(self, rows: list[list[int]]) -> Vectors:
        """See TokenEncoder.pooled."""
        states, mask = self._run(rows)
        vectors: Vectors = pool(states, mask, self.record.pooling)
        return vectors.astype(np.float32)

    def _run(self, rows: list[list[int]]) -> tuple[Vectors, np.ndarray]:
        ids, mask = padded(rows, self._pad)
        states: Vectors = self._session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))[0]
        return states, mask


def _require(package: str, record: EncoderRecord) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        needs = f"Encoder '{record.id}' with runtime {record.runtime} needs the package {package}"
        raise EncoderError(f"{needs}; run `pip install {package}`.") from error


def _session(checkpoint: Checkpoint, record: EncoderRecord, threads: int) -> Any:
    import onnxruntime

    size = sum(weight.numel() * weight.element_size() for weight in checkpoint.model.parameters())
    if size > LARGEST:
        found = f"Encoder '{record.id}' has {size / 1e9:.1f} GB of weights"
        raise EncoderError(f"{found}, more than the runtime {record.runtime} can hold; use torch.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = _export(checkpoint, Path(folder))
        if record.runtime == "onnx_int8":
            path = _in_8_bits(path)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class _States(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states


def _export(checkpoint: Checkpoint, folder: Path) -> Path:
    path = folder / "model.onnx"
    example = (torch.ones(2, 9, dtype=torch.long), torch.ones(2, 9, dtype=torch.long))
    axes = {name: {0: "texts", 1: "tokens"} for name in (*INPUTS, "states")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns about shape checks that hold for every shape
        torch.onnx.export(
            _States(checkpoint.model).eval(),
            example,
            str(path),
            input_names=list(INPUTS),
            output_names=["states"],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    return path


def _in_8_bits(path: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    smaller, muted = path.with_name("model8.onnx"), logging.root.manager.disable
    logging.disable(logging.WARNING)  # it recommends a pre-processing that serves convolutions
    try:
        quantize_dynamic(path, smaller, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        logging.disable(muted)
    return smaller
