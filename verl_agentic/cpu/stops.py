"""Stop strings over token ids: which token completes one.

Decoding a whole response after every token would cost more than the model does. A token can only complete a stop string
if its text holds the string's last character, so only such tokens are looked at closer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"
"""What a tokenizer decodes an incomplete character to."""


class StopStrings:
    """Finds stop strings in generated tokens, for one tokenizer.

    Special tokens count as text: closing tags are special tokens in some vocabularies.

    Args:
        tokenizer: with `decode(ids, skip_special_tokens=...)` and `len()`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces: list[str] | None = None
        self._candidates: dict[str, frozenset[int] | None] = {}

    def completed(self, token_ids: Sequence[int], stop: Sequence[str]) -> str | None:
        """The stop string that the last of `token_ids` completed, or None.

        Args:
            token_ids: generated tokens, without the prompt.
            stop: strings, in order of preference where several are completed at once.
        """
        possible = [string for string in stop if self._may_complete(token_ids[-1], string)]
        if not possible:
            return None
        # A character is at most 4 bytes and a token is at least one byte, so a stop string lies within this window.
        window = list(token_ids[-(4 * max(map(len, possible)) + 16) :])
        text, before = self._decode(window), self._decode(window[:-1])
        unchanged = _common_prefix(text, before)
        return next((s for s in possible if text.find(s, max(0, unchanged - len(s) + 1)) >= 0), None)

    def _may_complete(self, token: int, string: str) -> bool:
        if string not in self._candidates:
            self._candidates[string] = self._tokens_with(string[-1])
        candidates = self._candidates[string]
        # Ids may have gaps, so a token past the listed ones may still have a text.
        return candidates is None or token in candidates or token >= len(self._all_pieces())

    def _tokens_with(self, character: str) -> frozenset[int] | None:
        # White space may come from joining tokens and belong to none of them: then every token is a candidate.
        if character.isspace():
            return None
        return frozenset(i for i, piece in enumerate(self._all_pieces()) if character in piece or REPLACEMENT in piece)

    def _all_pieces(self) -> list[str]:
        if self._pieces is None:
            self._pieces = [self._decode([token]) for token in range(len(self._tokenizer))]
        return self._pieces

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _common_prefix(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
