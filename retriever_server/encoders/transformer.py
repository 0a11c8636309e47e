"""Encoders that are transformer checkpoints (E5, BGE, Qwen3, MiniLM, ...), pooled as their record says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retriever_server.checkpoints import Checkpoint, Source, batches, load, require_positions
from retriever_server.encoders.pooling import pool
from retriever_server.encoders.record import EncoderRecord, Vectors
from retriever_server.encoders.tokens import token_rows
from retriever_server.errors import EncoderError


class TransformerEncoder:
    """A checkpoint run by torch; texts longer than the record's `max_tokens` are cut there."""

    def __init__(self, record: EncoderRecord, device: str = "cpu", threads: int = 0) -> None:
        self.record = record
        self._checkpoint = open_checkpoint(record, device, threads)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode. Texts are batched by length, which changes no vector beyond rounding."""
        rows = token_rows(self._checkpoint.tokenizer, self.record, texts)
        vectors = np.empty((len(texts), self.record.dimension), dtype=np.float32)
        for positions in batches([len(row) for row in rows]):
            vectors[positions] = self._pooled([rows[position] for position in positions])
        return vectors

    def token_vectors(self, texts: Sequence[str]) -> list[Vectors]:
        """Return for each text its tokens' last states, special tokens left out, shape (tokens, dimension)."""
        tokenizer = self._checkpoint.tokenizer
        special = set(tokenizer.all_special_ids)
        rows = token_rows(tokenizer, self.record, texts)
        found: list[Vectors] = [np.empty((0, self.record.dimension), dtype=np.float32)] * len(texts)
        for positions in batches([len(row) for row in rows]):
            states = self._states([rows[position] for position in positions])[0].float().cpu().numpy()
            for line, position in zip(states, positions, strict=True):
                kept = [index for index, token in enumerate(rows[position]) if token not in special]
                found[position] = line[kept]
        return found

    @torch.inference_mode()
    def _pooled(self, rows: list[list[int]]) -> Vectors:
        states, mask = self._states(rows)
        pooled: Vectors = pool(states.float(), mask, self.record.pooling).cpu().numpy()
        return pooled

    @torch.inference_mode()
    def _states(self, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._checkpoint.tensors(rows)
        return self._checkpoint.model(**batch).last_hidden_state, batch["attention_mask"]


def open_checkpoint(record: EncoderRecord, device: str, threads: int) -> Checkpoint:
    """Load the model of `record`; raises EncoderError when it is absent or of another dimension (case P25)."""
    what = f"Encoder '{record.id}'"
    source = Source(what, record.model, record.revision, record.dtype, device, threads, EncoderError)
    checkpoint = load(source, "AutoModel")
    hidden = checkpoint.model.config.hidden_size
    if hidden != record.dimension:
        raise EncoderError(
            f"{what} is declared with {record.dimension} dimensions but '{record.model}' gives {hidden}."
        )
    require_positions(checkpoint, record.max_tokens, source)
    return checkpoint
