"""Fusing ranked lists: hand-worked values, degenerate lists, equality with a naive loop, and the hybrid backend."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_server.backends.bm25 import BM25Backend, BM25Settings
from retriever_server.backends.dense import DenseBackend
from retriever_server.backends.hybrid import FusionSettings, HybridBackend
from retriever_server.corpus import Passage
from retriever_server.encoders import RECORDS, open_encoder
from retriever_server.errors import IndexRefused, SettingsError
from retriever_server.fusion import fuse

PASSAGES = [
    Passage("a", "red fox"),
    Passage("b", "red red hen"),
    Passage("c", "blue hen"),
    Passage("d", "red fox"),
    Passage("e", "green frog in a pond"),
]
BM25_LIST = [(4, 12.0), (1, 6.0), (2, 3.0)]
DENSE_LIST = [(1, 0.9), (7, 0.8), (4, 0.5)]
WEIGHTED = FusionSettings("weighted")


@pytest.fixture(scope="module")
def parts():
    encoder = open_encoder(RECORDS["hashing"])
    return BM25Backend.from_passages(PASSAGES, BM25Settings("plain")), DenseBackend.from_passages(PASSAGES, encoder)


def test_reciprocal_rank_fusion_by_hand():
    fused = fuse([BM25_LIST, DENSE_LIST], FusionSettings())
    # row 1: ranks 2 and 1; row 4: ranks 1 and 3; row 7: rank 2; row 2: rank 3
    assert [row for row, _ in fused] == [1, 4, 7, 2]
    assert [score for _, score in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62, 1 / 63])


def test_weighted_reciprocal_ranks_by_hand():
    fused = dict(fuse([BM25_LIST, DENSE_LIST], FusionSettings(rrf_k=0, weights=(3.0, 1.0))))
    assert fused == pytest.approx({4: 3 + 1 / 3, 1: 3 / 2 + 1, 2: 1.0, 7: 1 / 2})


def test_min_max_fusion_by_hand():
    # heights above the lowest over the range: 1, 1/3, 0 and 1, 3/4, 0
    fused = fuse([BM25_LIST, DENSE_LIST], WEIGHTED)
    assert [row for row, _ in fused] == [1, 4, 7, 2]
    assert [score for _, score in fused] == pytest.approx([4 / 3, 1, 3 / 4, 0])


def test_z_fusion_by_hand():
    # 12, 6, 3: mean 7, deviation sqrt(14); heights above the lowest 9, 3, 0 over it
    fused = fuse([BM25_LIST], FusionSettings("weighted", normalise="z"))
    assert fused == [(4, pytest.approx(9 / math.sqrt(14))), (1, pytest.approx(3 / math.sqrt(14))), (2, 0)]


@pytest.mark.parametrize("normalise", ["min_max", "z"])
@pytest.mark.parametrize("scored", [[(3, 0.0)], [(3, -7.5)], [(3, 2.0), (5, 2.0)]])
def test_one_hit_or_equal_scores_count_as_found(normalise, scored):
    fused = fuse([scored, []], FusionSettings("weighted", normalise=normalise))
    assert fused == [(row, 1.0) for row, _ in scored]


def test_differences_below_the_smallest_number_count_as_equal():
    scored = [(0, 5e-324), (1, 0.0)]
    assert fuse([scored], FusionSettings("weighted", normalise="z")) == [(0, 1.0), (1, 1.0)]


def test_ties_are_in_row_order():
    assert fuse([[(9, 2.0)], [(3, 0.1)]], FusionSettings()) == [(3, 1 / 61), (9, 1 / 61)]
    assert [row for row, _ in fuse([[(8, 2.0), (2, 1.0)], [(2, 3.0), (8, 1.0)]], WEIGHTED)] == [2, 8]


def test_empty_lists_fuse_to_nothing():
    assert fuse([[], []], FusionSettings()) == []
    assert fuse([[], []], WEIGHTED) == []


LISTS = st.lists(
    st.dictionaries(st.integers(0, 20), st.floats(-5, 5, allow_subnormal=False), max_size=12).map(
        lambda scores: sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    ),
    min_size=2,
    max_size=3,
)
METHODS = st.sampled_from([("rrf", "min_max"), ("weighted", "min_max"), ("weighted", "z")])


def naive(lists, weights, method, normalise):
    """Each row's score, one list at a time, straight from the definitions."""
    rows = {row for scored in lists for row, _ in scored}
    totals = {}
    for row in rows:
        total = 0.0
        for scored, weight in zip(lists, weights, strict=True):
            scores = dict(scored)
            if row not in scores:
                continue
            if method == "rrf":
                better = [other for other, _ in scored].index(row)
                total += weight / (60 + 1 + better)
                continue
            low, high = min(scores.values()), max(scores.values())
            scale = high - low if normalise == "min_max" else statistics.pstdev(scores.values())
            total += weight * (1.0 if low == high or scale == 0 else (scores[row] - low) / scale)
        totals[row] = total
    return totals


