"""Vector indexes of each kind against plain numpy, ties, shards, streamed files, tuning and advice."""

import tracemalloc
from dataclasses import replace

import faiss
import numpy as np
import pytest

from retriever_server.backends.sharded import ShardedVectors, merge, open_vectors
from retriever_server.errors import IndexRefused
from retriever_server.vectors import kinds
from retriever_server.vectors.advisor import advise
from retriever_server.vectors.record import KINDS, VectorRecord, VectorSettings, index_bytes, resolve
from retriever_server.vectors.search import VectorIndex, open_file
from retriever_server.vectors.tuning import make_sample, recall, tune

DIMENSION = 32


def clustered(count: int, seed: int = 0) -> np.ndarray:
    """Unit vectors around 50 centres."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((50, DIMENSION))
    vectors = centres[rng.integers(50, size=count)] + 0.5 * rng.standard_normal((count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def best(vectors: np.ndarray, query: np.ndarray, topk: int) -> list[int]:
    scores = [sum(float(a) * float(b) for a, b in zip(vector, query, strict=True)) for vector in vectors]
    return sorted(range(len(vectors)), key=lambda row: (-round(scores[row], 6), row))[:topk]


def written(folder, kind: str, vectors: np.ndarray, shards: int = 1, **parameters) -> VectorRecord:
    rows = [number * len(vectors) // shards for number in range(shards + 1)]
    record = resolve(VectorSettings(kind, **parameters), DIMENSION, rows)
    for number, name in enumerate(record.file_names()):
        part = vectors[rows[number] : rows[number + 1]]
        kinds.write(record, part, [part[:100], part[100:]], len(part), folder / name)
    return record


# the least share of the true ten that a search looking at everything finds: exact but for what the codes lose
LEAST = {"flat": 1.0, "fp16": 0.98, "sq8": 0.9, "ivf_flat": 1.0, "ivf_pq": 0.4, "hnsw": 0.98}


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_finds_what_a_plain_loop_finds(tmp_path, kind, mmap):
    vectors, queries = clustered(1200), clustered(20, seed=1)
    record = written(tmp_path, kind, vectors)
    searcher = open_vectors(tmp_path, record, mmap=mmap, nprobe=record.nlist or None, ef_search=400)
    scores, rows = searcher.search_vectors(queries, 10)
    assert (scores.shape, rows.shape, rows.dtype) == ((20, 10), (20, 10), np.int64)
    assert (np.diff(scores, axis=1) <= 0).all()
    expected = [best(vectors, query, 10) for query in queries]
    found = np.mean([len(set(line) & set(truth)) / 10 for line, truth in zip(rows.tolist(), expected, strict=True)])
    assert found >= LEAST[kind]
    if kind == "flat":
        assert rows.tolist() == expected


@pytest.mark.parametrize("kind", kinds.STREAMED)
def test_a_streamed_file_is_the_one_that_faiss_writes(tmp_path, kind):
    vectors = clustered(333)
    record = written(tmp_path, kind, vectors)
    faiss.write_index(kinds.fill(record, vectors, [vectors]), str(tmp_path / "whole"))
    assert (tmp_path / "vectors.faiss").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("queries", [1, 64])
def test_ties_are_in_row_order_at_the_cut_too(queries):
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(np.concatenate([clustered(100)] * 3))
    asked = np.repeat(clustered(100)[7:8], queries, axis=0)
    for topk, expected in ((1, [7]), (2, [7, 107]), (3, [7, 107, 207])):
        assert VectorIndex(index).search_vectors(asked, topk)[1].tolist() == [expected] * queries
    same = faiss.IndexFlatIP(DIMENSION)
    same.add(np.repeat(clustered(1), 50, axis=0))
    assert VectorIndex(same).search_vectors(asked, 7)[1].tolist() == [[0, 1, 2, 3, 4, 5, 6]] * queries


@pytest.mark.parametrize("kind", ["flat", "ivf_flat"])
@pytest.mark.parametrize("score", [1.0, 0.0, -1.0])
def test_thousands_of_equal_passages_come_in_row_order_and_take_little_memory(tmp_path, kind, score):
    vectors, asked = np.zeros((20_000, DIMENSION), np.float32), np.zeros((64, DIMENSION), np.float32)
    vectors[:, 0], vectors[9_999, 1], asked[:, 0], asked[:, 1] = 1, 1, score, 2
    searcher = open_vectors(tmp_path, written(tmp_path, kind, vectors, nlist=3 if kind == "ivf_flat" else 0), nprobe=3)
    tracemalloc.start()
    scores, rows = searcher.search_vectors(asked, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.tolist() == [[9_999, 0, 1, 2]] * 64
    assert scores.tolist() == [[score + 2, score, score, score]] * 64
    assert peak < 4_000_000  # all scores and rows of the 64 would be 15 MB, and several such arrays


@pytest.mark.parametrize("kind", ["sq8", "fp16", "hnsw"])
def test_ties_beyond_the_cut_are_in_row_order_whatever_the_kind(tmp_path, kind):
    vectors = np.concatenate([clustered(300)] * 3)
    searcher = open_vectors(tmp_path, written(tmp_path, kind, vectors), ef_search=900)
    assert searcher.search_vectors(clustered(300)[[7, 200]], 2)[1].tolist() == [[7, 307], [200, 500]]


@pytest.mark.parametrize("kind", ["flat", "fp16"])
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_shards_answer_exactly_as_one_index(tmp_path, kind, shards):
    vectors = np.concatenate([clustered(300), clustered(300)])  # every passage twice, in different shards
    (tmp_path / "one").mkdir()
    whole = open_vectors(tmp_path / "one", written(tmp_path / "one", kind, vectors))
    parts = open_vectors(tmp_path, written(tmp_path, kind, vectors, shards))
    assert isinstance(parts, ShardedVectors)
    assert (parts.count, parts.dimension) == (600, DIMENSION)
    for count in (1, 64):
        for topk in (1, 5, 100, 600, 700):
            for mine, theirs in zip(
                parts.search_vectors(clustered(count, seed=1), topk),
                whole.search_vectors(clustered(count, seed=1), topk),
                strict=True,
            ):
                assert mine.tolist() == theirs.tolist()


def test_merging_puts_missing_neighbours_last_and_ties_in_row_order():
    first = (np.array([[0.9, 0.5, -np.inf]], np.float32), np.array([[4, 2, -1]]))
    second = (np.array([[0.9, 0.5, 0.1]], np.float32), np.array([[3, 7, 1]]))
    scores, rows = merge([first, second], 6)
    assert rows.tolist() == [[3, 4, 2, 7, 1, -1]]
    assert scores.tolist() == [[*np.float32([0.9, 0.9, 0.5, 0.5, 0.1]).tolist(), -np.inf]]


def test_p27_missing_neighbours_are_marked_at_the_end(tmp_path):
    searcher = open_vectors(tmp_path, written(tmp_path, "ivf_flat", clustered(400), nlist=10), nprobe=1)
    scores, rows = searcher.search_vectors(clustered(3, seed=1), 400)
    missing = rows == -1
    assert missing.any(axis=1).all()
    assert (scores[missing] == -np.inf).all()
    assert (np.diff(missing.astype(int), axis=1) >= 0).all()


def test_two_trainings_give_the_same_file(tmp_path):
    for kind in ("ivf_flat", "ivf_pq"):
        for name in ("one", "two"):
            (tmp_path / name).mkdir(exist_ok=True)
            written(tmp_path / name, kind, clustered(1100))
        assert (tmp_path / "one/vectors.faiss").read_bytes() == (tmp_path / "two/vectors.faiss").read_bytes()


def test_a_file_that_is_not_what_the_manifest_says_is_refused_naming_both(tmp_path):
    record = written(tmp_path, "flat", clustered(200))
    for changes, sentence in (
        ({"kind": "fp16"}, "has kind flat where the manifest says fp16"),
        ({"dimension": 31}, "has dimensions 32 where the manifest says 31"),
        ({"rows": [0, 201]}, "has vectors 200 where the manifest says 201"),
    ):
        with pytest.raises(IndexRefused, match=sentence):
            open_file(tmp_path, replace(record, **changes), 0)
    faiss.write_index(faiss.IndexFlatL2(DIMENSION), str(tmp_path / "vectors.faiss"))
    with pytest.raises(IndexRefused, match="has vectors 0 where the manifest says 200"):
        open_file(tmp_path, record, 0)
    other = faiss.IndexFlatL2(DIMENSION)
    other.add(clustered(200))
    faiss.write_index(other, str(tmp_path / "vectors.faiss"))
    with pytest.raises(IndexRefused, match="does not compare by inner product"):
        open_file(tmp_path, record, 0)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"kind": "annoy"}, "Unknown index kind 'annoy'; choose one of flat, fp16, sq8, ivf_flat, ivf_pq, hnsw, auto"),
        ({"kind": "flat", "nlist": 4}, "of kind 'flat' has no nlist; that is for ivf_flat and ivf_pq"),
        ({"kind": "ivf_flat", "pq_m": 4}, "of kind 'ivf_flat' has no pq_m; that is for ivf_pq"),
        ({"kind": "ivf_flat", "ef_search": 4}, "of kind 'ivf_flat' has no ef_search; that is for hnsw"),
        ({"kind": "ivf_flat", "nlist": -1}, "nlist is -1; it cannot be negative"),
        ({"kind": "hnsw", "hnsw_m": 1}, r"needs 2 to 256 links a node \(hnsw_m\), found 1"),
        ({"recall_target": 0.0}, "recall target 0.0 is not above 0 and at most 1"),
        ({"recall_target": 1.1}, "recall target 1.1 is not above 0 and at most 1"),
        (
            {"kind": "ivf_flat", "nlist": 52},
            "with 52 lists trains on at least 2028 passages a shard, and there are 2000",
        ),
        ({"kind": "ivf_flat", "nlist": 8, "nprobe": 9}, "nprobe 9 is more than the 8 lists"),
        ({"kind": "ivf_pq", "pq_m": 5}, r"The 32 dimensions of the vectors cannot be cut into 5 equal slices \(pq_m\)"),
    ],
)
def test_unusable_parameters_are_refused(parameters, sentence):
    with pytest.raises(IndexRefused, match=sentence):
        resolve(VectorSettings(**parameters), DIMENSION, [0, 2000])


def test_too_few_passages_to_train_are_refused_with_a_way_out():
    sentence = "'ivf_pq' with 25 lists trains on at least 1024 passages a shard, and there are 1000; use --index flat"
    with pytest.raises(IndexRefused, match=sentence):
        resolve(VectorSettings("ivf_pq"), DIMENSION, [0, 1000, 2000])


def test_bytes_of_each_kind_are_near_the_estimate(tmp_path):
    vectors = clustered(2000)
    for kind in KINDS:
        record = written(tmp_path, kind, vectors)
        size = (tmp_path / "vectors.faiss").stat().st_size
        # codebooks and headers weigh much in so small an index: 32 KB of codebook, 50 bytes a list
        assert -1000 < size - index_bytes(record, 2000) < 36_000, kind


def sample_of(vectors: np.ndarray):
    rows = np.arange(0, len(vectors), len(vectors) // 50)
    return make_sample(rows, vectors[rows], [vectors[:70], vectors[70:]], len(vectors))


def test_recall_counts_true_neighbours_other_than_the_passage_itself():
    vectors = clustered(300)
    sample = sample_of(vectors)
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(vectors)
    assert recall(VectorIndex(flat), sample, lambda rows: vectors[rows]) == 1.0

    class FirstTen:
        """Finds rows 0 to 10 for everything."""

        def search_vectors(self, queries, topk):
            return np.zeros((len(queries), topk), np.float32), np.tile(np.arange(topk), (len(queries), 1))

    shares = []
    for row in sample.rows:
        truth = [other for other in best(vectors, vectors[row], 11) if other != row][:10]
        shares.append(len(set(truth) & set([other for other in range(11) if other != row][:10])) / 10)
    assert recall(FirstTen(), sample, lambda rows: vectors[rows]) == pytest.approx(np.mean(shares))


def test_copies_of_a_neighbour_count_as_found():
    vectors = np.repeat(clustered(10), 20, axis=0)  # 19 others tie for the ten places
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(vectors)
    assert recall(VectorIndex(flat), sample_of(vectors), lambda rows: vectors[rows]) == 1.0


def test_tuning_takes_the_least_parameter_that_reaches_the_target(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((1200, DIMENSION)).astype(np.float32)
    record = written(tmp_path, "ivf_flat", vectors, nlist=30)
    sample = sample_of(vectors)

    def tuned(target, **given):
        asked = replace(record, **given)
        return tune(asked, lambda tried: open_vectors(tmp_path, tried), sample, lambda rows: vectors[rows], target)

    reached = {value: tuned(1.0, nprobe=value).recall for value in (1, 2, 4, 8, 16, 30)}
    assert reached[1] < 0.9 < reached[30] == 1.0
    least = min(value for value, share in reached.items() if share >= 0.9)
    assert (tuned(0.9).nprobe, tuned(0.9).recall) == (least, reached[least])
    assert tuned(0.9).advice[0].startswith(f"ivf_flat with nprobe {least} finds {reached[least]:.3f} of the 10 nearest")
    assert tuned(0.9).advice[0].endswith("which reaches the target 0.9")
    assert "which is below the target 1" in tuned(1.0, nprobe=1).advice[0]


def test_a_target_out_of_reach_costs_no_needless_effort(tmp_path):
    vectors = clustered(1200)
    record = written(tmp_path, "ivf_pq", vectors, pq_m=4, nlist=30)
    sample = sample_of(vectors)

    def tuned(nprobe):
        asked = replace(record, nprobe=nprobe)
        return tune(asked, lambda tried: open_vectors(tmp_path, tried), sample, lambda rows: vectors[rows], 0.99)

    reached = {value: tuned(value).recall for value in (1, 2, 4, 8, 16, 30)}
    best_of_all = max(reached.values())
    assert best_of_all < 0.9
    assert tuned(0).nprobe == min(value for value, share in reached.items() if share >= best_of_all - 0.005)


def test_few_vectors_are_searched_exhaustively():
    settings, advice = advise(VectorSettings("auto"), [0, 2000], clustered(2000), ram=10**9)
    assert settings.kind == "flat"
    assert advice == ["flat: 2,000 vectors of 32 dimensions are few enough to be searched exhaustively and exactly"]


def test_many_vectors_get_the_fastest_kind_that_reaches_the_target():
    settings, advice = advise(VectorSettings("auto"), [0, 2000], clustered(2000), ram=10**9, exact_floats=0)
    assert settings.kind == "hnsw"
    assert advice[0].startswith("hnsw: 800.0 kB, recall ")
    assert advice[-1] == "hnsw is chosen"


def test_what_does_not_fit_into_memory_or_loses_too_much_is_passed_over():
    # uncompressible vectors; .7 of 115,000 bytes hold 2,000 vectors of up to 40 bytes, so no graph and no 4-byte floats
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2000, DIMENSION)).astype(np.float32)
    settings, advice = advise(VectorSettings("auto"), [0, 2000], vectors, ram=115_000, exact_floats=0)
    assert settings.kind == "sq8"
    assert [line.split(":")[0] for line in advice] == [
        "hnsw", "ivf_flat", "ivf_pq of 8 bytes", "ivf_pq of 16 bytes", "sq8", "sq8 is chosen",
    ]  # fmt: skip
    assert advice[0] == "hnsw: 800.0 kB do not fit into the 80.5 kB there are"


def test_a_corpus_too_large_for_memory_in_any_form_is_refused():
    with pytest.raises(IndexRefused, match="No index kind of 2,000 vectors fits into memory: hnsw: "):
        advise(VectorSettings("auto"), [0, 2000], clustered(2000), ram=1000, exact_floats=0)
