"""What the routes of a server share: an index that is being installed, reloads at once, canaries of the whole stack."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from werkzeug.serving import make_server

from retriever_server.app import app_of, create_app
from retriever_server.backends.bm25 import BM25Backend
from retriever_server.backends.reranked import RerankedBackend
from retriever_server.corpus import Passage
from retriever_server.errors import IndexRefused, RetrieverServerError
from retriever_server.index import build_index, open_index
from retriever_server.rerankers import RerankerRecord
from retriever_server.service import Service
from retriever_server.settings import ServerSettings
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.retriever import RetrieverClient

PASSAGES = [Passage("a", "red fox"), Passage("b", "blue whale")]
NAMES = ["Avar", "Belm", "Corv", "Dune", "Eldo", "Finn", "Gorm", "Hild", "Ivar", "Jorn"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Ten passages; five hold the first words of another one too, and longer."""
    folder = tmp_path_factory.mktemp("service")
    rows = [{"id": name, "contents": f"{name} lies on the river {name}water."} for name in NAMES]
    for row, name in zip(rows[5:], NAMES[:5], strict=True):
        row["contents"] += f" So does {name} on {name}water, they say, though the map of the land shows no such river."
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / "corpus.jsonl", "bm25+hashing", folder / "index")
    return folder / "index"


class Gate:
    """Lets those who pass be counted, and waits until it is open."""

    def __init__(self) -> None:
        self.came, self.open = threading.Semaphore(0), threading.Event()

    def __call__(self) -> None:
        self.came.release()
        assert self.open.wait(20)

    def await_one(self) -> None:
        assert self.came.acquire(timeout=20)


def test_every_route_is_ready_at_the_same_moment():
    gate = Gate()

    class Slow(BM25Backend):
        def settings(self):
            gate()
            return super().settings()

    service = Service(ServerSettings())
    asked = app_of(service).test_client()
    installing = threading.Thread(target=service.install, args=(Slow.from_passages(PASSAGES),))
    installing.start()
    gate.await_one()
    during = [asked.get("/ready"), asked.get("/info"), asked.post("/retrieve", json={"query": "red"})]
    gate.open.set()
    installing.join()
    after = [asked.get("/ready"), asked.get("/info"), asked.post("/retrieve", json={"query": "red"})]
    assert [answer.status_code for answer in during + after] == [503] * 3 + [200] * 3


def test_reloads_that_wait_for_the_one_under_way_are_one(index):
    gate, opened = Gate(), []

    def opener():
        opened.append(threading.current_thread().name)
        gate()
        return open_index(index)

    service = Service(ServerSettings(), opener)
    with ThreadPoolExecutor(32) as threads:
        first = threads.submit(service.reload)
        gate.await_one()
        others = [threads.submit(service.reload) for _ in range(30)]
        until = time.monotonic() + 20
        while sum(other.done() for other in others) < 29:
            assert time.monotonic() < until
            time.sleep(0.002)
        gate.open.set()
        for reload in (first, *others):
            reload.result(20)
    assert len(opened) == 2
    assert service.info["generation"] == 2
    service.draining = True
    service.reload()
    assert len(opened) == 2


def test_a_reload_that_fails_in_any_way_is_logged_once_and_the_next_one_works(index, caplog):
    outcomes = iter([open_index, IndexRefused("no good."), ValueError("boom"), MemoryError(), open_index])

    def opener():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome(index)

    service = Service(ServerSettings(), opener)
    service.open()
    for _ in range(4):
        service.reload()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [bool(record.exc_info) for record in errors] == [False, True, True]
    assert errors[0].getMessage() == "reload refused, the index before is still served: no good."
    assert service.info["generation"] == 2


def test_without_an_opener_there_is_nothing_to_reload():
    with pytest.raises(RetrieverServerError, match="no index folder to open"):
        Service(ServerSettings()).open()


@contextmanager
def serving(app):
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class ByLength:
    """Prefers long documents (sign 1), or those that it was asked with."""

    def __init__(self, weight: float) -> None:
        self.record, self.weight = RerankerRecord("by-length", "cross_encoder", "none"), weight

    def score_many(self, requests):
        return [
            np.array([self.weight * len(text) + text.startswith(query) for text in texts]) for query, texts in requests
        ]


@pytest.mark.parametrize(("weight", "shown", "warned"), [(0.0, 8, False), (1.0, 3, True)])
def test_the_canaries_of_info_are_those_that_the_whole_stack_finds_first(index, caplog, weight, shown, warned):
    backend, manifest = open_index(index)
    assert len(manifest.canaries) == 10
    reranked = RerankedBackend(backend, ByLength(weight), 10)
    app = create_app(reranked, ServerSettings(), manifest)
    assert any("come first by their own first words" in message for message in caplog.messages) == warned
    with serving(app) as url:
        (found,) = RetrieverClient(url).check_startup(concurrent=2)
        assert found.canaries == shown


def test_a_server_whose_stack_changed_behind_its_canaries_is_refused_by_the_client(index):
    backend, manifest = open_index(index)
    reranker = ByLength(0.0)
    app = create_app(RerankedBackend(backend, reranker, 10), ServerSettings(), manifest)
    with serving(app) as url:
        assert RetrieverClient(url).check_startup(concurrent=1)[0].canaries == 8
        reranker.weight = 1.0
        app.extensions["retriever_server"].engine.install(RerankedBackend(backend, reranker, 10))
        with pytest.raises(RetrieverError) as caught:
            RetrieverClient(url).check_startup(concurrent=1)
    assert caught.value.kind == "canary"


def test_a_hybrid_server_shows_every_canary(index):
    backend, manifest = open_index(index)
    with serving(create_app(backend, ServerSettings(), manifest)) as url:
        assert RetrieverClient(url).check_startup(concurrent=1)[0].canaries == 8
