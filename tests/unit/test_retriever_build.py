"""Builds that are killed, resumed, refused or sharded; hybrid folders; opening them (cases P41 and P46)."""

import gzip
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from retriever_server.building.build import BuildOptions
from retriever_server.building.chunks import Chunks, evenly_spaced
from retriever_server.building.preflight import Limits
from retriever_server.corpus import Passage
from retriever_server.encoders import RECORDS, EncoderRecord, open_encoder
from retriever_server.errors import EncoderError, IndexRefused
from retriever_server.index import OpenOptions, build_index, open_index, open_shard
from retriever_server.manifest import read_manifest
from retriever_server.vectors.record import VectorSettings

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["lion", "tiger", "horse", "zebra", "mouse", "eagle", "shark", "whale", "otter", "heron", "moose"]


def rows(count: int) -> list[dict]:
    texts = (f"{WORDS[row % 11]} number {row} met {WORDS[row % 7]} of house {row * 31 % 997}" for row in range(count))
    return [{"id": f"p{row}", "contents": text} for row, text in enumerate(texts)]


def write_corpus(path: Path, count: int) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows(count))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def small(tmp_path) -> str:
    """A hashing encoder of 64 dimensions, as a record file."""
    path = tmp_path / "small.json"
    path.write_text(json.dumps(asdict(replace(RECORDS["hashing"], dimension=64))))
    return str(path)


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl", 200)


def options(kind: str = "flat", **values) -> BuildOptions:
    parameters = {name: values.pop(name) for name in ("nprobe", "nlist", "ef_search") if name in values}
    return BuildOptions(vectors=VectorSettings(kind, **parameters), line=lambda text: None, **values)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def command(corpus: Path, encoder: str, out: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "retriever_server", "build", "--corpus", str(corpus), "--encoder", encoder]
    return [*start, "--out", str(out), "--chunk-rows", "16", *more]


INVERTED = ("--index", "ivf_flat", "--shards", "2", "--nlist", "8", "--nprobe", "2")


@pytest.mark.parametrize("more", [("--index", "flat"), INVERTED])
def test_a_build_killed_while_it_encodes_goes_on_to_an_equal_index(tmp_path, small, more):
    corpus = write_corpus(tmp_path / "corpus.jsonl.gz", 2000)
    killed = subprocess.Popen(command(corpus, small, tmp_path / "killed", *more), cwd=ROOT, stderr=subprocess.DEVNULL)
    chunks = tmp_path / "killed.building" / "chunks"
    while len(list(chunks.glob("*.npy"))) < 5:
        assert killed.poll() is None
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    there = len(list(chunks.glob("*.npy")))
    assert 5 <= there < 125
    assert not (tmp_path / "killed").exists()
    resumed = subprocess.run(
        command(corpus, small, tmp_path / "killed", *more), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "going on in" in resumed.stderr
    assert "2,000 passages are there" in resumed.stderr
    whole = options("flat") if "flat" in more else options("ivf_flat", shards=2, nlist=8, nprobe=2)
    build_index(corpus, small, tmp_path / "whole", options=replace(whole, chunk_rows=16))
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl.gz", "killed", "small.json", "whole"]


class Stopping:
    """Gives vectors of ones until it was asked for `most` texts."""

    record = EncoderRecord("stopping", 4, normalise=False)

    def __init__(self, most: int) -> None:
        self.asked: list[str] = []
        self.most = most

    def encode(self, texts):
        if len(self.asked) + len(texts) > self.most:
            raise KeyboardInterrupt
        self.asked += texts
        return np.array([[len(text), 1, 2, 3] for text in texts], dtype=np.float32)


def test_only_missing_chunks_are_encoded(tmp_path):
    passages = [Passage(str(row), "x" * (row + 1)) for row in range(25)]
    chunks = Chunks(tmp_path / "chunks", 25, 10, 4)
    with pytest.raises(KeyboardInterrupt):
        chunks.encode(passages, Stopping(15), lambda done, made: None)
    assert chunks.present() == 10
    (tmp_path / "chunks" / "000000000010.npy.unfinished").write_bytes(b"cut")
    told = []
    again = Stopping(100)
    chunks.encode(passages, again, lambda done, made: told.append((done, made)))
    assert [len(text) for text in again.asked] == list(range(11, 26))
    assert told == [(10, 0), (20, 10), (25, 15)]
    assert np.concatenate(list(chunks.blocks()))[:, 0].tolist() == list(range(1, 26))
    assert np.concatenate(list(chunks.blocks(8, 21)))[:, 0].tolist() == list(range(9, 22))
    assert chunks.take(np.array([0, 9, 10, 24]))[:, 0].tolist() == [1, 10, 11, 25]


def test_evenly_spaced_rows():
    assert evenly_spaced(10, 4).tolist() == [0, 2, 5, 7]
    assert evenly_spaced(3, 5).tolist() == [0, 1, 2]
    assert evenly_spaced(5, 0).tolist() == []


@pytest.fixture
def unfinished(corpus, small, tmp_path, monkeypatch) -> Path:
    """What a build leaves that was stopped while it encoded."""
    encoder = open_encoder(RECORDS["hashing"])
    monkeypatch.setattr(type(encoder), "encode", lambda self, texts: Stopping(0).encode(texts))
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, small, tmp_path / "index", options=options(chunk_rows=16))
    monkeypatch.undo()
    return tmp_path / "index.building"


