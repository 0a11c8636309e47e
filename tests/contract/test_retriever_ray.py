"""The index on Ray: two replicas, and two shards, answer over HTTP exactly as one local server does."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from retriever_server.index import BuildOptions, build_index
from retriever_server.process import start_server
from verl_agentic.clients.retriever import RetrieverClient

pytest.importorskip("ray.serve", reason="needs the extra `ray`", exc_type=ImportError)

ROOT = Path(__file__).resolve().parents[2]
ON_RAY = ("--engine", "ray", "--threads", "1")


@pytest.fixture(autouse=True)
def own_cluster(monkeypatch):
    """Whatever runs on this machine beside the tests."""
    monkeypatch.setenv("RAY_ADDRESS", "local")


@pytest.fixture(scope="module")
def words() -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices("abcdefghijklmnopqrst", k=draw.randint(3, 9))) for _ in range(400)]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory, words) -> Path:
    """The same 600 passages as one file of vectors, as two shards, and as BM25."""
    folder = tmp_path_factory.mktemp("ray")
    draw = random.Random(6)
    rows = [{"id": f"p{row}", "contents": f'"T{row}"\n{" ".join(draw.choices(words, k=25))}'} for row in range(600)]
    rows += [{"id": f"twin{row}", "contents": rows[row]["contents"]} for row in range(0, 600, 40)]  # equal scores
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    quiet = BuildOptions(line=lambda text: None)
    build_index(folder / "corpus.jsonl", "hashing", folder / "one", options=quiet)
    build_index(
        folder / "corpus.jsonl", "bm25+hashing", folder / "hybrid", options=BuildOptions(line=quiet.line, shards=2)
    )
    build_index(folder / "corpus.jsonl", "hashing", folder / "two", options=BuildOptions(line=quiet.line, shards=2))
    return folder


@pytest.fixture(scope="module")
def queries(words) -> list[str]:
    draw = random.Random(7)
    return ["", "  ", "\x00", *(" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(297))]


def answers(url: str, queries: list[str], topk: int) -> list[list[tuple[str, float, str]]]:
    """Id, score and contents of every hit, asked 16 at a time so that batches differ from server to server."""

    async def ask_all():
        client, limit = RetrieverClient(url, topk=topk), asyncio.Semaphore(16)

        async def ask(query):
            async with limit:
                return (await client.retrieve([query]))[0]

        try:
            return await asyncio.gather(*[ask(query) for query in queries])
        finally:
            await client.aclose()

    return [[(passage.id, passage.score, passage.contents) for passage in found] for found in asyncio.run(ask_all())]


@pytest.fixture(scope="module")
def expected(indexes, queries) -> dict[int, list]:
    with start_server(indexes / "one") as server:
        found = {topk: answers(server.url, queries, topk) for topk in (1, 10, 100)}
    assert sum(bool(hits) for hits in found[10]) >= 297
    return found


def children(process: subprocess.Popen) -> set[int]:
    """Ids of the processes below one."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    found, before = {process.pid}, 0
    while len(found) > before:
        before = len(found)
        found |= {int(row[0]) for row in rows if int(row[1]) in found}
    return found - {process.pid}


