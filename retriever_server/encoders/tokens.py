"""Texts as token ids, cut at the record's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retriever_server.encoders.record import EncoderRecord
from retriever_server.errors import EncoderError


def token_rows(tokenizer: Any, record: EncoderRecord, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, special tokens included, at most `record.max_tokens` of them."""
    if not texts:
        return []
    rows: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=record.max_tokens)["input_ids"]
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
