"""Which queries of a trajectory were asked before: searches that cannot bring anything new."""

from __future__ import annotations

import re
import unicodedata


def normalise_query(query: str) -> str:
    """Return `query` in one Unicode form (NFKC), without case, and its words apart from punctuation by one blank."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", query).casefold())
    return " ".join(words) or query.strip()


class QueryLog:
    """The queries of one trajectory; `duplicates` counts those that had been asked before, after normalisation."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self.duplicates = 0

    def note(self, query: str) -> None:
        """Note that `query` is asked."""
        normalised = normalise_query(query)
        self.duplicates += normalised in self._asked
        self._asked.add(normalised)
