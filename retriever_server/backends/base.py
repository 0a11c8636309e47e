"""What every backend offers, and the one rule by which scored rows become hits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever_server.corpus import Passage
from retriever_server.errors import IndexRefused

if TYPE_CHECKING:
    from retriever_server.encoders import Encoder
    from retriever_server.rerankers import Reranker


@dataclass(frozen=True)
class Hit:
    """A passage found for a query: its row in the index, identifier, contents and score (higher is better)."""

    row: int
    id: str
    contents: str
    score: float


class Rows(Protocol):
    """Anything that maps a row number to its passage: a list, or a PassageStore."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Passage: ...


class Backend(Protocol):
    """A searchable index of passages; `encoder` makes its vectors and `reranker` orders its hits, where it has any."""

    kind: str
    passages: Rows
    encoder: Encoder | None
    reranker: Reranker | None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Return for each query at most `topk` >= 1 hits, best first; ties are in row order.

        A blank query, or one that matches nothing, has no hits. Raises SearchError for a query that cannot be answered.
        Several threads may search at once.
        """

    def settings(self) -> dict[str, Any]:
        """Return what declares this index (BM25 settings, or the encoder record) as JSON values."""


def best_rows(scores: NDArray[np.floating[Any]], topk: int) -> NDArray[np.intp]:
    """Return the rows of the `topk` largest positive `scores` (one per passage), best first, ties in row order."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > topk:
        cut = np.partition(scores[rows], -topk)[-topk]
        rows = rows[scores[rows] >= cut]
    return rows[np.lexsort((rows, -scores[rows]))][:topk]


def make_hits(passages: Rows, scored_rows: Iterable[tuple[int, float]]) -> list[Hit]:
    """Return hits for (row, score) pairs, which are already in order; raises IndexRefused for a row there is not."""
    try:
        return [_hit(int(row), passages[int(row)], float(score)) for row, score in scored_rows]
    except IndexError as error:
        raise IndexRefused(f"The index is damaged ({error}); check it with `verify` and build it again.") from error


def _hit(row: int, passage: Passage, score: float) -> Hit:
    return Hit(row, passage.id, passage.contents, score)
