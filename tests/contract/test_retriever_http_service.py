"""A server in service: reload under load, metrics, logs, and the options that are refused."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from http_servers import await_metric, await_that, metrics

from retriever_server.index import build_index
from retriever_server.load import run_load
from retriever_server.process import start_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def http():
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def ask(http: httpx.Client, url: str, query: str = "red", **headers: str) -> httpx.Response:
    return http.post(f"{url}/retrieve", json={"query": query}, headers=headers)


def write_index(folder: Path, name: str, force: bool = False) -> Path:
    rows = [
        {"id": f"{name}{number}", "contents": f"{kind} fox number {number}"}
        for number, kind in enumerate(["red", "blue"])
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    build_index(folder / "corpus.jsonl", "bm25", folder / "index", force=force)
    return folder / "index"


def generation(http: httpx.Client, url: str) -> int:
    return http.get(f"{url}/info").json()["generation"]


def test_a_reload_under_load_fails_no_request_and_gives_the_new_answers(http, tmp_path):
    index, stop, seen = write_index(tmp_path, "old"), threading.Event(), []

    def queries() -> Iterator[str]:
        while not stop.is_set():
            yield from ("red fox", "blue fox", f"red {len(seen)}")

    def check(position: int, answer: dict) -> str:
        names = [document["document"]["id"] for document in answer["result"][0]]
        seen.append(names[0][:3])
        return "" if len({name[:3] for name in names}) == 1 else "mixed"

    with start_server(index) as server, ThreadPoolExecutor(1) as threads:
        load = threads.submit(run_load, server.url, queries(), 8, check=check)
        for turn in range(1, 4):
            await_that(lambda: len(seen) >= 100, "answers")
            write_index(tmp_path, ("old", "new")[turn % 2], force=True)
            server.process.send_signal(signal.SIGHUP)
            await_that(lambda turn=turn: generation(http, server.url) == turn + 1, "reloaded")
        after = len(seen) + 20
        await_that(lambda: len(seen) >= after, "answers of the new index")
        stop.set()
        report = load.result(60)
        counted = metrics(http, server.url)
    assert (dict(report.errors), set(seen)) == ({}, {"old", "new"})
    assert set(seen[after - 10 :]) == {"new"}
    assert (counted["retriever_reloads_total done"], counted["retriever_index_generation"]) == (3, 4)
    assert counted["retriever_canary_checks_total held"] == 4


def test_a_refused_reload_keeps_the_index_before_and_says_why(http, tmp_path):
    index = write_index(tmp_path, "old")
    with start_server(index) as server:
        (index / "manifest.json").write_text("{")
        server.process.send_signal(signal.SIGHUP)
        await_metric(http, server.url, "retriever_reloads_total refused", 1)
        assert ask(http, server.url, "red").json()["result"][0][0]["id"] == "old0"
        assert generation(http, server.url) == 1
        assert http.get(f"{server.url}/ready").status_code == 200
        lines = server.log_path.read_text().splitlines()
    logged = json.loads(lines[-1])
    assert (len(lines), logged["level"]) == (1, "error")
    assert logged["message"].startswith("reload refused, the index before is still served: ")
    assert "manifest.json" in logged["message"]


def test_metrics_count_what_happened(http, tmp_path):
    with start_server(write_index(tmp_path, "old")) as server:
        ask(http, server.url, "red fox")
        again = ask(http, server.url, " red  fox")
        http.post(f"{server.url}/queries", json={"queries": ["blue", "red fox"], "k": 3})
        http.post(f"{server.url}/retrieve", content=b"{")
        http.get(f"{server.url}/nothing")
        counted = metrics(http, server.url)
    assert again.headers["X-Cache-Hits"] == "1"
    expected = {
        "retriever_requests_total /retrieve 200": 2,
        "retriever_requests_total /retrieve 400": 1,
        "retriever_requests_total /queries 200": 1,
        "retriever_requests_total none 404": 1,
        "retriever_request_seconds_count /retrieve": 3,
        "retriever_cache_hits_total": 2,
        "retriever_cache_misses_total": 2,
        "retriever_cache_entries": 2,
        "retriever_batch_queries_count": 2,
        "retriever_batch_queries_sum": 2,
        "retriever_search_seconds_count": 2,
        "retriever_queue_queries": 0,
        "retriever_waiting_requests": 0,
        "retriever_canary_checks_total held": 1,
        "retriever_index_generation": 1,
        "retriever_index_passages": 2,
        "retriever_ready": 1,
    }
    assert {name: counted.get(name) for name in expected} == expected
    assert counted["process_resident_memory_bytes"] > 2**20


def test_the_log_is_one_json_object_a_request_and_never_shows_a_query(http, tmp_path):
    options = ("--log-level", "info", "--threads", "1", "--executors", "3")
    with start_server(write_index(tmp_path, "old"), options=options) as server:
        ask(http, server.url, "secret fox", **{"X-Request-Id": "step-1"})
        ask(http, server.url, "secret fox")
        http.post(f"{server.url}/retrieve", json={"query": 3, "secret": 1}, headers={"X-Request-Id": "step-2"})
        await_that(lambda: server.log_path.read_text().count('"request"') >= 6, "log lines")
        text = server.log_path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert "secret" not in text
    assert [line["message"] for line in lines] == ["opening", "ready", "request", "request", "request"]
    assert (lines[1]["passages"], lines[1]["threads"]) == (2, {"http": 264, "executors": 3, "search": 1})
    first, second, refused = lines[2:]
    assert (first["request"], first["route"], first["status"], first["queries"]) == ("step-1", "/retrieve", 200, 1)
    assert (first["cache_hits"], second["cache_hits"]) == (0, 1)
    assert (refused["request"], refused["status"], refused["level"]) == ("step-2", 400, "info")
    assert first["ms"] > 0


def serve_refused(index: Path, *options: str) -> str:
    command = [sys.executable, "-m", "retriever_server", "serve", "--index", str(index), "--port", "0", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr.splitlines()[-1]


def test_a_refused_index_ends_the_process_with_one_sentence(tmp_path):
    index = write_index(tmp_path, "old")
    (index / "manifest.json").write_text("{")
    assert serve_refused(index).startswith(f"retriever: {index / 'manifest.json'} is damaged")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--replicas", "2"), "--replicas needs --engine ray."),
        (("--max-batch", "1", "--window-ms", "3"), "--window-ms waits for more queries, but --max-batch is 1."),
        (("--rerank-depth", "5"), "--rerank-depth needs --reranker."),
        (("--use", "bm25", "--rrf-k", "10"), "--use bm25 serves one part, so there is nothing to fuse."),
        (("--fusion", "weighted", "--rrf-k", "10"), "--rrf-k belongs to --fusion rrf."),
        (
            ("--engine", "ray", "--replicas", "2", "--executors", "2"),
            "--executors is for one copy of the index; --replicas are searched at once.",
        ),
        (
            ("--max-pending", "60000"),
            "--max-pending and --executors each hold as many threads; at most 10000 are allowed.",
        ),
        (("--max-queued", "3"), "--max-queued must be at least --max-batch, or no batch ever fills."),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path, options, sentence):
    assert serve_refused(tmp_path / "none", *options) == f"retriever: {sentence}"


def test_listening_beyond_this_machine_is_warned_of(tmp_path, http):
    with start_server(write_index(tmp_path, "old"), options=("--host", "0.0.0.0")) as server:
        assert server.log_path.read_text() == (
            "retriever: warning: 0.0.0.0 is not this machine alone; whoever reaches the port can search, for there is "
            "no password and no encryption.\n"
        )
