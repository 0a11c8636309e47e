"""Cleaning that queries and passages share, so that both sides of an index see the same text."""

from __future__ import annotations

import re
import unicodedata

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` with NUL as a space, lone surrogates as U+FFFD, and surrounding blanks removed.

    Tokenizers and UTF-8 encoders fail on either character; JSON can carry both.
    """
    return _SURROGATES.sub("\ufffd", text.replace("\x00", " ")).strip()


def fold(text: str) -> str:
    """Return `text` in lower case without accents (NFKD, combining marks dropped)."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return "".join(char for char in decomposed if not unicodedata.combining(char))
