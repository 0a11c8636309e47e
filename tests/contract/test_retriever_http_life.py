"""The life of a server process: opening, flood (P34), deadline, drain, fork (P33)."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from http_servers import await_metric, await_that, metrics

from retriever_server.index import build_index

ROOT = Path(__file__).resolve().parents[2]

# A server whose searches wait for SIGUSR1; the index behind them is real.
GATED_SERVER = """
import signal, sys, threading, time
from retriever_server.app import ServerSettings, app_of
from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage
from retriever_server.service import Service
from retriever_server.serving import claim_port, serve, url_of

gate = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: gate.set())

class Gated(BM25Backend):
    def search(self, queries, topk):
        gate.wait()
        return super().search(queries, topk)

def start():
    if "opening" in sys.argv:
        gate.wait()
    service.install(Gated.from_passages([Passage("a", "red fox"), Passage("b", "blue whale")]))
    return "ready"

claimed = claim_port("127.0.0.1", 0)
settings = ServerSettings(max_pending=4, drain_timeout_s=float(sys.argv[1]))
service = Service(settings)
print(url_of(claimed), flush=True)
serve(app_of(service), claimed, settings, start)
"""


@contextmanager
def gated_server(*arguments: str) -> Iterator[tuple[str, subprocess.Popen]]:
    process = subprocess.Popen(
        [sys.executable, "-c", GATED_SERVER, *(arguments or ("30",))], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        await_that(lambda: listens(url), "listening")
        yield url, process
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def http():
    limits = httpx.Limits(max_connections=300)
    with httpx.Client(trust_env=False, timeout=30, limits=limits) as client:
        yield client


@pytest.fixture
def threads():
    with ThreadPoolExecutor(64) as pool:
        yield pool


def ask(http: httpx.Client, url: str, query: str = "red", **headers: str) -> httpx.Response:
    return http.post(f"{url}/retrieve", json={"query": query}, headers=headers)


def listens(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) == 0


def await_ready(http: httpx.Client, url: str) -> None:
    await_that(lambda: http.get(f"{url}/ready").status_code == 200, "ready")


def test_while_the_index_is_being_opened_the_server_is_alive_but_not_ready(http):
    with gated_server("30", "opening") as (url, process):
        assert http.get(f"{url}/health").json() == {"status": "ok"}
        for answer in (http.get(f"{url}/ready"), http.get(f"{url}/info"), ask(http, url)):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert answer.json()["error"].startswith("The index is being opened (")
        assert metrics(http, url)["retriever_ready"] == 0
        process.send_signal(signal.SIGUSR1)
        await_ready(http, url)
        assert ask(http, url).json()["result"][0][0]["id"] == "a"


def test_a_server_told_to_stop_while_it_opens_ends_at_once(http):
    with gated_server("30", "opening") as (url, process):
        assert http.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_p34_a_flood_is_refused_at_once_while_the_searches_under_way_stand_still(http, threads):
    with gated_server() as (url, process):
        await_ready(http, url)
        first = [threads.submit(ask, http, url, f"red {number}") for number in range(4)]
        await_metric(http, url, "retriever_waiting_requests", 4)
        # no search ends before the signal below, so each of these answers was given without waiting for one
        refused = list(threads.map(lambda number: ask(http, url, f"blue {number}"), range(200)))
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
        assert refused[0].json() == {"error": "4 requests are waiting already; try again in a moment."}
        assert http.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGUSR1)
        assert [future.result(30).status_code for future in first] == [200] * 4
        assert ask(http, url).status_code == 200
        assert metrics(http, url)["retriever_requests_total /retrieve 429"] == 200


def test_a_passed_deadline_is_503_and_the_search_is_dropped(http, threads):
    with gated_server() as (url, process):
        await_ready(http, url)
        held = threads.submit(ask, http, url, "held")
        await_metric(http, url, "retriever_waiting_requests", 1)
        late = ask(http, url, "red", **{"X-Deadline-Ms": "20"})
        assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
        assert late.json() == {"error": "The deadline passed before the answer was found; try again in a moment."}
        process.send_signal(signal.SIGUSR1)
        assert held.result(30).status_code == 200
        await_metric(http, url, "retriever_dropped_total", 1)
        assert metrics(http, url)["retriever_batch_queries_sum"] == 1


def test_a_stopping_server_answers_what_is_under_way_and_refuses_the_rest(http, threads):
    with gated_server() as (url, process):
        await_ready(http, url)
        under_way = [threads.submit(ask, http, url, f"red {number}") for number in range(4)]
        await_metric(http, url, "retriever_waiting_requests", 4)
        process.send_signal(signal.SIGTERM)
        await_that(lambda: http.get(f"{url}/ready").status_code == 503, "draining")
        refused = ask(http, url)
        assert (refused.status_code, refused.headers["Connection"], refused.headers["Retry-After"]) == (
            503,
            "close",
            "1",
        )
        assert refused.json() == {"error": "This server is stopping; ask another one, or try again when it is back."}
        process.send_signal(signal.SIGUSR1)
        answers = [future.result(30) for future in under_way]
        assert [answer.json()["result"][0][0]["id"] for answer in answers] == ["a"] * 4
        assert process.wait(30) == 0


def test_the_drain_ends_when_its_time_is_over(http, threads):
    with gated_server("0.2") as (url, process):
        await_ready(http, url)
        lost = threads.submit(ask, http, url)
        await_metric(http, url, "retriever_waiting_requests", 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        with pytest.raises(httpx.TransportError):
            lost.result(30)


FORKED = """
import os, signal
from pathlib import Path
from retriever_server.app import create_app
from retriever_server.index import open_index

app = create_app(open_index(Path({index!r}))[0])
first = app.test_client().post("/retrieve", json={{"query": "red fox"}})
child = os.fork()
if child == 0:
    answer = app.test_client().post("/retrieve", json={{"query": "blue fox"}})
    print(first.status_code, answer.status_code, answer.json["error"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_p33_a_forked_server_refuses_instead_of_hanging(tmp_path):
    rows = [{"id": "a", "contents": "red fox"}, {"id": "b", "contents": "blue fox"}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(tmp_path / "corpus.jsonl", "hashing", tmp_path / "index")
    script = FORKED.format(index=str(tmp_path / "index"))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout == ("200 503 This process was forked from a server that had begun; start a server of its own.\n")
