"""What the retriever client counts: latencies in bounded memory, whose quantiles are right within a tenth."""

import pickle

import pytest

from verl_agentic.clients.counters import Latencies, RetrieverCounters


def test_quantiles_are_within_a_tenth_and_sums_are_exact():
    latencies = Latencies()
    for millisecond in range(1, 1001):
        latencies.add(millisecond / 1000)
    assert latencies.total == pytest.approx(500.5)
    assert latencies.longest == 1.0
    for share in (0.01, 0.5, 0.9, 0.99):
        assert share <= latencies.quantile(share) <= share * 1.1
    assert latencies.quantile(1.0) == 1.0


def test_the_shortest_and_the_longest_seconds_have_a_place():
    latencies = Latencies()
    assert latencies.quantile(0.5) == 0.0
    for seconds in (0.0, 1e-9, 1e6):
        latencies.add(seconds)
    assert latencies.quantile(0.5) <= 1e-4
    assert latencies.longest == 1e6
    assert 1000 < latencies.quantile(1.0) <= 1e6


def test_memory_does_not_grow_with_calls():
    latencies = Latencies()
    latencies.add(0.01)
    before = len(pickle.dumps(latencies))
    for call in range(20_000):
        latencies.add(call * 1e-5)
    assert len(pickle.dumps(latencies)) < before + 1000


def test_counters_by_name():
    counters = RetrieverCounters(calls=2, queries=3, errors=1)
    counters.errors_by_kind["timeout"] += 1
    counters.latencies.add(2.0)
    assert counters.as_dict() == {
        "calls": 2, "queries": 3, "empty": 0, "retries": 0, "cache_hits": 0, "errors": 1, "errors_timeout": 1,
        "seconds": 2.0, "seconds_max": 2.0, "seconds_p50": 2.0, "seconds_p99": 2.0,
    }  # fmt: skip
