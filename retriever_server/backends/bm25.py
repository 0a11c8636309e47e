"""BM25 (Robertson et al., Lucene's variant) on bm25s's sparse score matrix, with a ranking that repeats exactly."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bm25s
from bm25s.stopwords import STOPWORDS_EN
from bm25s.tokenization import Tokenized

from retriever_server.backends.base import Hit, Rows, best_rows, make_hits
from retriever_server.errors import IndexRefused
from retriever_server.records import misfits
from retriever_server.text import clean, fold

if TYPE_CHECKING:
    from retriever_server.encoders import Encoder
    from retriever_server.rerankers import Reranker

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for DEBUG when imported

# name -> (pattern of a word, words left out); `plain` loses no word and suits small or non-English vocabularies
ANALYZERS: dict[str, tuple[str, frozenset[str]]] = {
    "en": (r"\b\w\w+\b", frozenset(STOPWORDS_EN)),
    "plain": (r"\w+", frozenset()),
}


@dataclass(frozen=True)
class BM25Settings:
    """How text becomes words (`analyzer`: `en` or `plain`), and BM25's `k1` > 0 and `b` in 0..1."""

    analyzer: str = "en"
    k1: float = 1.5
    b: float = 0.75

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BM25Settings:
        """Read settings from JSON values; raises IndexRefused unless they are exactly the declared ones."""
        if set(values) != {item.name for item in fields(cls)}:
            raise IndexRefused(
                f"BM25 settings hold {sorted(values)} instead of analyzer, b and k1; build the index again."
            )
        wrong = misfits(cls, values)
        if wrong:
            raise IndexRefused(
                f"BM25 settings hold values of the wrong type ({', '.join(wrong)}); build the index again."
            )
        return cls(**values)

    def __post_init__(self) -> None:
        if self.analyzer not in ANALYZERS:
            raise IndexRefused(f"Unknown BM25 analyzer '{self.analyzer}'; choose one of {', '.join(ANALYZERS)}.")
        if not (self.k1 > 0 and 0 <= self.b <= 1):
            raise IndexRefused(f"BM25 needs k1 > 0 and 0 <= b <= 1, found k1={self.k1} and b={self.b}.")


def words(text: str, analyzer: str) -> list[str]:
    """Return the words of `text`: lower case, accents folded, stop words of the analyzer left out."""
    pattern, left_out = ANALYZERS[analyzer]
    return [word for word in re.findall(pattern, fold(clean(text))) if word not in left_out]


class BM25Backend:
    """BM25 over passages in memory or on disk; only passages that share a word with the query are hits."""

    kind = "bm25"

    def __init__(self, model: bm25s.BM25, passages: Rows, settings: BM25Settings) -> None:
        self._model = model
        self._settings = settings
        self.passages: Rows = passages
        self.encoder: Encoder | None = None
        self.reranker: Reranker | None = None

    @classmethod
    def from_passages(cls, passages: Rows, settings: BM25Settings | None = None) -> BM25Backend:
        """Index `passages` in memory; ranks exactly as the server does over the same rows and settings."""
        settings = settings or BM25Settings()
        texts = (passages[row].contents for row in range(len(passages)))
        return cls(_fit(texts, settings), passages, settings)

    @classmethod
    def load(cls, folder: Path, passages: Rows, settings: BM25Settings) -> BM25Backend:
        """Open the model that `save` wrote; raises IndexRefused when its count is not that of the passages."""
        try:
            model = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise IndexRefused(f"The BM25 index in {folder} is missing or damaged; build the index again.") from error
        if model.scores["num_docs"] != len(passages):
            raise IndexRefused(
                f"The BM25 index in {folder} covers {model.scores['num_docs']} passages but the passage file holds "
                f"{len(passages)}; build the index again."
            )
        return cls(model, passages, settings)

    def save(self, folder: Path) -> None:
        """Write the model (not the passages) into `folder`."""
        self._model.save(folder, show_progress=False)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See Backend.search."""
        return [self._search_one(query, topk) for query in queries]

    def settings(self) -> dict[str, Any]:
        """See Backend.settings."""
        return asdict(self._settings)

    def _search_one(self, query: str, topk: int) -> list[Hit]:
        word_ids = self._model.get_tokens_ids(words(query, self._settings.analyzer))
        if not word_ids:
            return []
        try:
            scores = self._model.get_scores_from_ids(word_ids)
        except (IndexError, ValueError) as error:
            raise IndexRefused(
                f"The BM25 index is damaged ({error}); check it with `verify` and build it again."
            ) from error
        return make_hits(self.passages, ((row, scores[row]) for row in best_rows(scores, topk)))


def _fit(texts: Iterable[str], settings: BM25Settings) -> bm25s.BM25:
    # word ids in order of first appearance: bm25s itself numbers them by a set, which differs from process to process
    vocabulary: dict[str, int] = {}
    word_ids = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in words(text, settings.analyzer)] for text in texts
    ]
    if not vocabulary:
        raise IndexRefused("The corpus is empty or holds no word that BM25 could index; check the corpus file.")
    model = bm25s.BM25(k1=settings.k1, b=settings.b)
    model.index(Tokenized(ids=word_ids, vocab=vocabulary), create_empty_token=False, show_progress=False)
    return model
