"""A fast codec for the closed vocabulary: the same ids as the tokenizer, found by splitting at white space.

Writing the episodes of a cold start encodes and decodes a million short texts; the tokenizer's own calls would take
longer than the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from verl_agentic.bridge.codec import TokenizerCodec


class WordCodec(TokenizerCodec):
    """`TokenizerCodec` whose encode and decode are table look-ups.

    Raises KeyError for a word outside the vocabulary: a cold start must never train on an unknown token.
    """

    def __init__(self, tokenizer: Any):
        super().__init__(tokenizer)
        self._id_of: dict[str, int] = tokenizer.get_vocab()
        self._word_of = {number: word for word, number in self._id_of.items()}
        self._frame = super().chat([{"role": "user", "content": "question"}])
        self._slot = self._frame.index(self._id_of["question"])
        self._encode_cached = lru_cache(maxsize=100_000)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._id_of[word] for word in text.replace("\n", " \n ").split(" ") if word)

    def encode(self, text: str) -> list[int]:
        return list(self._encode_cached(text))

    def encode_untrusted(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._word_of[number] for number in ids)

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        if [message["role"] for message in messages] != ["user"]:
            return super().chat(messages)
        return self._frame[: self._slot] + self.encode(messages[0]["content"]) + self._frame[self._slot + 1 :]
