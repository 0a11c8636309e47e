"""What a server counts, in Prometheus's terms; every application has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """The counters, histograms and gauges of one application."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._counter("requests", "Requests answered.", ("route", "status"))
        self.request_seconds = Histogram(
            "retriever_request_seconds", "Time to answer.", ("route",), buckets=SECONDS, registry=registry
        )
        self.batch_queries = Histogram(
            "retriever_batch_queries", "Queries searched together.", buckets=SIZES, registry=registry
        )
        self.search_seconds = Histogram(
            "retriever_search_seconds", "Time of one batch's search.", buckets=SECONDS, registry=registry
        )
        self._counter("cache_hits", "Queries answered from the cache.")
        self._counter("cache_misses", "Queries that had to be searched.")
        self._counter("joined", "Queries that joined an identical one under way.")
        self._counter("dropped", "Queries dropped before their search because nobody waited for them any more.")
        self._counter("batch_failures", "Batches that failed and were retried query by query.")
        self._counter("refused", "Requests refused because too many were waiting.")
        self._counter("deadlines", "Requests whose deadline passed.")
        self._counter("reloads", "Reloads of the index.", ("result",))
        self._counter("canary_checks", "Openings of the index, each of which checks its canaries.", ("result",))
        self.generation = Gauge("retriever_index_generation", "Times an index was installed.", registry=registry)
        self.passages = Gauge("retriever_index_passages", "Passages of the index that is served.", registry=registry)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is asked for when the metrics are read."""
        Gauge(f"retriever_{name}", what, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self.registry)

    requests: Counter
    cache_hits: Counter
    cache_misses: Counter
    joined: Counter
    dropped: Counter
    batch_failures: Counter
    refused: Counter
    deadlines: Counter
    reloads: Counter
    canary_checks: Counter

    def _counter(self, name: str, what: str, labels: tuple[str, ...] = ()) -> None:
        setattr(self, name, Counter(f"retriever_{name}", what, labels, registry=self.registry))