def replicas(process: subprocess.Popen) -> list[int]:
    """Ids of the replica processes."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    below = children(process)
    rows = [line.split(None, 1) for line in listed.splitlines()[1:]]
    return [int(pid) for pid, args in rows if int(pid) in below and args.startswith("ray::ServeReplica")]


@pytest.mark.slow
def test_two_replicas_answer_as_one_local_server_also_while_one_dies(indexes, queries, expected):
    with start_server(indexes / "one", options=(*ON_RAY, "--replicas", "2", "--cache-mb", "0")) as server:
        before = replicas(server.process)
        assert len(before) == 2
        for topk, hits in expected.items():
            assert answers(server.url, queries, topk) == hits
        killing = threading.Timer(0.3, os.kill, (before[0], signal.SIGKILL))
        killing.start()
        while killing.is_alive():
            assert answers(server.url, queries, 10) == expected[10]
        wait_until(lambda: len(set(replicas(server.process)) - set(before)) == 1, "the dead replica is replaced")
        assert answers(server.url, queries, 10) == expected[10]
        embedded = RetrieverClient(server.url).embed_sync(["one text", "one text"])
        assert embedded.shape == (2, 1024)
        assert (embedded[0] == embedded[1]).all()
        started = children(server.process)
        server.process.terminate()
        assert server.process.wait(60) == 0
    left = [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert not left, "the cluster that the server started has ended with it"


@pytest.mark.slow
def test_two_shards_answer_as_one_local_server(indexes, queries, expected):
    with start_server(indexes / "two", options=(*ON_RAY, "--cache-mb", "0")) as server:
        before = replicas(server.process)
        assert len(before) == 2
        for topk, hits in expected.items():
            assert answers(server.url, queries, topk) == hits
        os.kill(before[1], signal.SIGKILL)
        assert answers(server.url, queries, 10) == expected[10], "the shard's replacement answers"


@pytest.mark.slow
def test_a_hybrid_index_with_shards_on_a_cluster_that_is_joined_and_goes_on(indexes, queries, monkeypatch):
    with start_server(indexes / "hybrid") as server:
        expected = answers(server.url, queries, 10)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with running_cluster() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with start_server(indexes / "hybrid", options=ON_RAY) as server:
            assert answers(server.url, queries, 10) == expected
            os.kill(server.process.pid, signal.SIGHUP)
            wait_until(lambda: generation(server.url) == 2, "the index is opened again")
            assert answers(server.url, queries, 10) == expected
            wait_until(lambda: len(applications(address)) == 2, "the deployments of before are deleted")
        assert applications(address) == [], "the server's deployments are deleted, the cluster answers"
        too_many = serve(indexes / "one", "--replicas", "9")
        assert too_many.returncode == 2
        assert too_many.stderr.splitlines()[-1] == (
            "retriever: The Ray cluster has 4 free CPU slots and 9 are needed; lower --replicas or --threads, or add "
            "nodes."
        )


@contextmanager
def running_cluster() -> Iterator[str]:
    """A Ray cluster of four slots, as others would have started it; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}", "--num-cpus=4"]
    # a short folder: sockets lie in it
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, open(Path(folder) / "log", "w") as log:
        options = ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
        cluster = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        try:
            wait_until(lambda: "ray stop" in (Path(folder) / "log").read_text(), "the cluster has started")
            yield f"127.0.0.1:{port}"
        finally:
            cluster.terminate()
            cluster.wait(60)


def applications(address: str) -> list[str]:
    """Names of the Ray Serve applications on a cluster."""
    script = (
        f"import ray; from ray import serve; ray.init({address!r}, log_to_driver=False); "
        "print(*sorted(serve.status().applications))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def generation(url: str) -> int:
    """How many times the server has opened its index."""
    return httpx.get(f"{url}/info", trust_env=False).json()["generation"]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.slow
def test_a_refusal_of_a_replica_is_the_servers_one_sentence(indexes):
    done = serve(indexes / "one", "--use", "dense", "--nprobe", "4")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "retriever: An index of kind 'flat' has no nprobe; that is for ivf_flat and ivf_pq."
    )


def test_a_cluster_that_is_named_and_not_there_is_one_sentence(indexes, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    done = serve(indexes / "one")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "retriever: No Ray cluster can be joined at RAY_ADDRESS=127.0.0.1:9; start one with `ray start --head`, set "
        "RAY_AUTH_MODE as it was set there, or unset RAY_ADDRESS for a local one."
    )


def test_without_ray_the_sentence_names_the_extra(indexes):
    script = (
        "import sys; sys.modules['ray'] = None; from retriever_server.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = serve(indexes / "one", python=("-c", script))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "retriever: `--engine ray` needs the package 'ray'; run `pip install 'verl-agentic[ray]'`."
    )


def serve(
    index: Path, *options: str, python: tuple[str, ...] = ("-m", "retriever_server")
) -> subprocess.CompletedProcess:
    """Run `serve --engine ray`, which is to refuse."""
    command = [sys.executable, *python, "serve", "--index", str(index), "--port", "0", *ON_RAY, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
