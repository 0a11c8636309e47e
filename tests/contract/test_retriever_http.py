"""The retriever server as a real process over real HTTP: the wire, cases P43 and P47, start and stop."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage
from retriever_server.errors import RetrieverServerError
from retriever_server.index import build_index
from retriever_server.process import start_server
from verl_agentic.clients.retriever import RetrieverClient

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    Passage("a", '"Avar"\nAvar lies on the river Belm.'),
    Passage("b", '"Belm"\nBelm is a river that ends in lake Corv.'),
    Passage("c", '"Corv"\nCorv is the deepest lake.'),
    Passage("d", '"Dune"\nDune is a hill.'),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("retriever")
    lines = [json.dumps({"id": row.id, "contents": row.contents}) + "\n" for row in ROWS]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    build_index(folder / "corpus.jsonl", "bm25", folder / "bm25")
    build_index(folder / "corpus.jsonl", "hashing", folder / "hashing")
    return folder


@pytest.fixture(scope="module", params=["bm25", "hashing"])
def url(request, index):
    with start_server(index / request.param) as server:
        yield server.url


@pytest.fixture(scope="module")
def http():
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def post(http: httpx.Client, url: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return http.post(f"{url}/retrieve", content=content, headers={"Content-Type": "application/json"})


def test_the_wire_with_scores(http, url):
    answer = post(http, url, {"queries": ["river Belm", "hill"], "topk": 1, "return_scores": True})
    assert answer.status_code == 200
    result = answer.json()["result"]
    assert [[item["document"] for item in line] for line in result] == [
        [{"id": "b", "contents": ROWS[1].contents}] if result[0][0]["document"]["id"] == "b" else
        [{"id": "a", "contents": ROWS[0].contents}],
        [{"id": "d", "contents": ROWS[3].contents}],
    ]  # fmt: skip
    assert all(set(item) == {"document", "score"} and item["score"] > 0 for line in result for item in line)


def test_the_wire_without_scores_is_bare_documents(http, url):
    answer = post(http, url, {"query": "hill", "topk": 1})
    assert answer.json() == {"result": [[{"id": "d", "contents": ROWS[3].contents}]]}


def test_p27_topk_above_the_number_of_passages(http, url):
    result = post(http, url, {"queries": ["lake river hill"], "topk": 100}).json()["result"]
    assert sorted(document["id"] for document in result[0]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "body",
    [
        {"queries": ["x"], "topk": 0},
        {"queries": ["x"], "topk": -1},
        {"queries": ["x"], "topk": "3"},
        {"queries": ["x"], "topk": 10**9},
        {"queries": "x"},
        {"query": []},
        {"queries": []},
        {"queries": ["x"] * 513},
        {"queries": ["x"], "topK": 3},
        [],
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"queries": ["x"], "topk": ' + b"9" * 5000 + b"}",
        b'{"queries": ["x"], "topk": NaN}',
        b'{"queries": ["x"], "topk": 1e400}',
        b'{"queries": ["x"], "queries": ["y"]}',
        b'{"queries": [{"a": 1, "a": 2}]}',
    ],
)
def test_p32_p47_bad_requests_get_400_with_one_sentence(http, url, body):
    answer = post(http, url, body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"].endswith(".")
    assert "\n" not in answer.json()["error"]


def test_p47_unusual_queries_have_results_and_leave_their_neighbours_alone(http, url):
    unusual = ["", "   ", "\x00", "\ud800", "x" * 50_000, "\u202eriver", "שלום", "🙂"]
    together = post(http, url, {"queries": ["hill", *unusual, "hill"], "topk": 1})
    assert together.status_code == 200
    result = together.json()["result"]
    alone = post(http, url, {"queries": ["hill"], "topk": 1}).json()["result"][0]
    assert len(result) == 10
    assert result[0] == result[9] == alone
    assert result[1:5] == [[], [], [], []]
    assert result[8] == []


def test_an_oversized_body_is_413(http, url):
    answer = post(http, url, {"queries": ["x" * (9 * 2**20)]})
    assert answer.status_code == 413
    assert answer.json() == {"error": "The body is larger than this server accepts; send fewer queries at a time."}


def test_status_pages_and_json_errors(http, url):
    assert http.get(f"{url}/health").json() == {"status": "ok"}
    assert http.get(f"{url}/ready").json() == {"status": "ready", "count": 4}
    info = http.get(f"{url}/info").json()
    assert info["count"] == 4
    assert info["limits"] == {"default_topk": 3, "max_topk": 100, "max_queries": 512, "max_chars": 65536}
    assert http.get(f"{url}/nothing").status_code == 404
    wrong_method = http.get(f"{url}/retrieve")
    assert (wrong_method.status_code, set(wrong_method.json())) == (405, {"error"})
    assert "POST" in wrong_method.headers["Allow"]


def test_request_ids_are_kept_or_made(http, url):
    kept = http.get(f"{url}/health", headers={"X-Request-Id": "step-7.question-3"})
    assert kept.headers["X-Request-Id"] == "step-7.question-3"
    made = [http.get(f"{url}/health", headers={"X-Request-Id": "no good id"}).headers["X-Request-Id"] for _ in "12"]
    assert len(set(made)) == 2
    assert all(len(name) == 32 for name in made)


def test_client_and_server_agree_and_256_calls_at_once_are_fine(index):
    expected = BM25Backend.from_passages(ROWS).search(["river Belm"], 3)[0]

    async def many(client):
        try:
            return await asyncio.gather(*[client.retrieve(["river Belm"]) for _ in range(256)])
        finally:
            await client.aclose()

    with start_server(index / "bm25") as server:
        client = RetrieverClient(server.url)
        client.check()
        answers = asyncio.run(many(client))
    assert [(passage.id, passage.contents, passage.title) for passage in answers[0][0]] == [
        (hit.id, hit.contents, hit.contents[1:5]) for hit in expected
    ]
    assert [passage.score for passage in answers[0][0]] == pytest.approx([hit.score for hit in expected])
    assert answers == [answers[0]] * 256
    assert (client.counters.queries, client.counters.errors, client.counters.empty) == (256, 0, 0)


def test_p43_proxy_variables_do_not_come_between(index, monkeypatch):
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:9")
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    with start_server(index / "bm25") as server:
        client = RetrieverClient(server.url, timeout_s=10, retries=0)
        client.check()
        assert client.retrieve_sync(["hill"], 1)[0][0].id == "d"


def test_loops_that_end_without_closing_leave_no_connections_behind(index):
    with start_server(index / "bm25") as server:
        client = RetrieverClient(server.url)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            assert asyncio.run(client.retrieve(["hill"]))[0][0].id == "d"
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) - before <= 1


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retriever_server", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_commands_build_inspect_and_refuse_a_second_build(index, tmp_path):
    build = ("build", "--corpus", index / "corpus.jsonl", "--encoder", "bm25", "--analyzer", "plain")
    done = run_command(*build, "--out", tmp_path / "x")
    assert done.returncode == 0
    assert done.stdout.endswith(
        "x: 4 passages, encoder bm25, 100% of sampled passages found by their own first words\n"
    )
    shown = json.loads(run_command("inspect", "--json", "--index", tmp_path / "x").stdout)
    assert shown["count"] == 4
    assert shown["parts"] == [{"kind": "bm25", "settings": {"analyzer": "plain", "k1": 1.5, "b": 0.75}, "vectors": {}}]
    again = run_command(*build, "--out", tmp_path / "x")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == (
        f"retriever: {tmp_path / 'x'} exists already; choose another folder, "
        "or pass --force to replace the index there.\n"
    )


def test_a_busy_port_is_refused_in_one_sentence(index):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_command("serve", "--index", index / "bm25", "--port", port)
    assert done.returncode == 2
    assert done.stderr == (
        f"retriever: Cannot listen on 127.0.0.1:{port} (Address already in use); "
        "choose another --port, or 0 for any free one.\n"
    )


def test_a_missing_index_is_refused_with_the_last_log_lines(tmp_path):
    with pytest.raises(RetrieverServerError, match=r"ended with status 2: retriever: .*none holds no index"), \
            start_server(tmp_path / "none"):  # fmt: skip
        pass


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_exits_cleanly_and_frees_its_port(index, signal_number):
    with start_server(index / "bm25") as server:
        os.kill(server.process.pid, signal_number)
        assert server.process.wait(30) == 0
        assert server.log_path.read_text() == ""
    with start_server(index / "bm25", port=int(server.url.rsplit(":", 1)[1])) as again:
        assert again.url == server.url


def test_the_server_runs_without_verl_and_without_verl_agentic(index):
    script = (
        "import sys; from pathlib import Path; from retriever_server import app, index\n"
        f"backend, _ = index.open_index(Path({str(index / 'hashing')!r})); app.create_app(backend)\n"
        "print([name for name in ('verl', 'verl_agentic', 'torch', 'ray', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
