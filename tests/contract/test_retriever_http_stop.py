"""Stopping, storms of reloads, and what clients may do to a server: go away, send slowly, hold connections."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from retriever_server.index import build_index
from retriever_server.process import start_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stop")
    rows = [{"id": f"p{row}", "contents": f"red fox number {row} {'x' * 900}"} for row in range(50)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / "corpus.jsonl", "bm25", folder / "index")
    return folder / "index"


@pytest.fixture(scope="module")
def http():
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def request(body: dict) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)


def ask_until_refused(url: str, name: int, answered: threading.Semaphore) -> list[str]:
    """Ask again and again; returns the statuses, and how it ended."""
    statuses = ["200"]
    with httpx.Client(trust_env=False, timeout=30) as client:
        while statuses[-1] == "200":
            try:
                answer = client.post(f"{url}/retrieve", json={"query": f"red {name} {len(statuses)}"})
                statuses.append(str(answer.status_code))
            except httpx.ConnectError:
                statuses.append("no server")
            answered.release()
    return statuses


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_64_clients_of_a_server_that_is_stopped_have_every_request_answered(index, signal_number):
    answered = threading.Semaphore(0)
    with start_server(index) as server, ThreadPoolExecutor(64) as threads:
        clients = [threads.submit(ask_until_refused, server.url, name, answered) for name in range(64)]
        for _ in range(200):
            assert answered.acquire(timeout=30)
        server.process.send_signal(signal_number)
        assert server.process.wait(30) == 0
        # a connection that was lost would have raised here
        counted = Counter(status for client in clients for status in client.result(30))
        assert server.log_path.read_text() == ""
    assert counted["503"] + counted["no server"] == 64
    assert set(counted) <= {"200", "503", "no server"}


def test_a_second_signal_ends_a_server_whose_client_takes_no_answer(index):
    with start_server(index) as server, connect(server.url) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(request({"queries": ["red fox"] * 512, "topk": 100}))  # an answer of 25 MB
        assert stuck.recv(1)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 1


def test_a_client_that_sends_byte_by_byte_does_not_keep_a_server_from_stopping(index):
    with start_server(index) as server, connect(server.url) as slow:
        ended = threading.Event()

        def drip() -> None:
            for byte in itertools.cycle(b"X-Slow: x\r\n"):
                if ended.wait(0.02):
                    return
                try:
                    slow.sendall(bytes([byte]))
                except OSError:
                    return

        slow.sendall(b"POST /retrieve HTTP/1.1\r\n")
        dripping = threading.Thread(target=drip)
        dripping.start()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        ended.set()
        dripping.join()


def test_a_storm_of_reloads_is_gathered_and_a_stopping_server_ignores_it(index, http):
    with start_server(index) as server:
        for _ in range(500):
            server.process.send_signal(signal.SIGHUP)
            assert http.post(f"{server.url}/retrieve", json={"query": "red"}).status_code == 200
        threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
        assert threads < 280, "264 for HTTP, the others are few: reloads do not pile up"
        server.process.send_signal(signal.SIGHUP)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(30) == 0
        assert server.log_path.read_text() == ""


def test_clients_that_go_away_or_send_half_a_request_harm_nobody(index, http):
    with start_server(index) as server:
        whole = request({"queries": ["red", "blue"]})
        halves = [connect(server.url) for _ in range(30)]
        for number, half in enumerate(halves):
            half.sendall(whole[: 5 * number + 1] if 5 * number + 1 < len(whole) else whole[:-1])
        for number in range(100):
            with connect(server.url) as gone:
                gone.sendall(whole if number % 2 else whole[:-10])
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes by a reset
        assert (
            http.post(f"{server.url}/retrieve", json={"query": "red", "topk": 1}).json()["result"][0][0]["id"] == "p0"
        )
        for half in halves:
            half.close()
        assert http.get(f"{server.url}/health").status_code == 200
        assert server.log_path.read_text() == ""


def test_pipelined_requests_are_answered_in_order(index):
    with start_server(index) as server, connect(server.url) as pipe:
        pipe.sendall(b"".join(request({"query": f"number {row}", "topk": 1}) for row in range(10, 30)))
        received = b""
        while received.count(b'"result"') < 20:
            received += pipe.recv(65536)
    assert re.findall(rb'"id":"(p\d+)"', received) == [b"p%d" % row for row in range(10, 30)]


def test_more_connections_than_descriptors_keep_nobody_from_being_answered(index, tmp_path):
    script = (
        f"ulimit -n 200; exec {sys.executable} -m retriever_server serve --index {index} --port 0 --log-level warning"
    )
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(["bash", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            url = process.stdout.readline().split("url=")[1].split()[0]
            with connect(url) as first:
                idle = [connect(url) for _ in range(300)]
                for _ in range(3):
                    first.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    received = b""
                    while b'{"status":"ok"}' not in received:
                        received += first.recv(4096)
                    assert received.startswith(b"HTTP/1.1 200")
                for connection in idle:
                    connection.close()
            assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0
    assert "exception" not in (tmp_path / "log").read_text()
