"""The engine under pressure and change: admission (P34), one executor (P35), deadlines, another index, the end."""

import threading

import pytest
from engine_room import OTHERS, Gated, Room, ids

from retriever_server.engine import Engine
from retriever_server.errors import DeadlinePassed, Overloaded, Unavailable
from retriever_server.metrics import Metrics
from retriever_server.settings import ServerSettings


def test_p34_further_requests_and_queries_are_refused_at_once_and_later_ones_accepted():
    room = Room(max_pending=2, max_queued=2)
    held = room.hold()
    full = room.ask("red", "blue")
    room.await_value("queue_queries", 2)
    with pytest.raises(Overloaded, match=r"^2 requests are waiting already; try again in a moment\.$"):
        room.ask("frog").result(20)
    room.backend.gate.set()
    assert ids(held) == [[]]
    assert ids(full) == [["a"], ["b"]]
    assert ids(room.ask("frog")) == [["c"]]
    assert room.value("refused_total") == 1


def test_p34_queries_beyond_the_queue_are_refused_but_an_empty_queue_takes_any_request():
    room = Room(max_queued=2)
    room.hold()
    larger = room.ask("red", "blue", "frog")
    room.await_value("queue_queries", 3)
    with pytest.raises(Overloaded, match="3 queries are waiting already"):
        room.ask("fox").result(20)
    joined = room.ask("red")
    room.await_value("joined_total", 1)
    room.backend.gate.set()
    assert ids(larger) == [["a"], ["b"], ["c"]]
    assert ids(joined) == [["a"]]


def test_p35_sixteen_threads_search_one_at_a_time():
    room = Room(max_batch=1, cache_mb=0)
    room.backend.gate.set()
    asked = [room.ask(f"red {number}") for number in range(64)]
    assert all(ids(future) == [["a"]] for future in asked)
    assert room.backend.most == 1
    assert room.engine.executors == 1


def test_a_backend_of_concurrency_two_runs_two_batches_at_once():
    room = Room(Gated(concurrency=2), max_batch=1)
    asked = [room.ask("red"), room.ask("blue")]
    assert room.backend.began.acquire(timeout=20)
    assert room.backend.began.acquire(timeout=20)
    assert room.backend.most == 2
    room.backend.gate.set()
    assert [ids(future) for future in asked] == [[["a"]], [["b"]]]


def test_a_request_whose_deadline_passed_is_given_up_and_its_query_never_searched():
    room = Room()
    held = room.hold()
    with pytest.raises(DeadlinePassed, match=r"^The deadline passed before the answer was found; try again"):
        room.ask("red", deadline_s=0.01).result(20)
    patient = room.ask("blue")
    room.await_value("queue_queries", 2)
    room.backend.gate.set()
    assert ids(patient) == [["b"]]
    assert ids(held) == [[]]
    assert room.backend.searches == [(["held"], 1), (["blue"], 1)]
    assert (room.value("dropped_total"), room.value("deadlines_total")) == (1, 1)
    assert ids(room.ask("red")) == [["a"]]


def test_a_query_is_searched_while_anyone_still_waits_for_it():
    room = Room()
    room.hold()
    impatient = room.ask("red", deadline_s=0.01)
    with pytest.raises(DeadlinePassed):
        impatient.result(20)
    patient = room.ask("red")
    room.await_value("joined_total", 1)
    room.backend.gate.set()
    assert ids(patient) == [["a"]]


def test_after_an_install_nothing_of_the_index_before_is_answered():
    room = Room()
    room.backend.gate.set()
    assert ids(room.ask("red", topk=4)) == [["a", "d"]]
    room.backend.gate.clear()
    running = room.hold()
    other = Gated(OTHERS)
    other.gate.set()
    assert room.engine.install(other) == 2
    late = room.ask("held")
    room.await_value("waiting_requests", 2)
    room.backend.gate.set()
    assert ids(running) == [[]]
    assert ids(late) == [[]]
    assert other.searches[0][0] == ["held"], "it did not join the search on the index before"
    answer = room.ask("red", topk=4).result(20)
    assert ([hit.id for hit in answer.hits[0]], answer.cache_hits, answer.generation) == (["z"], 0, 2)


def test_one_answer_never_mixes_two_indexes():
    room = Room(max_batch=1)
    asked = room.ask("red", "blue", topk=4)
    assert room.backend.began.acquire(timeout=20)
    other = Gated(OTHERS)
    other.gate.set()
    room.engine.install(other)
    room.backend.gate.set()
    assert ids(asked) == [["z"], ["y"]]


def test_calls_run_in_the_executor_between_searches_and_keep_their_errors():
    room = Room()
    room.hold()
    names = []
    call = room.threads.submit(
        room.engine.call, [lambda backend: names.append(threading.current_thread().name) or len(backend.passages)] * 2
    )
    bad = room.threads.submit(room.engine.call, [lambda backend: 1 / 0])
    room.await_value("queue_queries", 3)
    room.backend.gate.set()
    assert call.result(20) == [4, 4]
    assert names == ["executor-0", "executor-0"]
    with pytest.raises(ZeroDivisionError):
        bad.result(20)


def test_without_an_index_and_after_the_end_requests_are_refused():
    engine = Engine(ServerSettings(), Metrics())
    with pytest.raises(Unavailable, match=r"^This server has no index open; try again in a moment\.$"):
        engine.search(["red"], 1)
    room = Room()
    room.backend.gate.set()
    assert ids(room.ask("red")) == [["a"]]
    assert room.engine.close(20)
    with pytest.raises(Unavailable):
        room.engine.search(["blue"], 1)


def test_close_says_when_a_search_does_not_end_in_time():
    room = Room()
    room.hold()
    assert not room.engine.close(0.01)
    room.backend.gate.set()
    assert room.engine.close(20)
