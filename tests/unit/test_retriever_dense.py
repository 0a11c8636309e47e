"""Dense search over faiss: cases P24 to P28, P30 and P33, and equality with a plain numpy loop."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest

from retriever_server.backends.dense import DenseBackend
from retriever_server.corpus import Passage
from retriever_server.encoders import RECORDS, EncoderRecord, encode_passages, encode_queries, open_encoder
from retriever_server.errors import EncoderError, IndexRefused, SearchError
from retriever_server.vectors.search import VectorIndex

ROOT = Path(__file__).resolve().parents[2]
HASHING = open_encoder(RECORDS["hashing"])
ANIMALS = ["lion", "tiger", "horse", "zebra", "mouse", "eagle", "shark", "whale"]


def animal_passages(count: int) -> list[Passage]:
    return [
        Passage(f"p{row}", f"the {ANIMALS[row % 8]} number {row} lives near {ANIMALS[row % 7]}") for row in range(count)
    ]


def flat(vectors: int, dimension: int) -> faiss.Index:
    index = faiss.IndexFlatIP(dimension)
    index.add(np.ones((vectors, dimension), dtype=np.float32))
    return index


class BrokenEncoder:
    """Gives NaN for texts that say so."""

    record = EncoderRecord("broken", 4, normalise=False)

    def encode(self, texts):
        return np.array([[np.nan if "nan" in text else 1.0] * 4 for text in texts], dtype=np.float32)


def test_same_ranking_as_a_plain_loop():
    passages = animal_passages(200)
    backend = DenseBackend.from_passages(passages, HASHING, batch=64)
    vectors = encode_passages(HASHING, [passage.contents for passage in passages])
    queries = ["zebra near mouse", "number 77", "whale", "lives"]
    for query, hits in zip(queries, backend.search(queries, 10), strict=True):
        scores = [float(np.dot(encode_queries(HASHING, [query])[0], vector)) for vector in vectors]
        expected = sorted(range(200), key=lambda row: (-scores[row], row))[:10]
        assert [hit.score for hit in hits] == pytest.approx([scores[row] for row in expected], abs=1e-6)
        assert {hit.row for hit in hits if hit.score > scores[expected[-1]] + 1e-6} <= set(expected)


def test_p24_count_mismatch_is_refused_naming_both():
    with pytest.raises(IndexRefused, match="holds 10 vectors but the passage file holds 8 passages"):
        DenseBackend(VectorIndex(flat(10, 1024)), animal_passages(8), HASHING)


def test_p25_dimension_mismatch_is_refused_naming_both():
    with pytest.raises(IndexRefused, match="vectors of 384 dimensions but encoder 'hashing' gives 1024"):
        DenseBackend(VectorIndex(flat(8, 384)), animal_passages(8), HASHING)


def test_p26_empty_index_is_refused():
    with pytest.raises(IndexRefused, match="The vector index is empty"):
        DenseBackend(VectorIndex(faiss.IndexFlatIP(1024)), [], HASHING)


def test_p27_more_neighbours_than_passages():
    hits = DenseBackend.from_passages(animal_passages(3), HASHING).search(["lion", "tiger"], 6)
    assert [sorted(hit.row for hit in line) for line in hits] == [[0, 1, 2], [0, 1, 2]]


def test_p27_missing_labels_of_an_inverted_file_are_dropped():
    passages = animal_passages(64)
    vectors = encode_passages(HASHING, [passage.contents for passage in passages])
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(1024), 1024, 16, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1
    index.train(vectors)
    index.add(vectors)
    searcher = VectorIndex(index, nprobe=1)
    assert -1 in searcher.search_vectors(vectors[:1], 60)[1]
    hits = DenseBackend(searcher, passages, HASHING).search([passages[0].contents], 60)[0]
    assert 0 < len(hits) < 60
    assert hits[0].id == "p0"
    assert all(hit.id == passages[hit.row].id for hit in hits)


def test_p28_a_query_vector_with_nan_is_an_error():
    backend = DenseBackend.from_passages([Passage("a", "one"), Passage("b", "two")], BrokenEncoder())
    with pytest.raises(SearchError, match=r"no finite vector for queries \[1\]"):
        backend.search(["one", "nan"], 1)
    assert [hit.id for hit in backend.search(["one"], 2)[0]] == ["a", "b"]


def test_p28_a_passage_vector_with_nan_is_refused_by_name():
    with pytest.raises(EncoderError, match="no finite vector for passage 'b'"):
        DenseBackend.from_passages([Passage("a", "one"), Passage("b", "nan")], BrokenEncoder())


def test_p30_each_passage_retrieves_itself():
    passages = animal_passages(40)
    hits = DenseBackend.from_passages(passages, HASHING, batch=7).search([p.contents for p in passages], 1)
    assert [line[0].row for line in hits] == list(range(40))


def test_p46_stored_vectors_of_another_encoder_are_refused():
    passages = animal_passages(10)
    prefixed = open_encoder(replace(RECORDS["hashing"], passage_prefix="passage about something else: "))
    stored = encode_passages(HASHING, [passages[row].contents for row in (0, 5)])
    with pytest.raises(IndexRefused, match="weights, pooling or prefix differ from those at build time"):
        DenseBackend.from_passages(passages, prefixed).check_vectors([0, 5], stored)
    DenseBackend.from_passages(passages, HASHING).check_vectors([0, 5], stored)


def test_p47_unusual_queries():
    backend = DenseBackend.from_passages(animal_passages(8), HASHING)
    queries = ["", "  ", "zebra", "\ud800 zebra", "zebra\x00", "x" * 50_000, "\u202ezebra", "שלום"]
    found = backend.search(queries, 2)
    assert found[:2] == [[], []]
    assert [line[0].id for line in found[2:5]] == ["p3", "p3", "p3"]
    assert [len(line) for line in found] == [0, 0, 2, 2, 2, 2, 2, 2]
    assert found[2] == backend.search(["zebra"], 2)[0]


@pytest.mark.parametrize("query", ["???", ".", "🙂", "\u200b", "\x00", " \x00 ", "\ud800", "\u0301"])
def test_p47_a_query_without_features_has_no_hits(query):
    backend = DenseBackend.from_passages(animal_passages(8), HASHING)
    found = backend.search([query, "zebra", query], 3)
    assert [found[0], found[2]] == [[], []]
    assert found[1] == backend.search(["zebra"], 3)[0]
    assert backend.search([query], 3) == [[]]


FORKED_SEARCH = """
import os
from retriever_server.backends.dense import DenseBackend
from retriever_server.corpus import Passage
from retriever_server.encoders import RECORDS, open_encoder
from retriever_server.errors import SearchError

backend = DenseBackend.from_passages([Passage("a", "one"), Passage("b", "two")], open_encoder(RECORDS["hashing"]))
backend.search(["one"], 1), backend.search(["two"], 1)
child = os.fork()
if child == 0:
    try:
        backend.search(["one"], 1)
    except SearchError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_p33_a_forked_child_is_told_instead_of_hanging():
    done = subprocess.run(
        [sys.executable, "-c", FORKED_SEARCH], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.splitlines() == [
        "This index was loaded before a fork; load it in the process that searches.",
        "7",
    ]
