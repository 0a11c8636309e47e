"""Encoders that are transformer checkpoints (E5, BGE, MiniLM, ...), pooled as their record says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from retriever_server.encoders import EncoderRecord
from retriever_server.errors import EncoderError

BATCH = 32


class TransformerEncoder:
    """A checkpoint on the CPU in fp32; texts longer than the record's `max_tokens` are cut there."""

    def __init__(self, record: EncoderRecord, model: str) -> None:
        self.record = record
        logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model, revision=record.revision or None)
            self._model = AutoModel.from_pretrained(model, revision=record.revision or None, dtype=torch.float32).eval()
        except (OSError, ValueError) as error:
            first_line = str(error).splitlines()[0]
            raise EncoderError(f"Encoder '{record.id}' cannot be loaded from '{model}': {first_line}") from error
        hidden = self._model.config.hidden_size
        if hidden != record.dimension:
            raise EncoderError(
                f"Encoder '{record.id}' is declared with {record.dimension} dimensions but '{model}' gives {hidden}."
            )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder.encode. Texts are batched by length, which changes no vector beyond rounding."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = np.empty((len(texts), self.record.dimension), dtype=np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            vectors[rows] = self._encode_batch([texts[i] for i in rows])
        return vectors

    @torch.inference_mode()
    def _encode_batch(self, texts: list[str]) -> NDArray[np.float32]:
        batch = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self.record.max_tokens, return_tensors="pt"
        )
        states = self._model(**batch).last_hidden_state
        if self.record.pooling == "cls":
            return states[:, 0].numpy()
        mask = batch["attention_mask"].unsqueeze(-1)
        return ((states * mask).sum(1) / mask.sum(1)).numpy()
