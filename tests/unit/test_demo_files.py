"""What the demo believes unchanged: never half-written, damaged or foreign files, nor those of other code."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from retriever_server.backends.bm25 import BM25Settings
from retriever_server.index import build_index as build_server_index
from retriever_server.index import open_index
from verl_agentic.demo import cold_start, fingerprint, prepare
from verl_agentic.demo.prepare import (
    DATA_CODE,
    DATA_FILES,
    PrepareConfig,
    prepare_cold_start,
    prepare_data,
    write_world,
)
from verl_agentic.demo.run import build_index
from verl_agentic.demo.splits import SplitSizes
from verl_agentic.demo.world import generate_world

SMALL = SplitSizes(train=20, val=10, test=10, long_train=5, long_test=5, shared_train=5, shared_test=5)
SHORT = cold_start.ColdStartConfig(steps=2, batch=4)


def config(folder, seed=0, **more):
    return PrepareConfig(out=folder, seed=seed, splits=SMALL, **more)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def prepared(folder, seed=0):
    lines = []
    prepare_data(config(folder, seed), lines.append)
    return lines


def test_every_file_that_prepare_data_writes_is_watched(tmp_path):
    prepared(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*DATA_FILES, "prepared.json"}
    assert prepared(tmp_path) == [f"world and questions: unchanged in {tmp_path}"]


@pytest.mark.parametrize("written", range(len(DATA_FILES) - 1))
def test_an_interrupted_preparation_is_never_believed(tmp_path, monkeypatch, written):
    prepared(tmp_path)
    expected, left = contents(tmp_path), iter(range(written - 1))
    real = prepare.write_split

    def interrupted(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "write_split", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path, seed=5)
    assert not (tmp_path / "prepared.json").exists()
    prepared(tmp_path)
    assert contents(tmp_path) == expected


@pytest.mark.parametrize("name", DATA_FILES)
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_a_missing_or_cut_file_is_written_again(tmp_path, name, damage):
    prepared(tmp_path)
    expected = contents(tmp_path)
    damage(tmp_path / name)
    assert "unchanged" not in prepared(tmp_path)[0]
    assert contents(tmp_path) == expected


def test_a_cut_stamp_is_written_again(tmp_path):
    prepared(tmp_path)
    (tmp_path / "prepared.json").write_text('{"seed')
    assert "unchanged" not in prepared(tmp_path)[0]
    assert "unchanged" in prepared(tmp_path)[0]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "cold_start.json"])
def test_a_damaged_copy_of_the_cold_start_is_copied_again(tmp_path, name):
    packaged = config(tmp_path, cold_start="packaged")
    target = prepare_cold_start(packaged, lambda line: None)
    expected = contents(target)
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])):
        damage(target / name)
        prepare_cold_start(packaged, lambda line: None)
        assert contents(target) == expected
    lines = []
    prepare_cold_start(packaged, lines.append)
    assert lines == [f"cold start: unchanged in {target}"]


def test_an_interrupted_copy_of_the_cold_start_leaves_no_target(tmp_path, monkeypatch):
    def half(source, target):
        target.mkdir(parents=True)
        shutil.copy(source / "cold_start.json", target)
        raise KeyboardInterrupt

    packaged = config(tmp_path, cold_start="packaged")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", half)
        with pytest.raises(KeyboardInterrupt):
            prepare_cold_start(packaged, lambda line: None)
    assert list((tmp_path / "cold_start").iterdir()) == []
    assert (prepare_cold_start(packaged, lambda line: None) / "model.safetensors").is_file()


def test_a_cached_cold_start_without_its_weights_is_trained_again(tmp_path):
    folder = cold_start.cached_cold_start(SHORT, tmp_path, lambda line: None)
    (folder / "model.safetensors").unlink()
    assert cold_start.cached_cold_start(SHORT, tmp_path, lambda line: None) == folder
    assert (folder / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_the_index_is_kept_only_for_its_own_whole_corpus(tmp_path):
    write_world(tmp_path, generate_world(0))
    index, lines = build_index(tmp_path, lambda line: None), []
    build_index(tmp_path, lines.append)
    assert lines == [f"index: unchanged in {index}"]
    first = (index / "manifest.json").read_bytes()

    write_world(tmp_path, generate_world(5))
    corpus, manifest = tmp_path / "corpus.jsonl", index / "manifest.json"
    later = corpus.stat().st_mtime + 60
    subprocess.run(["touch", "-d", f"@{later}", str(manifest)], check=True)  # newer than the corpus it is not of
    build_index(tmp_path, lines.append)
    assert "unchanged" not in lines[-1]
    second = manifest.read_bytes()
    assert second != first

    for name in ("passages.jsonl", "data.csc.index.npy"):
        damaged = next(path for path in index.iterdir() if path.name == name)
        damaged.unlink()
        build_index(tmp_path, lines.append)
        assert "unchanged" not in lines[-1]
        assert len(open_index(index)[0].passages) == 342
    assert manifest.read_bytes() == second


def test_an_index_of_other_settings_is_not_kept(tmp_path):
    write_world(tmp_path, generate_world(0))
    build_server_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index", bm25=BM25Settings("plain"))
    build_index(tmp_path, lambda line: None)
    assert open_index(tmp_path / "index")[1].settings["analyzer"] == "en"


LOADED = """
import sys
from pathlib import Path
{imports}
names = [name for name in sys.modules if name.split(".")[0] in ("verl_agentic", "retriever_server")]
print(*(sys.modules[name].__file__ for name in names if "." in name))
"""
TRAINING = """
from verl_agentic.demo.cold_start import COLD_START_KINDS, build_policy
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import trace_source
trace_source("search_r1", WordCodec(build_tokenizer()), COLD_START_KINDS)
"""
DATA = """
import verl_agentic.data.corpus, verl_agentic.data.rows, verl_agentic.demo.splits, verl_agentic.demo.world
"""
BARE = ("bridge", "core", "data", "demo")
STORING = ("verl_agentic/data/files.py", "verl_agentic/demo/fingerprint.py")  # they move bytes, and make none
# Of the server; what a cold start is made from comes from no file.
FILE_FORMATS = ("errors", "corpus", "records", "encoders/folders")
UNHASHED = {
    *(f"verl_agentic/{name}/__init__.py" for name in BARE),
    *(f"retriever_server/{name}/__init__.py" for name in ("backends", "encoders")),
    *(f"retriever_server/{name}.py" for name in FILE_FORMATS),
}
MEASURING = ("verl_agentic/demo/evaluate.py", "verl_agentic/demo/splits.py")  # for the record, not the weights


def loaded(imports):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(imports=imports)], capture_output=True, text=True, check=True
    )
    return {str(Path(name).relative_to(fingerprint.ROOT)) for name in done.stdout.split()} - UNHASHED


def hashed(patterns):
    return {str(path.relative_to(fingerprint.ROOT)) for path in fingerprint.source_files(patterns)}


def test_the_key_of_a_cold_start_covers_the_code_that_makes_its_episodes():
    covered = hashed(cold_start.code_of("search_r1"))
    assert loaded(TRAINING) - {*MEASURING, *STORING} <= covered
    assert {
        "verl_agentic/bridge/turn_engine.py",
        "verl_agentic/core/grammar.py",
        "verl_agentic/methods/search_r1/prompts/demo/user.txt",
        "retriever_server/backends/bm25.py",
        "retriever_server/text.py",
    } <= covered
    assert not [name for name in covered if "prompts/natural" in name or "demo/run.py" in name]


def test_the_stamp_of_the_data_covers_the_code_that_makes_them():
    covered = hashed(DATA_CODE)
    assert loaded(DATA) <= covered
    assert {"verl_agentic/data/rows.py", "verl_agentic/core/question.py", "verl_agentic/demo/prepare.py"} <= covered


def test_the_hash_changes_with_any_covered_file_and_with_no_other(tmp_path, monkeypatch):
    shutil.copytree(fingerprint.ROOT / "verl_agentic", tmp_path / "verl_agentic")
    shutil.copytree(fingerprint.ROOT / "retriever_server", tmp_path / "retriever_server")
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    keys = {SHORT.key()}
    files = fingerprint.source_files(cold_start.code_of("search_r1"))
    for path in files:
        path.write_bytes(path.read_bytes() + b"\n")
        keys.add(SHORT.key())
    assert len(keys) == len(files) + 1
    for name in ("demo/run.py", "cpu/engine.py", "methods/search_r1/prompts/natural/user.txt"):
        path = tmp_path / "verl_agentic" / name
        path.write_bytes(path.read_bytes() + b"\n")
    assert SHORT.key() in keys


def test_a_pattern_that_names_no_file_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"no source file matches verl_agentic/demo/wrld\.py"):
        fingerprint.source_files(["verl_agentic/demo/wrld.py"])


def test_the_packaged_cold_start_needs_no_training(tmp_path):
    lines = []
    folder = prepare_cold_start(replace(config(tmp_path), cold_start="packaged"), lines.append)
    assert contents(folder) == contents(prepare.packaged_cold_start("search_r1"))
    assert not (tmp_path / "cache").exists()
