"""Where an index is built: behind links, on mount points, over others' work; what stays when a build is refused."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retriever_server.building.build import BuildOptions
from retriever_server.building.preflight import group_ram
from retriever_server.cli import main
from retriever_server.errors import CorpusError, EncoderError, IndexRefused
from retriever_server.index import OpenOptions, build_index, open_index
from retriever_server.manifest import read_manifest
from retriever_server.vectors.record import VectorSettings

ROOT = Path(__file__).resolve().parents[2]
QUIET = BuildOptions(line=lambda text: None)


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = ({"id": f"d{row}", "contents": f"thing{row * 13} near topic{row * 7}"} for row in range(400))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("there", [True, False])
def test_an_index_is_built_on_the_disk_that_a_link_leads_to(corpus, tmp_path, there):
    disk = tmp_path / "disk"
    disk.mkdir()
    if there:
        build_index(corpus, "hashing", disk / "index", options=QUIET)
    (tmp_path / "link").symlink_to(disk / "index")
    if there:
        with pytest.raises(IndexRefused, match="exists already"):
            build_index(corpus, "bm25", tmp_path / "link", options=QUIET)
    build_index(corpus, "bm25", tmp_path / "link", force=there, options=QUIET)
    assert (tmp_path / "link").is_symlink()
    assert read_manifest(disk / "index").kind == "bm25"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "disk", "link"]
    assert [path.name for path in disk.iterdir()] == ["index"]


def test_the_current_folder_can_become_an_index(corpus, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    build_index(corpus, "bm25", Path(), force=True, options=QUIET)
    assert open_index(tmp_path / "here")[1].count == 400


@pytest.mark.parametrize(("out", "sentence"), [("/proc", "is a mount point"), ("x" * 300, "cannot be written")])
def test_places_where_no_index_can_come_to_lie_are_refused_at_once(corpus, tmp_path, out, sentence):
    with pytest.raises(IndexRefused, match=sentence):
        build_index(corpus, "bm25", tmp_path / out, force=True, options=QUIET)


def test_an_absent_model_is_known_before_the_corpus_is_read(corpus, tmp_path):
    corpus.write_text("no passages at all")
    record = tmp_path / "absent.json"
    record.write_text(json.dumps({"id": "absent", "dimension": 3, "model": str(tmp_path / "none")}))
    with pytest.raises(EncoderError, match="'absent' cannot be loaded"):
        build_index(corpus, f"bm25+{record}", tmp_path / "index", options=QUIET)
    assert not (tmp_path / "index.building").exists()


def test_two_builds_do_not_share_a_workplace(corpus, tmp_path):
    (tmp_path / "index.building").mkdir()
    with open(tmp_path / "index.building" / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(IndexRefused, match=r"Another build is at work in .*index\.building; wait for it"):
            build_index(corpus, "bm25", tmp_path / "index", options=QUIET)
    build_index(corpus, "bm25", tmp_path / "index", options=QUIET)


def test_a_folder_in_the_way_is_left_alone_even_by_restart(corpus, tmp_path):
    way = tmp_path / "index.building"
    way.mkdir()
    (way / "thesis.txt").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(IndexRefused, match=r"in the way and is not an unfinished build \(thesis\.txt\); move it"):
            build_index(corpus, "bm25", tmp_path / "index", restart=restart)
    assert (way / "thesis.txt").read_text() == "years of work"


def test_an_old_index_moved_away_by_a_killed_build_comes_back(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index", options=QUIET)
    (tmp_path / "index.building").mkdir()
    (tmp_path / "index").rename(tmp_path / "index.building" / "replaced")
    with pytest.raises(CorpusError):
        build_index(tmp_path / "none.jsonl", "bm25", tmp_path / "index", force=True)
    assert open_index(tmp_path / "index")[1].count == 400


def test_what_a_killed_build_has_done_stays_when_its_corpus_is_away_for_a_while(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("retriever_server.building.build.file_records", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, "bm25", tmp_path / "index", options=QUIET)
    monkeypatch.undo()
    corpus.rename(tmp_path / "away")
    with pytest.raises(CorpusError, match="No such file"):
        build_index(corpus, "bm25", tmp_path / "index", options=QUIET)
    (tmp_path / "away").rename(corpus)
    told: list[str] = []
    build_index(corpus, "bm25", tmp_path / "index", options=BuildOptions(line=told.append))
    assert any("400 passages are there" in line for line in told)
    assert not any("indexing" in line for line in told)


def interrupted(*arguments) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_is_told_in_one_sentence(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("retriever_server.building.build.file_records", interrupted)
    assert main(["build", "--corpus", str(corpus), "--encoder", "bm25", "--out", str(tmp_path / "index")]) == 130
    last = "retriever: The build was interrupted; the same command goes on from here."
    assert capsys.readouterr().err.splitlines()[-1] == last


def test_a_corpus_whose_name_is_not_utf8_is_indexed(corpus, tmp_path):
    named = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    corpus.rename(named)
    assert build_index(named, "bm25", tmp_path / "index", options=QUIET).corpus == "caf\ufffd.jsonl"
    assert open_index(tmp_path / "index")[1].corpus == "caf\ufffd.jsonl"


@pytest.mark.parametrize("kind", ["hnsw", "ivf_flat", "flat"])
def test_a_full_disk_is_told_in_one_sentence(corpus, tmp_path, kind):
    # files of 1 MB at most, where 400 vectors of 1024 dimensions take 1.6
    shell = 'ulimit -f 1000 && exec "$@"'
    command = [sys.executable, "-m", "retriever_server", "build", "--corpus", str(corpus), "--encoder", "hashing",
               "--out", str(tmp_path / "index"), "--index", kind, "--chunk-rows", "100"]  # fmt: skip
    done = subprocess.run(["bash", "-c", shell, "-", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"retriever: The index {tmp_path / 'index'} cannot be written (")
    assert "Traceback" not in done.stderr
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "400 passages are there" in again.stderr


def test_canaries_that_fewer_lists_miss_are_told_as_that(corpus, tmp_path):
    options = BuildOptions(vectors=VectorSettings("ivf_flat", nlist=10, nprobe=10), line=lambda text: None)
    build_index(corpus, "hashing", tmp_path / "index", options=options)
    path = tmp_path / "index" / "manifest.json"
    sentence = r"self-retrieval canaries are missed with nprobe 1 where the index was built for 10; choose a larger"
    manifest = json.loads(path.read_text())
    assert open_index(tmp_path / "index", OpenOptions(nprobe=10))[1].count == 400
    manifest["canaries"][0]["id"] = "another"  # stands for a passage in a list that is not looked at
    path.write_text(json.dumps(manifest))
    with pytest.raises(IndexRefused, match=sentence):
        open_index(tmp_path / "index", OpenOptions(nprobe=1))
    with pytest.raises(IndexRefused, match="no longer belong together"):
        open_index(tmp_path / "index", OpenOptions(nprobe=10))


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "max"}, []),
        ({"memory.max": "1000", "memory.current": "900",
          "memory.stat": "anon 300\nactive_file 200\ninactive_file 350"}, [650]),
        ({"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "900",
          "memory.stat": "cache 1\nactive_file 1\ntotal_active_file 200\ntotal_inactive_file 350"}, [650]),
        ({"memory.max": "1000", "memory.current": "1100"}, [0]),
    ],
)  # fmt: skip
def test_pages_of_files_do_not_count_as_taken_memory(tmp_path, files, free):
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert group_ram(tmp_path) == free
