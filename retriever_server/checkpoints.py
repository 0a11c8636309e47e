"""Loading transformer checkpoints and feeding them token ids; shared by encoders and rerankers. Needs torch."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

try:
    import torch
    import transformers
    from transformers.utils import logging
except ImportError as missing:
    from retriever_server.errors import EncoderError

    raise EncoderError(
        f"Transformer models need the package {missing.name}; run `pip install torch transformers`."
    ) from missing

BATCH_TOKENS = 8192  # padded tokens of one forward pass; bounds memory whatever the texts' lengths
BATCH_ROWS = 32
_TOKENIZING = threading.Lock()


@dataclass(frozen=True)
class Source:
    """Where a checkpoint comes from and how it runs; `what` names it in errors, which are of the class `error`."""

    what: str
    model: str
    revision: str
    dtype: str
    device: str
    threads: int
    error: type[Exception]


@dataclass(frozen=True)
class Checkpoint:
    """A model in evaluation mode on its device, and its tokenizer."""

    model: Any
    tokenizer: Any
    device: torch.device

    @property
    def pad(self) -> int:
        """The id that fills padded positions, which the mask hides."""
        return int(self.tokenizer.pad_token_id or 0)

    def tensors(self, rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return input_ids and attention_mask of `rows`, padded on the right to the longest.

        On the right for decoders too: causal states of real tokens then do not depend on how padding is numbered.
        """
        ids, mask = padded(rows, self.pad)
        return {"input_ids": self._place(ids), "attention_mask": self._place(mask)}

    def fill(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return one tensor of `rows`, filled with 0 on the right; for token types."""
        return self._place(padded(rows, 0)[0])

    def _place(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)


def tokenize(tokenizer: Any, *texts: Any, **options: Any) -> Any:
    """Return what `tokenizer` makes of `texts`, one thread at a time: a fast tokenizer fails when two borrow it."""
    with _TOKENIZING:
        return tokenizer(*texts, **options)


def load(source: Source, auto_class: str) -> Checkpoint:
    """Load a folder, hub id or `package:NAME` by the transformers class `auto_class`, without running code it carries.

    Raises the source's error when the device, the package or the weights are absent.
    """
    device = pick_device(source)
    if source.threads and device.type == "cpu":
        torch.set_num_threads(source.threads)
    model = resolve(source)
    logging.disable_progress_bar()
    options = {"revision": source.revision or None, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, **options)
        loader = getattr(transformers, auto_class)
        network = loader.from_pretrained(model, dtype=pick_dtype(source.dtype, device), **options)
    except Exception as error:  # what a damaged file raises is each library's own, a bare Exception among them
        said = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        what_to_do = "name a folder that holds it, or a hub id that can be reached"
        raise source.error(f"{source.what} cannot be loaded from '{model}' ({said}); {what_to_do}.") from error
    return Checkpoint(network.to(device).eval(), tokenizer, device)


def pick_device(source: Source) -> torch.device:
    """Return the device of `cpu`, `cuda` (refused where there is none) or `auto` (a GPU where there is one)."""
    found = torch.cuda.is_available()
    if source.device == "cuda" and not found:
        raise source.error(f"{source.what} is to run on cuda but torch finds no GPU; choose --device cpu.")
    return torch.device("cuda" if found and source.device in ("cuda", "auto") else "cpu")


def pick_dtype(declared: str, device: torch.device) -> torch.dtype:
    """Return what to compute in: float16 only on a GPU, and there for `auto` too."""
    if declared in ("auto", "float16"):
        return torch.float16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if declared == "bfloat16" else torch.float32


def resolve(source: Source) -> str:
    """Return a folder or hub id; `package:NAME` is the folder inside an installed package."""
    if not source.model.startswith("package:"):
        return source.model
    package = source.model.removeprefix("package:")
    try:
        return str(importlib.import_module(package).get_model_path())
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # no module, another's, or no name of one
        distribution = package.replace("_", "-")
        raise source.error(
            f"{source.what} needs the package {distribution}; run `pip install {distribution}`."
        ) from error


def require_positions(checkpoint: Checkpoint, max_tokens: int, source: Source) -> None:
    """Raise the source's error when texts of `max_tokens` would exceed the positions that the model has learned."""
    positions = getattr(checkpoint.model.config, "max_position_embeddings", None)
    if positions and positions < max_tokens:
        raise source.error(
            f"{source.what} is declared with max_tokens {max_tokens} but its model has {positions} positions."
        )


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 ids and mask of shape (rows, longest), filled on the right."""
    width = max(map(len, rows))
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for position, row in enumerate(rows):
        ids[position, : len(row)] = row
        mask[position, : len(row)] = 1
    return ids, mask


def batches(lengths: Sequence[int], most: int = BATCH_ROWS) -> Iterator[list[int]]:
    """Yield positions in batches of similar length, longest first, each within `most` rows and BATCH_TOKENS."""
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    start = 0
    while start < len(order):
        size = max(1, min(most, BATCH_TOKENS // max(1, lengths[order[start]])))
        yield order[start : start + size]
        start += size
