"""Builds that end at every step at which they touch the disk, and are then run again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# builds in children that end without a word at their Nth change of the disk, then runs the same build whole
SCRIPT = """
import json, os, sys
from pathlib import Path
from retriever_server.building.build import BuildOptions
from retriever_server.encoders import EncoderRecord
from retriever_server.errors import IndexRefused
from retriever_server.index import build_index
from retriever_server.vectors.record import VectorSettings
import bm25s, faiss, retriever_server.backends.dense, retriever_server.building.assembly

base, stride, old = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "over an old index"
corpus, record, out = base / "corpus.jsonl", base / "hashing.json", base / "index"
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")

def build(out, encoder=f"bm25+{record}", force=False):
    vectors = VectorSettings("ivf_flat")
    options = BuildOptions(vectors=vectors, shards=2, chunk_rows=32, line=lambda text: None)
    build_index(corpus, encoder, out, force=force, options=options)

def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}

def in_child(step, out):
    child = os.fork()
    if child == 0:
        count = 0
        def watch(event, arguments):
            nonlocal count
            writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
            if event in CHANGES or writes:
                count += 1
                if count == step:
                    os._exit(9)
        sys.addaudithook(watch)
        try:
            build(out, force=old)
        except BaseException as error:
            print(f"step {step}: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert in_child(0, base / "whole") == 0
whole = content(base / "whole")
if old:
    build(base / "before", encoder="bm25")
    before = content(base / "before")
step, killed = 1, 0
while True:
    if old:
        build(out, encoder="bm25")
    status = in_child(step, out)
    if status == 0:
        break
    assert status == 9, status
    killed += 1
    if old and out.exists():
        assert content(out) in (before, whole), step
    if not old and out.exists():
        assert content(out) == whole, step
        in_child(0, base / "other")  # what is left beside a finished index harms nobody else
        for path in (base / "other").iterdir(): path.unlink()
        (base / "other").rmdir()
    if old or not out.exists():
        assert in_child(0, out) == 0, step
    assert content(out) == whole, step
    for path in out.iterdir(): path.unlink()
    out.rmdir()
    step += stride
print("killed", killed)
"""


def kill_at(tmp_path: Path, stride: int, over: str) -> int:
    rows = (f'{{"id": "p{row}", "contents": "thing{row * 13} of topic{row * 7}"}}\n' for row in range(100))
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    (tmp_path / "hashing.json").write_text('{"id": "hashing", "dimension": 32}')
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(stride), over]
    done = subprocess.run(
        command, cwd=ROOT, env={"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("over", ["nothing", "an old index"])
def test_a_build_that_ends_anywhere_goes_on_to_the_same_index(tmp_path, over):
    assert kill_at(tmp_path, 9, f"over {over}") >= 5


@pytest.mark.slow
@pytest.mark.parametrize("over", ["nothing", "an old index"])
def test_a_build_that_ends_at_each_change_goes_on_to_the_same_index(tmp_path, over):
    assert kill_at(tmp_path, 1, f"over {over}") >= 40
