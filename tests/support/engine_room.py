"""An engine over a real index whose searches wait for a gate; what the tests of the engine share."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage
from retriever_server.engine import Engine
from retriever_server.metrics import Metrics
from retriever_server.settings import ServerSettings

PASSAGES = [Passage("a", "red fox"), Passage("b", "blue whale"), Passage("c", "green frog"), Passage("d", "red whale")]
OTHERS = [Passage("z", "red panda"), Passage("y", "blue jay")]


class Gated:
    """A real index whose searches wait for `gate` and are noted in `searches`."""

    kind = "gated"
    encoder = reranker = None
    settings = save = None

    def __init__(self, passages=PASSAGES, concurrency=1) -> None:
        self.inner = BM25Backend.from_passages(passages)
        self.passages = passages
        self.concurrency = concurrency
        self.gate, self.began = threading.Event(), threading.Semaphore(0)
        self.searches: list[tuple[list[str], int]] = []
        self.counting = threading.Lock()
        self.running = self.most = 0

    def search(self, queries, topk):
        with self.counting:
            self.searches.append((list(queries), topk))
            self.running += 1
            self.most = max(self.most, self.running)
        self.began.release()
        assert self.gate.wait(20)
        with self.counting:
            self.running -= 1
        if "poison" in queries:
            raise ValueError("poisoned")
        return self.inner.search(queries, topk)


class Room:
    """An engine over a gated index, and threads that ask it."""

    def __init__(self, backend=None, **settings) -> None:
        self.backend = backend or Gated()
        self.metrics = Metrics()
        self.engine = Engine(ServerSettings(**settings), self.metrics)
        self.engine.install(self.backend)
        self.threads = ThreadPoolExecutor(64)

    def ask(self, *queries, topk=1, deadline_s=20.0):
        return self.threads.submit(self.engine.search, queries, topk, deadline_s)

    def hold(self):
        """Ask for something and return once its search stands before the gate."""
        while self.backend.began.acquire(blocking=False):  # searches that began before
            pass
        asked = self.ask("held")
        assert self.backend.began.acquire(timeout=20)
        return asked

    def value(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"retriever_{name}")

    def await_value(self, name: str, value: float) -> None:
        until = time.monotonic() + 20
        while self.value(name) != value:
            assert time.monotonic() < until, f"{name} is {self.value(name)}, not {value}"
            time.sleep(0.002)


def ids(future):
    return [[hit.id for hit in hits] for hits in future.result(20).hits]
