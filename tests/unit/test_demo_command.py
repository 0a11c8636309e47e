"""Faults that a user of the demo's command line meets: one sentence on stderr and exit status 2, never a traceback."""

import pytest

pytest.importorskip("transformers")

import shutil

from verl_agentic.data.rows import make_row, write_rows
from verl_agentic.demo import run
from verl_agentic.demo.__main__ import main
from verl_agentic.demo.prepare import packaged_cold_start, write_world
from verl_agentic.demo.world import generate_world

PACKAGED = packaged_cold_start("search_r1")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_world(folder, generate_world(0))
    write_rows(folder / "test.parquet", [make_row("Where ?", ["Y"], index=0, split="test", data_source="demo")])
    return folder


def fails(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("verl_agentic.demo: ")
    assert error.count("\n") == 1
    return error


def evaluate(capsys, checkpoint, data):
    return fails(capsys, "evaluate", "--checkpoint", checkpoint, "--data", data, "--splits", "test")


def checkpoint_without(folder, *names):
    shutil.copytree(PACKAGED, folder)
    for name in names:
        (folder / name).unlink()
    return folder


def test_missing_or_partial_checkpoint(tmp_path, data, capsys):
    assert "is no Hugging Face folder (config.json is missing)" in evaluate(capsys, tmp_path / "none", data)
    bare = checkpoint_without(tmp_path / "bare", "model.safetensors")
    assert "holds no weights" in (error := evaluate(capsys, bare, data))
    assert "hf_model" in error
    cut = checkpoint_without(tmp_path / "cut")
    (cut / "model.safetensors").write_bytes(b"cut short")
    assert f"{cut} cannot be loaded" in evaluate(capsys, cut, data)
    wordless = checkpoint_without(tmp_path / "wordless", "tokenizer.json", "tokenizer_config.json")
    assert f"{wordless} cannot be loaded" in evaluate(capsys, wordless, data)


def test_missing_or_broken_corpus_and_questions(tmp_path, data, capsys):
    assert "none/test.parquet does not exist" in evaluate(capsys, PACKAGED, tmp_path / "none")
    (data / "corpus.jsonl").write_text("no json\n")
    assert "corpus.jsonl line 1 is not a JSON object" in evaluate(capsys, PACKAGED, data)
    (data / "corpus.jsonl").unlink()
    assert "corpus.jsonl cannot be read" in evaluate(capsys, PACKAGED, data)


def test_rows_of_other_software_can_be_evaluated_on(data, capsys):
    row = make_row("Where ?", ["Y"], index=0, split="test", data_source="demo")
    del row["extra_info"]["kind"]
    write_rows(data / "test.parquet", [row])
    assert main(["evaluate", "--checkpoint", str(PACKAGED), "--data", str(data), "--splits", "test"]) == 0
    assert "qa" in capsys.readouterr().out
    del row["extra_info"]["question"]
    write_rows(data / "test.parquet", [row])
    assert "a data row has no question" in evaluate(capsys, PACKAGED, data)


@pytest.mark.parametrize("command", [["prepare", "--cold-start", "packaged"], ["cold-start", "--steps", "1"]])
def test_folder_that_cannot_be_made(tmp_path, capsys, command):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "nope"
    assert f"{out} cannot be used: Not a directory" in fails(capsys, *command, "--out", out)


def test_names_that_run_out(tmp_path, capsys):
    assert "distractor_share=1.0" in fails(capsys, "prepare", "--out", tmp_path, "--distractor-share", "1")


def test_retriever_that_does_not_start(tmp_path, capsys, monkeypatch):
    """The real server, given a folder without an index."""
    monkeypatch.setattr(run, "prepare", lambda config, line: None)
    monkeypatch.setattr(run, "build_index", lambda out, line: tmp_path / "none")
    assert "The retriever ended with status" in fails(capsys, "run", "--out", tmp_path)
