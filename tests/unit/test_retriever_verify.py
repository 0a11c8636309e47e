"""`verify` and `inspect`: what is whole, what is not, and the index told for people."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from retriever_server.building.build import BuildOptions
from retriever_server.cli import main
from retriever_server.index import build_index
from retriever_server.vectors.record import VectorSettings
from retriever_server.verifying import verify_index

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"d{i}", "contents": f"thing{i * 13} near topic{i * 7}"}) + "\n" for i in range(120))
    )
    return path


def built(corpus: Path, out: Path, encoder: str = "bm25+hashing", kind: str = "flat", shards: int = 1) -> Path:
    options = BuildOptions(vectors=VectorSettings(kind), shards=shards, line=lambda text: None)
    build_index(corpus, encoder, out, options=options)
    return out


def failing(folder: Path, corpus: Path | None = None) -> dict[str, str]:
    return {check.name: check.found for check in verify_index(folder, corpus) if not check.holds}


@pytest.mark.parametrize(("kind", "shards"), [("flat", 1), ("flat", 3), ("ivf_flat", 1), ("hnsw", 2), ("sq8", 1)])
def test_a_whole_index_passes_every_check(corpus, tmp_path, kind, shards):
    checks = list(verify_index(built(corpus, tmp_path / "index", kind=kind, shards=shards), corpus))
    assert [check.name for check in checks if not check.holds] == []
    names = [check.name for check in checks if not check.name.startswith("file ")]
    assert names == [
        "passages", "corpus", "bm25 part", "bm25 canaries", "dense part", "dense canaries", "stored vectors",
        "encoded again", "recall",
    ]  # fmt: skip
    assert len(checks) - len(names) == 8 + shards  # passages 2, BM25 5, vectors, canaries


def test_a_changed_byte_anywhere_is_found(corpus, tmp_path):
    folder = built(corpus, tmp_path / "index")
    for path in [path for path in folder.iterdir() if path.name != "manifest.json"]:
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        assert f"file {path.name}" in failing(folder)
        path.write_bytes(whole)
    assert failing(folder) == {}


@pytest.mark.parametrize("kind", ["hnsw", "ivf_flat"])
def test_whatever_lies_in_a_file_it_is_told_and_ends_nothing(corpus, tmp_path, kind):
    folder = built(corpus, tmp_path / "index", kind=kind)
    for path in [path for path in folder.iterdir() if path.name != "manifest.json"]:
        whole = path.read_bytes()
        third = len(whole) // 3
        for wrong in (b"", b"PK\x03\x04" + whole[4:], whole[:third] + b"\xa5" * third + whole[2 * third :], b"\0" * 99):
            path.write_bytes(wrong)
            assert f"file {path.name}" in failing(folder)
        path.write_bytes(whole)
    assert failing(folder) == {}


def test_equal_passages_lower_no_recall(tmp_path):
    texts = [f"kind {row % 3} of thing" if row % 2 else f"thing{row * 13} near topic{row * 7}" for row in range(300)]
    lines = [json.dumps({"id": f"d{row}", "contents": text}) for row, text in enumerate(texts)]
    (tmp_path / "equal.jsonl").write_text("\n".join(lines))
    for kind in ("flat", "hnsw", "sq8", "ivf_flat"):
        assert failing(built(tmp_path / "equal.jsonl", tmp_path / kind, "hashing", kind)) == {}


def test_cut_and_missing_files_are_told(corpus, tmp_path):
    folder = built(corpus, tmp_path / "index", "hashing")
    vectors = folder / "vectors.faiss"
    vectors.write_bytes(vectors.read_bytes()[:-4])
    # 120 vectors of 1024 floats behind a header of 45 bytes
    assert failing(folder)["file vectors.faiss"] == "491561 bytes where the manifest says 491565"
    vectors.unlink()
    found = failing(folder)
    assert found["file vectors.faiss"] == "missing"
    assert found["dense part"] == "not opened, since vectors.faiss is not as built"


def test_another_corpus_is_told_by_its_first_difference(corpus, tmp_path):
    folder = built(corpus, tmp_path / "index", "bm25")
    lines = corpus.read_text().splitlines(keepends=True)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(lines[:7]) + lines[8] + "".join(lines[9:]))
    assert failing(folder, other) == {"corpus": f"{other} differs from the index from passage 8 ('d8') on"}
    other.write_text("".join(lines[:50]))
    assert failing(folder, other) == {"corpus": f"{other} holds 50 passages and the index 120"}
    other.write_text("\n".join(lines))
    assert failing(folder, other) == {}


def test_vectors_of_other_passages_are_found(corpus, tmp_path):
    folder, others = built(corpus, tmp_path / "index", "hashing"), tmp_path / "others.jsonl"
    others.write_text(
        "".join(json.dumps({"id": f"d{i}", "contents": f"word{i} of {i * 3}"}) + "\n" for i in range(120))
    )
    other = built(others, tmp_path / "other", "hashing")
    (folder / "vectors.faiss").write_bytes((other / "vectors.faiss").read_bytes())
    assert set(failing(folder)) == {"file vectors.faiss", "dense part"}
    manifest, of_other = (json.loads((path / "manifest.json").read_text()) for path in (folder, other))
    (of_vectors,) = [record for record in of_other["files"] if record["name"] == "vectors.faiss"]
    files = [of_vectors if record["name"] == "vectors.faiss" else record for record in manifest["files"]]
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
    assert set(failing(folder)) == {"dense canaries", "encoded again"}


def test_the_command_names_what_failed_and_ends_with_1(corpus, tmp_path):
    folder = built(corpus, tmp_path / "index", "bm25")
    command = [sys.executable, "-m", "retriever_server", "verify", "--index", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (
        done.stdout.splitlines()[-1].split()
        == "ok bm25 canaries 16 of 16 passages are found first by their own first words".split()
    )
    (folder / "passages.jsonl").write_bytes((folder / "passages.jsonl").read_bytes().replace(b"thing0", b"thing1"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"retriever: {folder} fails 2 checks: file passages.jsonl, bm25 canaries.\n"


def test_no_index_at_all_is_one_sentence(tmp_path, capsys):
    for command in ("verify", "inspect"):
        assert main([command, "--index", str(tmp_path)]) == 2
        sentence = f"retriever: {tmp_path} holds no index (manifest.json is missing); make one with `build`.\n"
        assert capsys.readouterr().err == sentence


def test_inspect_tells_kind_parameters_and_sizes(corpus, tmp_path, capsys):
    folder = built(corpus, tmp_path / "index", kind="ivf_flat", shards=2)
    assert main(["inspect", "--index", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"index       {folder} (hybrid, format 2)"
    assert any(
        line.startswith("vectors     kind ivf_flat, dimension 1024, metric inner_product, nlist 1") for line in lines
    )
    assert any(line.split()[-1] == "vectors-001-of-002.faiss" for line in lines)
    assert main(["inspect", "--json", "--index", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "manifest.json").read_text())


def test_inspect_refuses_vectors_that_are_not_declared(corpus, tmp_path, capsys):
    folder = built(corpus, tmp_path / "index", "hashing")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["parts"][0]["vectors"] = {"kind": "flat"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["inspect", "--index", str(folder)]) == 2
    sentence = "retriever: The vectors' record holds the keys ['kind']; build the index again.\n"
    assert capsys.readouterr().err == sentence
