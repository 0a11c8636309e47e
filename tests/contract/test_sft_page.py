"""The commands of docs/sft.md, run as they stand, with smaller sizes."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("verl")

from verl_agentic.cli import main
from verl_agentic.demo.__main__ import main as demo

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sft.md"


def command(start):
    """The first line of the page that begins with `start`, as words."""
    return shlex.split(next(line for line in PAGE.read_text().splitlines() if line.startswith(start)))


@pytest.fixture
def folder(demo_files, tmp_path, monkeypatch):
    shutil.copytree(demo_files, tmp_path / "runs" / "demo")
    shutil.copy(demo_files / "train.parquet", tmp_path / "train.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_traces_and_training_on_them(folder, capsys):
    assert main([{"480": "24"}.get(word, word) for word in command("verl-agentic traces")[1:]]) == 0
    assert main([*command("verl-agentic sft")[1:], "--epochs", "1"]) == 0
    assert json.loads((folder / "runs/sft/policy/sft.json").read_text())["counts"]["sessions"] == 24
    assert demo([*command("python -m verl_agentic.demo evaluate")[3:], "--splits", "val"]) == 0
    assert "headline" in capsys.readouterr().out


def test_the_filter(folder, retriever_url):
    words = command("verl-agentic data filter")[1:]
    assert main([retriever_url if word.startswith("http") else word for word in words]) == 0
    report = json.loads((folder / "filtered.parquet.report.json").read_text())
    assert report["rows"] == 64
    assert report["counts"]["kept"] + report["counts"]["one_search"] == 64
    assert 0 < report["counts"]["one_search"] < 64
