"""The load generator and `bench` against real servers, among them one that answers wrongly."""

import itertools
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from retriever_server import load
from retriever_server.errors import RetrieverServerError
from retriever_server.index import build_index
from retriever_server.load import LoadReport, run_load
from retriever_server.process import start_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    rows = [{"id": "a", "contents": "red fox"}, {"id": "b", "contents": "blue whale"}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / "corpus.jsonl", "bm25", folder / "index")
    return folder / "index"


@pytest.fixture(scope="module")
def url(index):
    with start_server(index) as server:
        yield server.url


def test_every_query_is_asked_once_and_its_answer_checked(url):
    seen = []

    def check(position: int, answer: dict) -> str:
        seen.append((position, answer["result"][0][0]["document"]["id"]))
        return "" if position != 7 else "as it happens"

    report = run_load(url, itertools.islice(itertools.cycle(["red", "blue"]), 50), 4, check=check)
    assert sorted(seen) == [(position, "ab"[position % 2]) for position in range(50)]
    assert (len(report.latencies_ms), dict(report.errors)) == (49, {"as it happens": 1})
    assert 40 <= report.cache_hits <= 49
    assert 0 < report.percentile_ms(0.5) <= report.percentile_ms(0.99)
    assert report.rate > 0


def test_the_time_ends_an_endless_load(url):
    report = run_load(url, itertools.repeat("red"), 2, seconds=0.2)
    assert (report.seconds, dict(report.errors)) == (0.2, {})
    assert len(report.latencies_ms) > 2


class Wrong(BaseHTTPRequestHandler):
    """Answers one request in three with 500, one with another shape, and cuts the third off."""

    protocol_version = "HTTP/1.1"
    count = itertools.count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        turn = next(self.count) % 3
        if turn == 2:
            self.close_connection = True
            return
        body = b'{"error": "x"}' if turn == 0 else b'{"results": []}'
        self.send_response(500 if turn == 0 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def test_wrong_answers_and_lost_connections_are_counted_and_the_load_goes_on():
    with ThreadingHTTPServer(("127.0.0.1", 0), Wrong) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        report = run_load(f"http://127.0.0.1:{server.server_port}", iter(["x"] * 30), 1)
        server.shutdown()
    assert report.latencies_ms == []
    assert dict(report.errors) == {
        "status 500": 10,
        "shape: the response has no `result` key (found keys ['results'])": 10,
        "connection lost": 10,
    }


def test_a_server_that_never_answers_is_counted_and_given_up(monkeypatch):
    monkeypatch.setattr(load, "GIVE_UP_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        report = run_load(f"http://127.0.0.1:{silent.getsockname()[1]}", itertools.repeat("red"), 3, seconds=0.1)
    assert (report.latencies_ms, dict(report.errors)) == ([], {"no answer": 3})


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "https://127.0.0.1", "http://", "http://a:99999", "http://[::"])
def test_what_is_no_http_address_is_refused_in_one_sentence(url):
    with pytest.raises(RetrieverServerError, match=r"^'.*' is not an address like http://127\.0\.0\.1:8000\.$"):
        run_load(url, iter(["red"]), 1)


def test_a_name_that_nobody_has_is_no_refused_connection():
    report = run_load("http://nobody.invalid", iter(["red"]), 1)
    assert [kind.startswith("no connection (") for kind in report.errors] == [True]


def test_percentiles_are_by_nearest_rank():
    report = LoadReport(1, latencies_ms=[float(number) for number in range(100, 0, -1)], seconds=10.0)
    assert (report.percentile_ms(0.5), report.percentile_ms(0.99), report.rate) == (50.0, 99.0, 10.0)
    assert LoadReport(1).percentile_ms(0.5) == 0.0


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retriever_server", "bench", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_bench_prints_a_line_for_each_number_of_clients(index, url, tmp_path):
    (tmp_path / "queries.txt").write_text("red fox\n\nblue whale\n")
    asked = ("--url", url, "--queries", tmp_path / "queries.txt", "--clients", 1, 2)
    done = bench(*asked, "--seconds", 0.3, "--json", tmp_path / "figures.json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == "clients queries/s p50 ms p99 ms cached errors own CPU".split()
    assert [line.split()[0] for line in lines[1:]] == ["1", "2"]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [(level["clients"], level["errors"]) for level in figures] == [(1, {}), (2, {})]
    own = bench("--index", index, "--clients", 1, "--seconds", 0.3)
    assert (own.returncode, len(own.stdout.splitlines())) == (0, 2)


def test_bench_says_when_it_has_no_queries_and_fails_when_nobody_answers(tmp_path):
    refused = bench("--url", "http://127.0.0.1:9")
    assert (refused.returncode, refused.stderr) == (
        2,
        "retriever: bench needs --index DIR, or --url URL with --queries FILE.\n",
    )
    (tmp_path / "queries.txt").write_text("red\n")
    unanswered = bench(
        "--url", "http://127.0.0.1:9", "--queries", tmp_path / "queries.txt", "--clients", 1, "--seconds", 0.2
    )
    assert unanswered.returncode == 1
    assert "x connection refused" in unanswered.stdout
