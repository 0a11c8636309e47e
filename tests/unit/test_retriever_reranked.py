"""Reranked backends: order, depth, ties, the first stage's share, and queries kept apart."""

import numpy as np
import pytest

from retriever_server.backends.bm25 import BM25Backend, BM25Settings
from retriever_server.backends.reranked import RerankedBackend
from retriever_server.corpus import Passage
from retriever_server.errors import SearchError, SettingsError
from retriever_server.rerankers import RerankerRecord

PASSAGES = [
    Passage("a", "red fox"),
    Passage("b", "red red hen x x x"),
    Passage("c", "blue hen"),
    Passage("d", "red fox"),
    Passage("e", "green frog in a pond"),
]


class LongestFirst:
    """Scores a document by its length; gives no number for documents that say so. Keeps what it was asked."""

    def __init__(self, first_stage_weight: float = 0.0) -> None:
        self.record = RerankerRecord("longest", "cross_encoder", "none", first_stage_weight=first_stage_weight)
        self.asked = []

    def score(self, query, contents):
        return self.score_many([(query, contents)])[0]

    def score_many(self, requests):
        self.asked += [(query, list(contents)) for query, contents in requests]
        return [np.array([np.nan if "frog" in text else len(text) for text in texts]) for _, texts in requests]


@pytest.fixture
def first_stage():
    return BM25Backend.from_passages(PASSAGES, BM25Settings("plain"))


def ids(hits):
    return [hit.id for hit in hits]


def test_candidates_are_put_in_the_rerankers_order_with_its_scores(first_stage):
    assert ids(first_stage.search(["red"], 3)[0]) == ["a", "d", "b"]
    hits = RerankedBackend(first_stage, LongestFirst(), 10).search(["red"], 3)[0]
    # ties, a and d, in row order
    assert [(hit.id, hit.row, hit.score) for hit in hits] == [("b", 1, 17.0), ("a", 0, 7.0), ("d", 3, 7.0)]


def test_only_the_first_candidates_are_scored(first_stage):
    reranker = LongestFirst()
    assert ids(RerankedBackend(first_stage, reranker, 2).search(["red"], 1)[0]) == ["a"]
    assert reranker.asked == [("red", ["red fox", "red fox"])]


def test_topk_beyond_the_depth_scores_topk(first_stage):
    assert ids(RerankedBackend(first_stage, LongestFirst(), 1).search(["red"], 3)[0]) == ["b", "a", "d"]


def test_fewer_candidates_than_topk_are_all_there_is(first_stage):
    assert ids(RerankedBackend(first_stage, LongestFirst(), 10).search(["blue", "nothing", ""], 5)[0]) == ["c"]
    assert RerankedBackend(first_stage, LongestFirst(), 10).search(["nothing", ""], 5) == [[], []]


def test_each_query_is_scored_with_its_own_candidates(first_stage):
    reranker = LongestFirst()
    backend = RerankedBackend(first_stage, reranker, 10)
    together = backend.search(["blue", "red", "hen"], 5)
    assert reranker.asked == [
        ("blue", ["blue hen"]),
        ("red", ["red fox", "red fox", "red red hen x x x"]),
        ("hen", ["blue hen", "red red hen x x x"]),
    ]
    assert together == [backend.search([query], 5)[0] for query in ("blue", "red", "hen")]


def test_the_first_stage_may_count_by_reciprocal_ranks(first_stage):
    hits = RerankedBackend(first_stage, LongestFirst(1.0), 10).search(["red"], 3)[0]
    # first stage a d b, reranker b a d
    expected = {"a": 1 / 61 + 1 / 62, "b": 1 / 63 + 1 / 61, "d": 1 / 62 + 1 / 63}
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected)
    assert ids(hits) == ["a", "b", "d"]
    assert ids(RerankedBackend(first_stage, LongestFirst(9.0), 10).search(["red"], 3)[0]) == ["a", "d", "b"]


def test_a_score_that_is_no_number_is_an_error(first_stage):
    backend = RerankedBackend(first_stage, LongestFirst(), 10)
    with pytest.raises(SearchError, match=r"The reranker gave no finite score for queries \[1\] of this request"):
        backend.search(["red", "frog"], 2)
    assert ids(backend.search(["red"], 1)[0]) == ["b"]


def test_what_a_reranked_backend_declares(first_stage):
    reranker = LongestFirst()
    backend = RerankedBackend(first_stage, reranker)
    assert (backend.kind, backend.passages, backend.encoder) == ("bm25", PASSAGES, None)
    assert backend.reranker is reranker
    assert backend.settings() == {"analyzer": "plain", "k1": 1.5, "b": 0.75}
    with pytest.raises(SettingsError, match="depth of at least 1 candidate, found 0"):
        RerankedBackend(first_stage, reranker, 0)