def test_the_unfinished_build_of_something_else_is_refused_naming_what_differs(corpus, small, unfinished, tmp_path):
    out = tmp_path / "index"
    with pytest.raises(IndexRefused, match=r"differs from this one in index\.kind \('flat', now 'fp16'\); finish it"):
        build_index(corpus, small, out, options=options("fp16", chunk_rows=16))
    with pytest.raises(IndexRefused, match=r"encoder\.dimension \(64, now 1024\); .* or pass --restart to discard it"):
        build_index(corpus, "hashing", out, options=options(chunk_rows=16))
    with pytest.raises(IndexRefused, match=r"differs from this one in chunk_rows \(16, now 17\), shards \(1, now 2\)"):
        build_index(corpus, small, out, options=options(chunk_rows=17, shards=2))
    assert unfinished.is_dir()
    build_index(corpus, "bm25", out, restart=True)
    assert read_manifest(out).kind == "bm25"
    assert not unfinished.exists()


def test_a_corpus_that_has_changed_since_is_refused(corpus, small, unfinished, tmp_path):
    write_corpus(corpus, 200)  # written again with the same bytes: no matter
    out = tmp_path / "index"
    write_corpus(corpus, 201)
    with pytest.raises(IndexRefused, match=r"is of another content of .*corpus\.jsonl \(the SHA-256 differs\)"):
        build_index(corpus, small, out, options=options(chunk_rows=16))
    write_corpus(corpus, 200)
    assert build_index(corpus, small, out, options=options(chunk_rows=16)).count == 200


def test_a_damaged_chunk_is_refused_by_name(corpus, small, unfinished, tmp_path):
    (unfinished / "chunks").mkdir(exist_ok=True)
    chunk = unfinished / "chunks" / "000000000000.npy"
    chunk.write_bytes(b"\x93NUMPY")
    with pytest.raises(IndexRefused, match=r"000000000000\.npy is damaged .*; pass --restart to build anew"):
        build_index(corpus, small, tmp_path / "index", options=options(chunk_rows=16))
    np.save(chunk, np.zeros((15, 64), np.float32))
    with pytest.raises(IndexRefused, match=r"holds vectors of shape \(15, 64\); pass --restart"):
        build_index(corpus, small, tmp_path / "index", options=options(chunk_rows=16))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(disk=1000), r"Not enough disk for the passages: about \d+\.\d kB are needed and 1\.0 kB are free at "),
        (Limits(disk=40_000), r"Not enough disk for the vectors and their flat index: about 102\.4 kB are needed and "),
        (Limits(ram=10**6), r"Not enough memory for assembling the flat index: about 314\.6 MB are needed and 1\.0 MB"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_encoded(corpus, small, tmp_path, limits, sentence):
    with pytest.raises(IndexRefused, match=sentence):
        build_index(corpus, small, tmp_path / "index", options=options(limits=limits))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "small.json"]


def test_bm25_that_does_not_fit_is_refused(corpus, tmp_path):
    with pytest.raises(IndexRefused, match=r"Not enough memory for indexing BM25: about .* are needed and 1\.0 MB"):
        build_index(corpus, "bm25", tmp_path / "index", options=options(limits=Limits(ram=10**6)))


def test_more_shards_than_passages_are_refused(corpus, small, tmp_path):
    with pytest.raises(IndexRefused, match="200 passages cannot be split into 201 shards"):
        build_index(corpus, small, tmp_path / "index", options=options(shards=201))


def test_p28_a_passage_without_a_finite_vector_is_named(tmp_path):
    class Broken(Stopping):
        def encode(self, texts):
            return np.where(np.array([["7" in text] for text in texts]), np.nan, np.ones((len(texts), 4)))

    passages = [Passage(f"p{row}", f"text {row}") for row in range(9)]
    with pytest.raises(EncoderError, match="'stopping' gave no finite vector for passage 'p7'"):
        Chunks(tmp_path / "chunks", 9, 4, 4).encode(passages, Broken(9), lambda done, made: None)
    assert len(list((tmp_path / "chunks").iterdir())) == 1


