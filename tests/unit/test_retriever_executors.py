"""Several executors: batches that overlap, what each leaves to the others, equal answers, and errors they outlive."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.backends.dense import DenseBackend
from retriever_server.backends.hybrid import HybridBackend
from retriever_server.corpus import Passage
from retriever_server.encoders import find_record, open_encoder
from retriever_server.engine import Engine
from retriever_server.metrics import Metrics
from retriever_server.settings import ServerSettings

PASSAGES = [Passage("a", "red fox"), Passage("b", "blue whale"), Passage("c", "green frog"), Passage("d", "red whale")]


class Panic(BaseException):
    """As the panics of native libraries, no Exception."""


RAISED = {"panic": Panic, "exit": SystemExit, "memory": MemoryError, "poison": ValueError}


class Turnstile:
    """A real index that lets as many searches through as `turns` was released; it states no concurrency."""

    kind, encoder, reranker, settings = "turnstile", None, None, dict

    def __init__(self) -> None:
        self.inner = BM25Backend.from_passages(PASSAGES)
        self.passages = PASSAGES
        self.began, self.turns = threading.Semaphore(0), threading.Semaphore(0)
        self.searches: list[list[str]] = []

    def search(self, queries, topk):
        self.searches.append(list(queries))
        self.began.release()
        assert self.turns.acquire(timeout=20)
        for query in queries:
            if query in RAISED:
                raise RAISED[query]("inside")
        return self.inner.search(queries, topk)

    def await_began(self, searches: int) -> None:
        """Return once so many further searches stand before the turnstile."""
        for _ in range(searches):
            assert self.began.acquire(timeout=20), f"only {len(self.searches)} searches began"


class Room:
    """An engine over a turnstile, and threads that ask it."""

    def __init__(self, executors: int) -> None:
        self.backend, self.metrics = Turnstile(), Metrics()
        self.engine = Engine(ServerSettings(executors=executors, cache_mb=0), self.metrics)
        self.engine.install(self.backend)
        self.threads = ThreadPoolExecutor(64)
        self.await_value("idle_executors", executors)

    def ask(self, *queries):
        return self.threads.submit(self.engine.search, queries, 1, 20.0)

    def await_value(self, name: str, value: int) -> None:
        until = time.monotonic() + 20
        while self.metrics.registry.get_sample_value(f"retriever_{name}") != value:
            assert time.monotonic() < until, f"{name} never became {value}"
            time.sleep(0.002)


def ids(future):
    return [[hit.id for hit in hits] for hits in future.result(20).hits]


def test_two_executors_search_at_once_where_the_backend_states_no_concurrency():
    room = Room(executors=2)
    first, second = room.ask("red"), room.ask("blue")
    room.backend.await_began(2)
    assert room.engine.executors == 2
    waiting = room.ask("frog")
    room.await_value("queue_queries", 1)
    room.backend.turns.release(3)
    assert [ids(future) for future in (first, second, waiting)] == [[["a"]], [["b"]], [["c"]]]


def test_an_executor_leaves_idle_ones_their_part_and_takes_all_when_none_is_idle():
    room = Room(executors=3)
    spread = room.ask("red", "blue", "frog", "fox", "whale", "green")
    room.backend.await_began(3)
    assert sorted(map(len, room.backend.searches)) == [2, 2, 2]
    together = room.ask("red fox", "blue whale", "green frog", "fox frog")
    room.await_value("queue_queries", 4)
    room.backend.turns.release(1)  # one executor comes back, the two others are busy
    room.backend.await_began(1)
    assert room.backend.searches[3] == ["red fox", "blue whale", "green frog", "fox frog"]
    room.backend.turns.release(3)
    assert ids(spread) == [["a"], ["b"], ["c"], ["a"], ["b"], ["c"]]
    assert ids(together) == [["a"], ["b"], ["c"], ["a"]]


def test_what_is_left_to_an_idle_executor_is_begun_while_the_other_one_still_searches():
    room = Room(executors=2)
    for turn in range(100):
        room.await_value("idle_executors", 2)
        pair = room.ask(f"red {turn}", f"blue {turn}")
        room.backend.await_began(2)
        room.backend.turns.release(2)
        assert ids(pair) == [["a"], ["b"]]
    assert set(map(len, room.backend.searches)) == {1}


@pytest.mark.parametrize("kind", ["bm25", "hashing", "hybrid"])
def test_many_executors_answer_as_one_thread_does(kind):
    words = [f"{letter}{number}" for letter in "abcdef" for number in range(30)]
    draw = random.Random(4)
    passages = [Passage(str(row), " ".join(draw.choices(words, k=12))) for row in range(300)]
    bm25 = BM25Backend.from_passages(passages)
    dense = DenseBackend.from_passages(passages, open_encoder(find_record("hashing")))
    backend = {"bm25": bm25, "hashing": dense, "hybrid": HybridBackend([bm25, dense])}[kind]
    queries = [" ".join(draw.choices(words, k=4)) for _ in range(300)]
    alone = [[hit.id for hit in backend.search([query], 5)[0]] for query in queries]
    engine = Engine(ServerSettings(executors=8, max_batch=4, cache_mb=0), Metrics())
    engine.install(backend)
    with ThreadPoolExecutor(64) as threads:
        found = list(threads.map(lambda query: engine.search([query], 5).hits[0], queries))
    assert [[hit.id for hit in hits] for hits in found] == alone
    assert engine.close(20)


@pytest.mark.parametrize("query", RAISED)
def test_an_executor_outlives_whatever_a_search_raises_and_harms_no_neighbour(query):
    room = Room(executors=1)
    held = room.ask("red")
    room.backend.await_began(1)
    guilty, neighbour = [room.ask(query) for _ in range(8)], room.ask("blue", query + " frog")
    room.await_value("queue_queries", 3)
    room.backend.turns.release(20)
    assert (ids(held), ids(neighbour)) == ([["a"]], [["b"], ["c"]])
    for future in guilty:
        with pytest.raises(RAISED[query] if issubclass(RAISED[query], Exception) else RuntimeError, match="inside"):
            future.result(20)
    call = room.threads.submit(room.engine.call, [lambda backend: backend.search([query], 1)], 20.0)
    with pytest.raises(Exception, match="inside"):
        call.result(20)
    assert ids(room.ask("whale")) == [["b"]]
