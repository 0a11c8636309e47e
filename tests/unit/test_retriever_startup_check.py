"""The check of retrievers before a run: canaries, speed, servers of another make."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from http_servers import JsonHandler, serving

from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.retriever import RetrieverClient

PASSAGES = {"river Belm": "b", "hill Dune": "d"}


@contextmanager
def server(info: object, delay_s: float = 0.0, refusals: int = 0) -> Iterator[tuple[str, list[str]]]:
    """A retriever that finds PASSAGES by their exact query, else `x`, and answers /info with `info` (None: 404)."""
    asked: list[str] = []
    left = [refusals]

    class Handler(JsonHandler):
        def do_GET(self):
            self.answer(404 if info is None else 200, {} if info is None else info)

        def do_POST(self):
            queries = self.body()["queries"]
            asked.extend(queries)
            time.sleep(delay_s)
            if queries != ["ready"] and left[0]:
                left[0] -= 1
                self.answer(503, {"error": "busy"})
                return
            found = [{"document": {"id": PASSAGES.get(query, "x"), "contents": "t"}, "score": 1.0} for query in queries]
            self.answer(200, {"result": [[document] for document in found]})

    with serving(Handler) as url:
        yield url, asked


def canaries(**ids: str) -> dict[str, object]:
    return {"count": 4, "canaries": [{"query": query.replace("_", " "), "id": id} for query, id in ids.items()]}


def test_canaries_that_come_first_are_counted_and_the_speed_is_measured():
    with server(canaries(river_Belm="b", hill_Dune="d"), delay_s=0.01) as (url, asked):
        (found,) = RetrieverClient(url).check_startup(concurrent=4)
    assert asked[:3] == ["ready", "river Belm", "hill Dune"]
    assert len(asked) == len(set(asked)) == 67, "64 different queries, which no cache knows"
    assert (found.url, found.canaries, found.concurrent) == (url, 2, 4)
    assert 0 < found.queries_per_s < 400, "four at a time, 10 ms each"
    assert str(found).startswith(f"retriever at {url}: 2 canaries come first; ")
    assert str(found).endswith(" queries/s at 4 at a time")


def test_a_second_check_asks_other_queries_which_the_server_does_not_remember():
    with server(None) as (url, asked):
        for _ in "12":
            RetrieverClient(url).check_startup(concurrent=4)
    assert len(set(asked) - {"ready"}) == 128


def test_a_wrong_canary_is_refused_in_one_sentence():
    with server(canaries(river_Belm="b", hill_Dune="e")) as (url, _), pytest.raises(RetrieverError) as caught:
        RetrieverClient(url).check_startup()
    assert caught.value.kind == "canary"
    assert str(caught.value) == (
        f"retriever at {url} finds passage 'd' by the first words of passage 'e' (1 of 2 canaries fail): its index and "
        "encoder do not belong together, or another server answers there; build the index again"
    )


@pytest.mark.parametrize("info", [None, [], {"count": 3}, {"canaries": "none"}, {"canaries": [{"query": 1}]}])
def test_a_server_of_another_make_is_measured_and_its_canaries_are_said_to_be_skipped(info):
    with server(info) as (url, _):
        (found,) = RetrieverClient(url).check_startup(concurrent=2)
    assert found.canaries is None
    assert "its /info names no canaries, so whether it finds the right passages is not checked; " in str(found)


def test_a_slow_server_is_refused_with_both_numbers():
    with server(None, delay_s=0.02) as (url, _), pytest.raises(RetrieverError) as caught:
        RetrieverClient(url).check_startup(concurrent=1, min_queries_per_s=50.5)
    assert caught.value.kind == "slow"
    assert " queries/s at 1 at a time, agentic.retriever.min_queries_per_s asks for 50.5; " in str(caught.value)


def test_every_address_is_checked_and_a_busy_moment_is_survived():
    with server(None, refusals=2) as (busy, _), server(canaries(river_Belm="b")) as (other, _):
        found = RetrieverClient([busy, other]).check_startup()
    assert [(check.url, check.canaries) for check in found] == [(busy, None), (other, 1)]


def test_an_address_that_is_down_is_named_with_what_to_do():
    with server(None) as (url, _):
        client = RetrieverClient([url, "http://127.0.0.1:9"])
        with pytest.raises(RetrieverError, match=r"at http://127\.0\.0\.1:9 does not answer .*; start it with `python"):
            client.check_startup()


def test_no_query_at_a_time_measures_nothing():
    with pytest.raises(ValueError, match=r"^agentic.retriever.check_concurrent must be at least 1, got 0$"):
        RetrieverClient("http://127.0.0.1:9").check_startup(concurrent=0)
