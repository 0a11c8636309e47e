"""The server's start: a port that another took, the cap on bodies, and what a child process leaves behind."""

import json
import os
import site
import socket
import tempfile
from pathlib import Path

import pytest

from retriever_server.app import ServerSettings, create_app
from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage
from retriever_server.errors import RetrieverServerError
from retriever_server.index import build_index
from retriever_server.process import child_environment, start_server
from retriever_server.serving import claim_port, serve


@pytest.fixture
def index(tmp_path) -> Path:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "a", "contents": "red fox"}) + "\n")
    build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index")
    return tmp_path / "index"


def test_a_port_lost_between_claim_and_listening_is_refused_in_one_sentence():
    settings = ServerSettings(max_pending=1)
    app = create_app(BM25Backend.from_passages([Passage("a", "red fox")]), settings)
    with claim_port("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with claim_port("127.0.0.1", port) as second:
            first.listen()
            with pytest.raises(RetrieverServerError) as caught:
                serve(app, second, settings, "ready")
    assert str(caught.value) == (
        f"Cannot listen on 127.0.0.1:{port} (Address already in use); choose another --port, or 0 for any free one."
    )


def answer(url: str, head: str, body: bytes) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(f"POST /retrieve HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n".encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_bodies_are_capped_before_they_are_read(index):
    most = ServerSettings().max_body_bytes
    with start_server(index) as server:
        far_larger = answer(server.url, "Content-Length: 900000000", b"{")
        endless = answer(server.url, "Transfer-Encoding: chunked", b"%x\r\n" % (2 * most) + b" " * (2 * most))
        larger = answer(server.url, f"Content-Length: {most + 1}", b" " * (most + 1))
        largest = answer(server.url, f"Content-Length: {most}", b'{"query":"fox"}'.ljust(most))
    assert [reply.split(b"\r\n")[0][:12] for reply in (far_larger, endless, larger, largest)] == [
        b"HTTP/1.1 413", b"HTTP/1.1 413", b"HTTP/1.1 413", b"HTTP/1.1 200",
    ]  # fmt: skip
    for refused in (far_larger, endless, larger):
        assert json.loads(refused.split(b"\r\n\r\n")[1]) == {
            "error": "The body is larger than this server accepts; send fewer queries at a time."
        }


def test_what_is_no_http_is_refused_in_json_and_puts_no_header_into_the_answer(index):
    with start_server(index) as server:
        replies = [
            answer(server.url, "Content-Length: -5", b"{}"),
            answer(server.url, "Transfer-Encoding: gzip", b"{}"),
            answer(server.url, "Transfer-Encoding: chunked", b"zz\r\n"),
            answer(server.url, "X-Request-Id: a\nX-Evil: b", b""),
            answer(server.url, "X-Request-Id: a\r\n X-Evil: b\r\nContent-Length: 2", b"{}"),
        ]
    heads, bodies = zip(*(reply.split(b"\r\n\r\n") for reply in replies), strict=True)
    assert [head[9:12] for head in heads] == [b"400", b"501", b"400", b"400", b"400"]
    assert not any(b"x-evil" in head.lower() for head in heads)
    for body in bodies:
        sentence = json.loads(body)["error"]
        assert sentence.endswith(".")
        assert "\n" not in sentence


def test_a_stopped_server_leaves_no_folder_but_keeps_a_log_that_was_asked_for(index, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with start_server(index) as server:
        assert server.log_path.is_file()
    with pytest.raises(RetrieverServerError, match="holds no index"), start_server(tmp_path / "none"):
        pass
    assert list((tmp_path / "temporary").iterdir()) == []
    with start_server(index, log_path=tmp_path / "server.log"):
        pass
    assert (tmp_path / "server.log").is_file()


def test_the_name_of_an_encoder_may_have_blanks(index, tmp_path):
    record = {"id": "my own encoder", "dimension": 64, "runtime": "hashing"}
    (tmp_path / "own.json").write_text(json.dumps(record))
    build_index(tmp_path / "corpus.jsonl", str(tmp_path / "own.json"), tmp_path / "own")
    with start_server(tmp_path / "own") as server:
        assert server.url.startswith("http://127.0.0.1:")


def test_only_a_source_tree_is_put_on_the_path_of_the_child(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert child_environment(tmp_path) == {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}/mine"}
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        assert child_environment(Path(folder)) == dict(os.environ)
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment(tmp_path)["PYTHONPATH"] == str(tmp_path)
    assert "PYTHONPATH" not in child_environment(Path(site.getsitepackages()[0]))
