"""The engine over a real BM25 index: micro-batches, joining, cache, and errors that stay with their query."""

import pytest
from engine_room import Gated, Room, ids

from retriever_server.engine.engine import normalise


def test_what_waits_while_a_batch_runs_is_searched_together_by_equal_topk():
    room = Room()
    held = room.hold()
    asked = []
    for count, (query, topk) in enumerate([("red", 2), ("blue", 1), ("frog", 2), ("fox whale", 2)], 1):
        asked.append(room.ask(query, topk=topk))
        room.await_value("queue_queries", count)
    room.backend.gate.set()
    assert [ids(future) for future in asked] == [[["a", "d"]], [["b"]], [["c"]], [["a", "b"]]]
    assert ids(held) == [[]]
    assert room.backend.searches == [(["held"], 1), (["red", "frog", "fox whale"], 2), (["blue"], 1)]
    assert room.value("batch_queries_sum") == 5


def test_a_batch_holds_at_most_max_batch_queries():
    room = Room(max_batch=2)
    room.hold()
    many = room.ask("red", "blue", "frog", "fox", "whale")
    room.await_value("queue_queries", 5)
    room.backend.gate.set()
    assert ids(many) == [["a"], ["b"], ["c"], ["a"], ["b"]]
    assert [queries for queries, _ in room.backend.searches[1:]] == [["red", "blue"], ["frog", "fox"], ["whale"]]


def test_without_micro_batching_every_query_is_searched_alone():
    room = Room(max_batch=1, cache_mb=0)
    room.backend.gate.set()
    assert ids(room.ask("red", "blue", topk=4)) == [["a", "d"], ["b"]]
    assert room.backend.searches == [(["red"], 4), (["blue"], 4)]


def test_a_lone_client_never_waits_for_the_window():
    room = Room(window_ms=600_000.0)
    room.backend.gate.set()
    for query in ("red", "blue", "frog"):
        assert len(room.ask(query).result(20).hits[0]) == 1


def test_identical_queries_under_way_are_searched_once():
    room = Room()
    room.hold()
    same = [room.ask("red  whale"), room.ask(" red\twhale "), room.ask("red whale", "red whale")]
    room.await_value("waiting_requests", 4)
    room.await_value("queue_queries", 1)
    room.backend.gate.set()
    assert [ids(future) for future in same] == [[["d"]], [["d"]], [["d"], ["d"]]]
    assert room.backend.searches == [(["held"], 1), (["red whale"], 1)]
    assert room.value("joined_total") == 2


def test_a_query_joins_one_whose_search_has_begun():
    room = Room()
    first = room.hold()
    second = room.ask("held")
    room.await_value("joined_total", 1)
    room.backend.gate.set()
    assert ids(first) == ids(second) == [[]]
    assert len(room.backend.searches) == 1


def test_the_cache_answers_the_same_query_topk_and_index_without_a_search():
    room = Room()
    room.backend.gate.set()
    first = room.ask("red", "blue", "red", topk=2).result(20)
    again = room.ask("  red ", "frog", "\x00red", topk=2).result(20)
    assert (first.cache_hits, again.cache_hits) == (0, 2)
    assert again.hits[0] == again.hits[2] == first.hits[0] == first.hits[2] == room.backend.inner.search(["red"], 2)[0]
    assert room.ask("red", topk=1).result(20).cache_hits == 0
    assert room.backend.searches == [(["red", "blue"], 2), (["frog"], 2), (["red"], 1)]
    assert (room.value("cache_hits_total"), room.value("cache_misses_total")) == (2, 4)


def test_without_cache_every_query_is_searched():
    room = Room(cache_mb=0)
    room.backend.gate.set()
    assert [room.ask("red").result(20).cache_hits for _ in "123"] == [0, 0, 0]
    assert len(room.backend.searches) == 3


def test_blank_queries_have_no_hits_and_no_search():
    room = Room()
    assert ids(room.ask("", "  ", "\x00\t", "\u2003")) == [[], [], [], []]
    assert room.backend.searches == []


@pytest.mark.parametrize(
    ("query", "searched"),
    [(" a\n b ", "a b"), ("\x00a\x00b", "a b"), ("a\ud800", "a\ufffd"), ("\u202eab", "\u202eab"), ("é 🙂", "é 🙂")],
)
def test_normalised_queries(query, searched):
    assert normalise(query) == searched


def test_p47_only_the_guilty_query_of_a_batch_fails():
    room = Room()
    room.hold()
    guilty, innocent, both = room.ask("poison"), room.ask("red"), room.ask("blue", "poison")
    room.await_value("waiting_requests", 4)
    room.await_value("queue_queries", 3)
    room.backend.gate.set()
    assert ids(innocent) == [["a"]]
    for failed in (guilty, both):
        with pytest.raises(ValueError, match="poisoned"):
            failed.result(20)
    assert ids(room.ask("blue")) == [["b"]]
    assert room.value("batch_failures_total") == 1


def test_a_backend_that_answers_too_few_queries_is_an_error_and_not_a_shifted_answer():
    class Short(Gated):
        def search(self, queries, topk):
            return super().search(queries, topk)[1:]

    room = Room(Short())
    room.backend.gate.set()
    with pytest.raises(RuntimeError, match="the backend answered 0 of 1 queries"):
        room.ask("red").result(20)
