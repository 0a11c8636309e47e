"""What encoders over token ids share: texts cut at the record's length, batched by length, states without padding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from retriever_server.checkpoints import BATCH_ROWS, Checkpoint, Source, batches, load, require_positions, tokenize
from retriever_server.encoders.record import EncoderRecord, Vectors
from retriever_server.errors import EncoderError


class TokenEncoder(ABC):
    """An encoder that gives one state a token; texts longer than the record's `max_tokens` are cut there."""

    record: EncoderRecord
    tokenizer: Any
    batch_rows: int = BATCH_ROWS  # texts of one forward pass, at most

    @abstractmethod
    def states(self, rows: list[list[int]]) -> Vectors:
        """Return the last layer's states of padded `rows` of token ids, shape (rows, longest, dimension)."""

    @abstractmethod
    def pooled(self, rows: list[list[int]]) -> Vectors:
        """Return one vector a row, pooled as the record says, shape (rows, dimension)."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode. Texts are batched by length, which changes no vector beyond rounding."""
        vectors = np.empty((len(texts), self.record.dimension), dtype=np.float32)
        for positions, rows in self._batches(texts):
            vectors[positions] = self.pooled(rows)
        return vectors

    def token_vectors(self, texts: Sequence[str]) -> list[Vectors]:
        """Return for each text its tokens' last states, special tokens left out, shape (tokens, dimension)."""
        special = set(self.tokenizer.all_special_ids)
        found: list[Vectors] = [np.empty((0, self.record.dimension), dtype=np.float32)] * len(texts)
        for positions, rows in self._batches(texts):
            for position, row, line in zip(positions, rows, self.states(rows), strict=True):
                found[position] = line[[index for index, token in enumerate(row) if token not in special]]
        return found

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[list[int]]]]:
        rows = token_rows(self.tokenizer, self.record, texts)
        for positions in batches([len(row) for row in rows], self.batch_rows):
            yield positions, [rows[position] for position in positions]


def open_checkpoint(record: EncoderRecord, device: str, threads: int) -> Checkpoint:
    """Load the model of `record`.

    Raises EncoderError when it is absent, of another dimension (case P25), or lacks the record's end token.
    """
    what = f"Encoder '{record.id}'"
    source = Source(what, record.model, record.revision, record.dtype, device, threads, EncoderError)
    checkpoint = load(source, "AutoModel")
    hidden = checkpoint.model.config.hidden_size
    if hidden != record.dimension:
        raise EncoderError(
            f"{what} is declared with {record.dimension} dimensions but '{record.model}' gives {hidden}."
        )
    require_positions(checkpoint, record.max_tokens, source)
    if record.end_token:
        _end_id(checkpoint.tokenizer, record)
    return checkpoint


def token_rows(tokenizer: Any, record: EncoderRecord, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, special tokens included, at most `record.max_tokens` of them."""
    if not texts:
        return []
    options = {"truncation": True, "max_length": record.max_tokens}
    rows: list[list[int]] = tokenize(tokenizer, list(texts), **options)["input_ids"]
    if not record.end_token:
        return rows
    end = _end_id(tokenizer, record)
    return [row if row and row[-1] == end else [*row[: record.max_tokens - 1], end] for row in rows]


def _end_id(tokenizer: Any, record: EncoderRecord) -> int:
    end = tokenizer.convert_tokens_to_ids(record.end_token)
    if end is None or end == tokenizer.unk_token_id:
        raise EncoderError(
            f"Encoder '{record.id}' is to end texts with '{record.end_token}', which its tokenizer lacks."
        )
    return int(end)