@pytest.mark.parametrize("kind", ["flat", "fp16", "sq8", "ivf_flat", "hnsw"])
def test_each_kind_is_built_opened_and_searched(corpus, small, tmp_path, kind):
    built = build_index(corpus, small, tmp_path / "index", options=options(kind))
    backend, manifest = open_index(tmp_path / "index")
    assert manifest == built
    vectors = manifest.parts[0].vectors
    assert (vectors["kind"], vectors["dimension"], vectors["metric"], vectors["rows"]) == (
        kind, 64, "inner_product", [0, 200],
    )  # fmt: skip
    assert bool(vectors["nprobe"]) == (kind == "ivf_flat")
    assert bool(vectors["ef_search"]) == (kind == "hnsw")
    assert vectors["recall"] > 0.9
    for row in (0, 77, 199):
        assert backend.search([rows(200)[row]["contents"]], 3)[0][0].id == f"p{row}"


def test_auto_says_what_it_chose_and_why(corpus, small, tmp_path):
    told: list[str] = []
    auto = BuildOptions(vectors=VectorSettings("auto"), line=told.append)
    vectors = build_index(corpus, small, tmp_path / "index", options=auto).parts[0].vectors
    why = "flat: 200 vectors of 64 dimensions are few enough to be searched exhaustively and exactly"
    assert (vectors["kind"], vectors["advice"]) == ("flat", [why])
    assert why in told


def test_search_parameters_of_the_manifest_are_replaced_on_opening(corpus, small, tmp_path):
    build_index(corpus, small, tmp_path / "index", options=options("ivf_flat", nlist=5, nprobe=5))
    query = [rows(200)[3]["contents"]]
    assert len(open_index(tmp_path / "index")[0].search(query, 200)[0]) == 200
    assert 0 < len(open_index(tmp_path / "index", OpenOptions(nprobe=1))[0].search(query, 200)[0]) < 200
    with pytest.raises(IndexRefused, match="kind 'ivf_flat' has no ef_search; that is for hnsw"):
        open_index(tmp_path / "index", OpenOptions(ef_search=9))
    with pytest.raises(IndexRefused, match="nprobe 0 is not at least 1"):
        OpenOptions(nprobe=0)


def test_shards_answer_as_one_index_and_open_alone(corpus, small, tmp_path):
    build_index(corpus, small, tmp_path / "one", options=options())
    manifest = build_index(corpus, small, tmp_path / "three", options=options(shards=3))
    assert manifest.parts[0].vectors["rows"] == [0, 66, 133, 200]
    whole, parts = open_index(tmp_path / "one")[0], open_index(tmp_path / "three")[0]
    queries = [row["contents"] for row in rows(200)[::9]] + ["lion", "house 31", "", "whale of"]
    for topk in (1, 10, 200):
        assert parts.search(queries, topk) == whole.search(queries, topk)
    shard = open_shard(tmp_path / "three", 1)
    vector = open_encoder(replace(RECORDS["hashing"], dimension=64)).encode([rows(200)[100]["contents"]])
    scores, found = shard.search_vectors(vector, 70)
    assert (found[0][0], set(found[0])) == (100, {*range(66, 133), -1})
    assert scores[0][0] == pytest.approx(np.linalg.norm(vector), rel=1e-5)
    for number in (-1, 3):
        with pytest.raises(IndexRefused, match=f"has 3 shards, so there is no shard {number}"):
            open_shard(tmp_path / "three", number)


def test_a_hybrid_folder_holds_both_parts_and_serves_either(corpus, small, tmp_path):
    manifest = build_index(corpus, f"bm25+{small}", tmp_path / "index", options=options(shards=2))
    assert (manifest.kind, manifest.encoder) == ("hybrid", "bm25+hashing")
    assert [part.kind for part in manifest.parts] == ["bm25", "dense"]
    query = [rows(200)[5]["contents"]]
    for use, kind in (("", "hybrid"), ("bm25", "bm25"), ("dense", "dense")):
        backend, _ = open_index(tmp_path / "index", OpenOptions(use=use))
        assert backend.kind == kind
        assert backend.search(query, 2)[0][0].id == "p5"
    build_index(corpus, "bm25", tmp_path / "words")
    with pytest.raises(IndexRefused, match="has no dense part; it is an index of bm25"):
        open_index(tmp_path / "words", OpenOptions(use="dense"))
    with pytest.raises(IndexRefused, match="holds no vectors, so it has no shards"):
        open_shard(tmp_path / "words", 0)


@pytest.mark.parametrize("kind", ["fp16", "sq8", "ivf_flat", "hnsw"])
def test_p46_another_pooling_is_noticed_whatever_the_kind(corpus, small, tmp_path, kind):
    build_index(corpus, small, tmp_path / "index", options=options(kind))
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["settings"]["passage_prefix"] = "some other prefix of the passage: "
    path.write_text(json.dumps(manifest))
    with pytest.raises(IndexRefused, match=r"has cosine 0\.\d+ with its stored vector: weights, pooling or prefix"):
        open_index(tmp_path / "index")


def test_an_embedder_is_added_to_an_index_without_encoder(corpus, small, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    assert open_index(tmp_path / "index")[0].encoder is None
    encoder = open_index(tmp_path / "index", OpenOptions(embedder=small))[0].encoder
    assert encoder is not None
    assert encoder.record.dimension == 64
