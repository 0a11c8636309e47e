"""The search executor: one search at a time (case P35), a bounded number waiting (case P34)."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from retriever_server.errors import Overloaded
from retriever_server.executor import SearchExecutor


class CountingBackend:
    """Counts how many searches run at the same time; each waits for `gate` and lasts long enough to be overtaken."""

    kind = "counting"
    passages = ()

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Event()
        self.counting = threading.Lock()
        self.running = 0
        self.most = 0

    def search(self, queries, topk):
        with self.counting:
            self.running += 1
            self.most = max(self.most, self.running)
        self.started.set()
        assert self.gate.wait(20)
        time.sleep(0.002)
        with self.counting:
            self.running -= 1
        if queries[0] == "bad":
            raise ValueError("bad query")
        return [[] for _ in queries]


def search_from_sixteen_threads(search: Callable) -> None:
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda _: search(["a", "b"], 1), range(64))) == [[[], []]] * 64


def test_p35_sixteen_threads_search_one_at_a_time():
    backend, bare = CountingBackend(), CountingBackend()
    backend.gate.set()
    bare.gate.set()
    search_from_sixteen_threads(SearchExecutor(backend, max_pending=16).search)
    assert backend.most == 1
    search_from_sixteen_threads(bare.search)
    assert bare.most > 1, "the same load overlaps where no executor stands before the backend"


def test_p34_further_searches_are_refused_at_once_and_later_ones_accepted():
    backend = CountingBackend()
    executor = SearchExecutor(backend, max_pending=1)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(executor.search, ["a"], 1)
        assert backend.started.wait(20)
        with pytest.raises(Overloaded, match="1 searches are under way already"):
            executor.search(["b"], 1)
        backend.gate.set()
        assert running.result(20) == [[]]
    assert executor.search(["c"], 1) == [[]]


def test_a_failed_search_frees_its_place():
    backend = CountingBackend()
    backend.gate.set()
    executor = SearchExecutor(backend, max_pending=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="bad query"):
            executor.search(["bad"], 1)
    assert executor.search(["good"], 1) == [[]]
