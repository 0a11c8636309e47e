"""From characters of a decoded turn to its tokens, from the ids that were generated and never by encoding again.

Encoding a decoded text may give other ids than those that were sampled, so offsets of a re-encoding say nothing about
the sampled tokens. Decoding their prefixes does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


def token_span(ids: Sequence[int], decode: Decode, start: int, end: int) -> tuple[int, int]:
    """The smallest run of tokens that holds every character of [start, end) of `decode(ids)`.

    A token that holds a part of the range and a neighbouring character belongs to it; so do all tokens of a character
    that is spread over several.

    Args:
        ids: the generated ids of one turn.
        decode: ids to text; decoding more ids changes only the characters that were incomplete before.
        start, end: a range of characters, 0 <= start < end <= length of the text.

    Returns:
        Token positions [first, last) in `ids`.

    Raises:
        ValueError: the range is empty or lies outside the text.
    """
    text = decode(ids)
    if not 0 <= start < end <= len(text):
        raise ValueError(f"characters [{start}, {end}) are no part of a text of {len(text)}")
    counts = range(len(ids) + 1)

    def settled(count: int) -> int:
        """Characters of the text that the first `count` tokens complete."""
        return _common(decode(ids[:count]), text)

    first = bisect_left(counts, start, key=settled)
    # The token before reaches into the range, or ends within its first character (shown by a stand-in until complete).
    if settled(first) > start or len(decode(ids[:first])) > settled(first):
        first -= 1
    # At the end of the text the bytes of a character that was never completed come along.
    return first, len(ids) if end == len(text) else bisect_left(counts, end, key=settled)


def _common(prefix: str, text: str) -> int:
    """Characters at the beginning of `prefix` that are those of `text`."""
    if text.startswith(prefix):
        return len(prefix)
    return next((i for i, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), min(len(prefix), len(text)))
