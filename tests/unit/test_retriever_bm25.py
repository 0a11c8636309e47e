"""BM25 in process: ranking against the formula, ties, analyzers, unusual queries."""

import math

import pytest

from retriever_server.backends.bm25 import BM25Backend, BM25Settings, words
from retriever_server.corpus import Passage
from retriever_server.errors import IndexRefused

PASSAGES = [
    Passage("a", "red fox"),
    Passage("b", "red red hen"),
    Passage("c", "blue hen"),
    Passage("d", "red fox"),
    Passage("e", "green frog in a pond"),
]


def ids(backend: BM25Backend, query: str, topk: int = 10) -> list[str]:
    return [hit.id for hit in backend.search([query], topk)[0]]


def bm25_by_hand(query: list[str], texts: list[list[str]], k1: float = 1.5, b: float = 0.75) -> list[float]:
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        total = 0.0
        for word in query:
            containing = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - containing + 0.5) / (containing + 0.5))
            tf = text.count(word)
            total += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        scores.append(total)
    return scores


def test_scores_follow_the_formula():
    settings = BM25Settings("plain")
    hits = BM25Backend.from_passages(PASSAGES, settings).search(["red hen"], 10)[0]
    expected = bm25_by_hand(["red", "hen"], [words(passage.contents, "plain") for passage in PASSAGES])
    assert {hit.row: hit.score for hit in hits} == pytest.approx(
        {row: score for row, score in enumerate(expected) if score}, rel=1e-5
    )


def test_order_is_score_then_row():
    backend = BM25Backend.from_passages(PASSAGES)
    assert ids(backend, "red") == ["b", "a", "d"]
    assert ids(backend, "fox") == ["a", "d"]
    assert ids(backend, "fox", topk=1) == ["a"]


def test_ties_at_the_cut_keep_row_order():
    backend = BM25Backend.from_passages([Passage(str(row), "same words") for row in range(50)])
    assert ids(backend, "same", topk=7) == ["0", "1", "2", "3", "4", "5", "6"]


def test_only_passages_that_share_a_word_are_hits():
    assert ids(BM25Backend.from_passages(PASSAGES), "frog") == ["e"]


@pytest.mark.parametrize("query", ["", "   ", "\x00", "zebra", "the of", "?!", "\ud800"])
def test_p47_queries_that_match_nothing_have_no_hits(query):
    assert BM25Backend.from_passages(PASSAGES).search([query, "frog"], 3)[0] == []


@pytest.mark.parametrize("query", ["fox\x00", "fox \ud800", "FOX", "fóx", "fox " + "x" * 50_000, "\u202efox 🙂"])
def test_p47_unusual_characters_do_not_hide_words(query):
    assert ids(BM25Backend.from_passages(PASSAGES), query) == ["a", "d"]


def test_p47_batch_neighbours_are_unaffected():
    backend = BM25Backend.from_passages(PASSAGES)
    together = backend.search(["red", "", "\ud800", "x" * 50_000, "hen"], 3)
    assert [together[0], together[4]] == [backend.search(["red"], 3)[0], backend.search(["hen"], 3)[0]]


def test_analyzers():
    assert words("The Cat in Beşiktaş, a 7 C", "en") == ["cat", "besiktas"]
    assert words("The Cat in Beşiktaş, a 7 C", "plain") == ["the", "cat", "in", "besiktas", "a", "7", "c"]


def test_unusable_settings_and_corpora_are_refused():
    with pytest.raises(IndexRefused, match="Unknown BM25 analyzer 'fr'; choose one of en, plain"):
        BM25Settings("fr")
    with pytest.raises(IndexRefused, match="k1 > 0"):
        BM25Settings(k1=0)
    for passages in ([], [Passage("a", "the")]):
        with pytest.raises(IndexRefused, match="empty or holds no word"):
            BM25Backend.from_passages(passages)
