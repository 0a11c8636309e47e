"""Index folders: building, refusing, canaries (cases P30, P41, P46), damage, and recall on real questions."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from retriever_server.backends.bm25 import BM25Backend, BM25Settings
from retriever_server.canaries import check_canaries, choose_canaries
from retriever_server.cli import main
from retriever_server.corpus import Passage, read_corpus
from retriever_server.errors import CorpusError, EncoderError, IndexRefused
from retriever_server.index import build_index, open_index
from retriever_server.manifest import Canary, read_manifest

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("VERL_AGENTIC_SHARED", ROOT.parent / "shared"))
TOWNS = ["Avar", "Belm", "Corv", "Dune", "Elst", "Fenn", "Gorm", "Hale", "Ivor", "Jost"]


@pytest.fixture
def corpus(tmp_path) -> Path:
    rows = [{"id": f"t{row}", "title": town, "text": f"{town} is town {row}."} for row, town in enumerate(TOWNS)]
    path = tmp_path / "towns.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("encoder", ["bm25", "hashing"])
def test_build_then_open(corpus, tmp_path, encoder):
    built = build_index(corpus, encoder, tmp_path / "index")
    backend, manifest = open_index(tmp_path / "index")
    assert manifest == built
    assert (manifest.count, manifest.encoder, manifest.corpus) == (10, encoder, "towns.jsonl")
    assert manifest.found_by_own_words == 1.0
    assert backend.search(["Gorm"], 1)[0][0].contents == '"Gorm"\nGorm is town 6.'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "towns.jsonl"]


def test_two_builds_of_one_corpus_are_equal(corpus, tmp_path):
    for name in ("one", "two"):
        build_index(corpus, "bm25", tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) >= 6
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_in_process_search_equals_the_index(corpus, tmp_path):
    settings = BM25Settings("plain", k1=1.2)
    build_index(corpus, "bm25", tmp_path / "index", bm25=settings)
    opened, _ = open_index(tmp_path / "index")
    in_process = BM25Backend.from_passages(list(read_corpus(corpus)), settings)
    queries = ["town", "is Dune", "Elst town 4", "zebra"]
    assert opened.search(queries, 10) == in_process.search(queries, 10)


def test_p41_an_existing_folder_is_not_overwritten_without_force(corpus, tmp_path):
    out = tmp_path / "index"
    build_index(corpus, "bm25", out)
    with pytest.raises(IndexRefused, match="exists already; choose another folder, or pass --force"):
        build_index(corpus, "hashing", out)
    assert read_manifest(out).kind == "bm25"
    build_index(corpus, "hashing", out, force=True)
    assert read_manifest(out).kind == "dense"


def test_force_replaces_only_an_index(corpus, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexRefused, match="is not an index, so --force does not replace it"):
        build_index(corpus, "bm25", precious, force=True)
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_a_failed_build_leaves_the_old_index_and_no_remains(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "contents": "x y"}\n{"id": "b"}\n')
    with pytest.raises(CorpusError, match="line 2"):
        build_index(bad, "bm25", tmp_path / "index", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "index", "towns.jsonl"]
    assert read_manifest(tmp_path / "index").count == 10


def test_p26_an_empty_corpus_is_refused(tmp_path):
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(IndexRefused, match=r"none.jsonl holds no passages"):
        build_index(tmp_path / "none.jsonl", "bm25", tmp_path / "index")


def edit_manifest(folder: Path, **changes) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_part(folder: Path, **changes) -> None:
    part = json.loads((folder / "manifest.json").read_text())["parts"][0]
    edit_manifest(folder, parts=[part | changes])


def test_p24_p25_p46_a_manifest_that_does_not_fit_is_refused(corpus, tmp_path):
    build_index(corpus, "hashing", tmp_path / "index")
    settings, canaries = read_manifest(tmp_path / "index").settings, read_manifest(tmp_path / "index").canaries
    edit_part(tmp_path / "index", settings=settings | {"passage_prefix": "some other prefix of the passage: "})
    with pytest.raises(IndexRefused, match="differ from those at build time"):
        open_index(tmp_path / "index")
    edit_part(tmp_path / "index", settings=settings | {"dimension": 512})
    with pytest.raises(IndexRefused, match="vectors of 1024 dimensions but encoder 'hashing' gives 512"):
        open_index(tmp_path / "index")
    edit_part(tmp_path / "index", settings=settings)
    edit_manifest(tmp_path / "index", count=9, canaries=[asdict(canary) for canary in canaries[:5]])
    with pytest.raises(IndexRefused, match="counts 9 passages but its passage file holds 10"):
        open_index(tmp_path / "index")


def test_p30_swapped_passages_fail_the_canaries(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    passages = tmp_path / "index" / "passages.jsonl"
    lines = passages.read_text().splitlines(keepends=True)
    passages.write_text("".join(lines[1:] + lines[:1]))
    with pytest.raises(IndexRefused, match="10 of 10 self-retrieval canaries fail"):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("name", ["manifest.json", "passages.jsonl", "passages.offsets.npy", "vectors.faiss"])
def test_a_missing_part_is_named(corpus, tmp_path, name):
    build_index(corpus, "hashing", tmp_path / "index")
    (tmp_path / "index" / name).unlink()
    with pytest.raises(IndexRefused, match=r"missing|holds no index"):
        open_index(tmp_path / "index")


def test_a_damaged_manifest_is_refused(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    edit_manifest(tmp_path / "index", format=99)
    with pytest.raises(IndexRefused, match="is of format 99 and this version reads format 2"):
        open_index(tmp_path / "index")
    (tmp_path / "index" / "manifest.json").write_text("{")
    with pytest.raises(IndexRefused, match="is damaged"):
        open_index(tmp_path / "index")


def test_p46_failing_canaries_are_counted():
    backend = BM25Backend.from_passages([Passage("a", "red fox"), Passage("b", "blue hen")])
    with pytest.raises(IndexRefused, match="1 of 2 self-retrieval canaries fail"):
        check_canaries(backend, [Canary(0, "a", "red fox"), Canary(0, "a", "blue hen")])


def test_canaries_leave_out_passages_that_their_own_words_do_not_find():
    twins = [Passage("a", "red fox"), Passage("b", "red fox"), Passage("c", "blue hen")]
    canaries, share = choose_canaries([BM25Backend.from_passages(twins)])
    assert canaries == [Canary(0, "a", "red fox"), Canary(2, "c", "blue hen")]
    assert share == pytest.approx(2 / 3)


@pytest.mark.parametrize("option", [("--index", "ivf_pq"), ("--nlist", "4"), ("--hnsw-m", "8")])
def test_options_of_vectors_are_refused_for_bm25(corpus, tmp_path, capsys, option):
    assert main(["build", "--corpus", str(corpus), "--encoder", "bm25", "--out", str(tmp_path / "index"), *option]) == 2
    assert "are for vectors, and --encoder bm25 has none" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_a_reader_that_closes_its_pipe_is_no_error(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    inspect = f"{sys.executable} -m retriever_server inspect --index {tmp_path / 'index'} --json"
    done = subprocess.run(["bash", "-c", f"{inspect} | true"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_encoder_is_refused_before_anything_is_written(corpus, tmp_path):
    with pytest.raises(EncoderError, match="'no-such' is neither declared"):
        build_index(corpus, "no-such", tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["towns.jsonl"]


def test_bm25_recall_on_real_multi_hop_questions(tmp_path):
    folder = SHARED / "data" / "multihop"
    if not folder.is_dir():
        pytest.skip(f"needs the questions and passages of {folder}")
    build_index(folder / "corpus.jsonl.gz", "bm25", tmp_path / "index")
    backend, manifest = open_index(tmp_path / "index")
    with gzip.open(folder / "questions.jsonl.gz") as lines:
        questions = [json.loads(line) for line in lines]
    assert (len(questions), manifest.count) == (394, 4810)
    found = backend.search([question["question"] for question in questions], 10)
    for depth, least in ((5, 0.667), (10, 0.797)):
        shares = [
            len({hit.id for hit in hits[:depth]} & set(question["gold_passage_ids"]))
            / len(question["gold_passage_ids"])
            for question, hits in zip(questions, found, strict=True)
        ]
        assert sum(shares) / len(shares) >= least
