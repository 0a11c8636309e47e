"""Each example runs as its own text says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retriever_server.index import build_index
from retriever_server.process import start_server

ROOT = Path(__file__).resolve().parents[2]


def run(*command, timeout=300, **environment):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


def test_01_turn_engine_by_hand():
    done = run("examples/01_turn_engine_by_hand.py")
    assert done.returncode == 0, done.stderr
    assert "prompt: <|im_start|> user Where was" in done.stdout
    assert "     </answer>     1     1.0\n" in done.stdout
    assert "\n</information>     0        \n" in done.stdout
    assert "outcome: ok" in done.stdout


def test_02_own_corpus(tmp_path):
    done = run("examples/02_own_corpus.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Harbour clock: The harbour clock of Vellin was built by the watchmaker Ada Torn" in done.stdout
    assert f"2 rows in {tmp_path / 'train.parquet'}" in done.stdout


def test_04_stock_client(tmp_path):
    rows = [
        {"id": "1", "title": "Harbour clock", "text": "The harbour clock was built by Ada Torn."},
        {"id": "2", "title": "Belm", "text": "Belm is a river."},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index")
    with start_server(tmp_path / "index") as server:
        done = run("examples/04_stock_client.py", server.url, "who built the clock", "river Belm", "nothing like it")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "<search> who built the clock </search>\n<information>\n"
        "Doc 1 (Title: Harbour clock) The harbour clock was built by Ada Torn.\n</information>\n"
        "<search> river Belm </search>\n<information>\nDoc 1 (Title: Belm) Belm is a river.\n</information>\n"
        "<search> nothing like it </search>\n<information>\n\n</information>\n"
    )


@pytest.mark.timeout(900)
def test_03_custom_method(demo_files, retriever_url):
    done = run(
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir=examples/03_custom_method",
        "+recipe=frugal_cpu",
        f"agentic.demo_dir={demo_files}",
        f"agentic.retriever.urls=[{retriever_url}]",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        timeout=800,
        PYTHONPATH=os.pathsep.join([str(ROOT / "examples" / "03_custom_method"), os.environ.get("PYTHONPATH", "")]),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "step:2 - " in done.stdout
    assert "agentic/net:" in done.stdout
    assert "agentic/duplicate_queries:" in done.stdout