@given(LISTS, METHODS, st.data())
def test_fusion_is_what_a_naive_loop_gives(lists, method, data):
    weights = data.draw(st.lists(st.floats(0.1, 4), min_size=len(lists), max_size=len(lists)))
    fused = fuse(lists, FusionSettings(method[0], weights=tuple(weights), normalise=method[1]))
    expected = naive(lists, weights, *method)
    assert dict(fused) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert fused == sorted(fused, key=lambda item: (-item[1], item[0]))


@given(LISTS, METHODS)
def test_a_list_of_weight_0_takes_no_part(lists, method):
    weights = (1.0, *[0.0] * (len(lists) - 1))
    fused = fuse(lists, FusionSettings(method[0], weights=weights, normalise=method[1]))
    assert {row for row, _ in fused} == {row for row, _ in lists[0]}
    scores = [dict(lists[0])[row] for row, _ in fused]
    assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-9)


@given(LISTS, METHODS, st.floats(0.5, 8))
def test_equal_factors_on_all_weights_change_no_order(lists, method, factor):
    def rows(weight):
        settings = FusionSettings(method[0], weights=(weight,) * len(lists), normalise=method[1])
        return [row for row, score in fuse(lists, settings) if score > 1e-9]

    doubled = 2.0 ** round(factor)  # a power of two multiplies without rounding
    assert rows(1.0) == [row for row in rows(doubled) if row in set(rows(1.0))]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"method": "max"}, "Unknown fusion method 'max'; choose one of rrf, weighted"),
        ({"normalise": "softmax"}, "Unknown score normalisation 'softmax'; choose one of min_max, z"),
        ({"rrf_k": -1}, "rrf_k >= 0 and depth >= 1, found -1 and 100"),
        ({"depth": 0}, "found 60 and 0"),
        ({"weights": (1.0, -0.5)}, r"numbers >= 0, not all 0; found \[1.0, -0.5\]"),
        ({"weights": (0.0, 0.0)}, "not all 0"),
        ({"weights": (1.0, math.nan)}, "numbers >= 0"),
    ],
)
def test_bad_fusion_settings_are_refused(values, sentence):
    with pytest.raises(SettingsError, match=sentence):
        FusionSettings(**values)


def test_weights_must_be_one_a_part(parts):
    with pytest.raises(SettingsError, match="3 fusion weights are given for 2 parts"):
        HybridBackend(parts, FusionSettings(weights=(1.0, 1.0, 1.0)))


def test_parts_must_cover_the_same_passages(parts):
    other = BM25Backend.from_passages(PASSAGES[:3], BM25Settings("plain"))
    with pytest.raises(IndexRefused, match=r"parts over the same passages; these cover \[5, 3\]"):
        HybridBackend([parts[0], other])


def test_a_hybrid_backend_fuses_what_its_parts_find(parts):
    hybrid = HybridBackend(parts)
    queries = ["red hen", "frog", "red hen"]
    found = hybrid.search(queries, 3)
    for query, hits in zip(queries, found, strict=True):
        lists = [[(hit.row, hit.score) for hit in part.search([query], 100)[0]] for part in parts]
        expected = sorted(naive(lists, (1, 1), "rrf", "").items(), key=lambda item: (-item[1], item[0]))[:3]
        assert [hit.row for hit in hits] == [row for row, _ in expected]
        assert all((hit.id, hit.contents) == (PASSAGES[hit.row].id, PASSAGES[hit.row].contents) for hit in hits)
    assert found[0][0].id == "b"


@pytest.mark.parametrize("method", ["rrf", "weighted"])
def test_weights_1_and_0_are_one_part_alone(parts, method):
    for position, weights in enumerate([(1.0, 0.0), (0.0, 1.0)]):
        hybrid = HybridBackend(parts, FusionSettings(method, weights=weights))
        alone = parts[position].search(["red hen"], 4)[0]
        assert [hit.row for hit in hybrid.search(["red hen"], 4)[0]] == [hit.row for hit in alone]


def test_a_query_that_one_part_cannot_find_is_answered_by_the_other(parts):
    # no word in common, but pieces of words
    assert parts[0].search(["foxes"], 2)[0] == []
    assert [hit.id for hit in HybridBackend(parts).search(["foxes"], 2)[0]] == ["a", "d"]


def test_blank_queries_and_neighbours(parts):
    hybrid = HybridBackend(parts)
    found = hybrid.search(["", "red hen", " \x00 ", "???"], 10)
    assert [len(hits) for hits in found] == [0, 5, 0, 0]
    assert found[1] == hybrid.search(["red hen"], 10)[0]


def test_topk_beyond_the_depth_still_fills(parts):
    assert len(HybridBackend(parts, FusionSettings(depth=1)).search(["red hen"], 5)[0]) == 5


def test_what_a_hybrid_backend_declares(parts):
    hybrid = HybridBackend(parts)
    assert (hybrid.kind, hybrid.passages, hybrid.encoder, hybrid.reranker) == (
        "hybrid",
        PASSAGES,
        parts[1].encoder,
        None,
    )
    declared = hybrid.settings()
    assert [part["kind"] for part in declared["parts"]] == ["bm25", "dense"]
    assert declared["fusion"] == {"method": "rrf", "rrf_k": 60, "weights": (), "depth": 100, "normalise": "min_max"}
