"""The retriever client against a scripted HTTP server: retries, deadlines, shapes (case P23), counters, proxies."""

import asyncio
import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from http_servers import JsonHandler, serving

from verl_agentic.clients.retriever import Passage, RetrieverClient, RetrieverError

GOOD = {"result": [[{"document": {"id": "p1", "contents": '"Oslo"\nA city.'}, "score": 1.5}]]}


@contextmanager
def scripted_server(*answers: tuple[int, object, dict[str, str]]) -> Iterator[tuple[str, list[dict]]]:
    """Answer the n-th request with the n-th (status, JSON or bytes, headers), the last one for ever after."""
    bodies: list[dict] = []

    class Handler(JsonHandler):
        def do_POST(self):
            bodies.append(self.body())
            self.answer(*answers[min(len(bodies), len(answers)) - 1])

    with serving(Handler) as url:
        yield url, bodies


def ask(client: RetrieverClient, *queries: str, topk: int | None = None):
    async def call():
        try:
            return await client.retrieve(list(queries), topk)
        finally:
            await client.aclose()

    return asyncio.run(call())


def failure(client: RetrieverClient, *queries: str) -> RetrieverError:
    with pytest.raises(RetrieverError) as caught:
        ask(client, *queries)
    assert "\n" not in str(caught.value)
    return caught.value


def unused_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_request_and_passages():
    with scripted_server((200, GOOD, {})) as (url, bodies):
        assert ask(RetrieverClient(url + "/"), "capital \ud800") == [
            [Passage("p1", '"Oslo"\nA city.', 1.5, "Oslo", "A city.")]
        ]
        assert ask(RetrieverClient([url]), "capital", topk=9)[0][0].text == "A city."
    assert bodies == [
        {"queries": ["capital \ud800"], "topk": 3, "return_scores": True},
        {"queries": ["capital"], "topk": 9, "return_scores": True},
    ]


def test_contents_without_a_title_are_all_text():
    bare = {"result": [[{"id": "p1", "contents": "no title here"}]]}
    with scripted_server((200, bare, {})) as (url, _):
        assert ask(RetrieverClient(url), "q") == [[Passage("p1", "no title here", None, "", "no title here")]]


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ({"results": [[]]}, "answers in an unknown shape: the response has no `result` key (found keys ['results'])"),
        ({"result": [[], []]}, "answers in an unknown shape: `result` holds 2 lists for 1 queries"),
        (b"<html>", "answers something that is not JSON"),
        (b"\xff\xfe\x00", "answers something that is not JSON"),
        (b"[" * 100_000, "answers JSON that is nested too deeply"),
        (
            b'{"result": [[{"document": {"id": "1", "contents": "t"}, "score": 1%s}]]}' % (b"0" * 400),
            "answers in an unknown shape: `result[0][0]` has a `score` that is not a finite number",
        ),
    ],
)
def test_p23_an_unknown_shape_is_an_error_and_not_an_empty_result(payload, what):
    with scripted_server((200, payload, {})) as (url, bodies):
        error = failure(RetrieverClient(url), "q")
    assert (error.kind, error.url, str(error)) == ("shape", url, f"retriever at {url} {what}")
    assert len(bodies) == 1


def test_a_transient_failure_is_retried():
    with scripted_server((500, {"error": "boom"}, {}), (502, b"bad gateway", {}), (200, GOOD, {})) as (url, bodies):
        client = RetrieverClient(url)
        assert ask(client, "q")[0][0].id == "p1"
    assert len(bodies) == 3
    counted = {name: value for name, value in client.counters.as_dict().items() if not name.startswith("seconds")}
    assert counted == {"calls": 1, "queries": 1, "empty": 0, "errors": 0, "retries": 2, "cache_hits": 0}


def test_retries_are_bounded():
    with scripted_server((503, {"error": "busy"}, {"Retry-After": "0"})) as (url, bodies):
        client = RetrieverClient(url, retries=2)
        error = failure(client, "q")
    assert (error.kind, len(bodies)) == ("overloaded", 3)
    assert str(error) == f"retriever at {url} answers 503: busy (3 attempts)"
    assert (client.counters.errors, client.counters.retries) == (1, 2)


def test_a_bad_request_is_not_retried():
    with scripted_server((400, {"error": "`topk` must be between 1 and 100, not 0."}, {})) as (url, bodies):
        error = failure(RetrieverClient(url, topk=0), "q")
    assert (error.kind, len(bodies)) == ("refused", 1)
    assert "answers 400: `topk` must be between 1 and 100, not 0." in str(error)


def test_a_refusal_that_is_nested_too_deeply_is_quoted():
    with scripted_server((400, b"[" * 100_000, {})) as (url, _):
        error = failure(RetrieverClient(url), "q")
    assert (error.kind, str(error)) == ("refused", f"retriever at {url} answers 400: {'[' * 300}")


@pytest.mark.parametrize(
    ("status", "payload", "what"),
    [
        (400, {"error": "one\x00\ntwo\ud800 \u202e\x1b[31mred"}, "answers 400: one two [31mred"),
        (404, b"\r\n <html>\tno </html>", "answers 404: <html> no </html>"),
        (307, b"", "answers 307: Temporary Redirect"),
        (204, b"", "answers 204: No Content"),
    ],
)
def test_a_refusal_is_quoted_in_one_line_that_any_stream_prints(status, payload, what):
    with scripted_server((status, payload, {})) as (url, _):
        error = failure(RetrieverClient(url), "q")
    assert (error.kind, error.what) == ("refused", what)


def test_the_total_deadline_ends_retries():
    with scripted_server((503, {"error": "busy"}, {"Retry-After": "3600"})) as (url, bodies):
        error = failure(RetrieverClient(url, deadline_s=5), "q")
    assert (error.kind, len(bodies)) == ("deadline", 1)
    assert str(error).endswith("answers 503: busy, and the deadline of 5 s leaves no further attempt")


def test_a_silent_server_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = failure(RetrieverClient(url, timeout_s=0.2, retries=1), "q")
    assert (error.kind, str(error)) == ("timeout", f"retriever at {url} does not answer within 0.2 s (2 attempts)")


def test_another_address_is_tried_when_one_fails():
    with scripted_server((200, GOOD, {})) as (url, _):
        client = RetrieverClient([unused_url(), url])
        for _ in range(4):
            assert ask(client, "q")[0][0].id == "p1"
    assert client.counters.retries == 1, "the address that failed rests"


def test_check_says_what_to_do_when_the_server_is_down():
    url = unused_url()
    with pytest.raises(RetrieverError) as caught:
        RetrieverClient(url).check()
    assert str(caught.value) == (
        f"retriever at {url} does not answer (connection refused); start it with "
        "`python -m retriever_server serve --index DIR --port 8000` or set agentic.retriever.urls"
    )
    assert caught.value.kind == "connection"


def test_check_refuses_another_service_at_the_address():
    with scripted_server((404, {"error": "not found"}, {})) as (url, _), pytest.raises(RetrieverError) as caught:
        RetrieverClient(url).check()
    assert str(caught.value) == f"retriever at {url} answers 404: not found"


def test_wait_ready_waits():
    url = unused_url()
    with pytest.raises(RetrieverError, match="connection refused"):
        asyncio.run(RetrieverClient(url).wait_ready(0.3))
    with scripted_server((503, {"error": "loading"}, {}), (200, {"result": [[]]}, {})) as (url, bodies):
        RetrieverClient(url).check(deadline_s=30)
    assert len(bodies) == 2


def test_empty_results_are_counted():
    with scripted_server((200, {"result": [[], []]}, {})) as (url, _):
        client = RetrieverClient(url)
        assert ask(client, "a", "b") == [[], []]
    assert (client.counters.queries, client.counters.empty) == (2, 2)


def test_cache_hits_are_what_the_servers_header_says():
    said = ["1", "-3", "\xb2", "nan", "", "9" * 5000]
    answers = [(200, GOOD, {"X-Cache-Hits": value}) for value in said]
    with scripted_server(*answers, (200, GOOD, {}), (200, GOOD, {"X-Cache-Hits": "77"})) as (url, _):
        client = RetrieverClient(url)
        for _ in range(len(said) + 1):
            client.retrieve_sync(["q"])
        assert client.counters.cache_hits == 1
        client.retrieve_sync(["q"])
    assert client.counters.cache_hits == 2, "no more than were asked"


def test_errors_are_counted_by_kind():
    with scripted_server((400, {"error": "no"}, {}), (200, {}, {}), (400, {"error": "no"}, {})) as (url, _):
        client = RetrieverClient(url)
        for _ in range(3):
            failure(client, "q")
    assert {name: value for name, value in client.counters.as_dict().items() if name.startswith("errors")} == {
        "errors": 3, "errors_refused": 2, "errors_shape": 1,
    }  # fmt: skip


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_in_seconds_and_as_a_date(status):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    impossible = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
    for asked, wait in (("1", 1.0), (date, 25.0), ("9" * 400, 25.0), ("soon", 0.1), ("-1", 0.1), (impossible, 0.1)):
        with scripted_server((status, {"error": "busy"}, {"Retry-After": asked}), (200, GOOD, {})) as (url, bodies):
            client = RetrieverClient(url, deadline_s=5, retries=1)
            before = time.monotonic()
            if wait > 5:
                assert failure(client, "q").kind == "deadline"
            else:
                assert ask(client, "q")[0][0].id == "p1"
                assert time.monotonic() - before >= wait
        assert len(bodies) == (1 if wait > 5 else 2)


def test_a_busy_server_does_not_keep_a_call_from_an_idle_one():
    with scripted_server((503, {"error": "busy"}, {"Retry-After": "3600"})) as (busy, _), \
            scripted_server((200, GOOD, {})) as (idle, _):  # fmt: skip
        client = RetrieverClient([idle, busy], deadline_s=60)
        assert [ask(client, "q")[0][0].id for _ in range(4)] == ["p1"] * 4
    assert client.counters.errors == 0


def test_no_queries_need_no_server():
    assert ask(RetrieverClient(unused_url())) == []


def test_synchronous_use_also_inside_a_running_loop():
    async def inside(client):
        return client.retrieve_sync(["q"])

    with scripted_server((200, GOOD, {})) as (url, _):
        client = RetrieverClient(url)
        assert client.retrieve_sync(["q"]) == asyncio.run(inside(client))
    assert client.counters.calls == 2


def test_client_and_error_pickle_after_use():
    with scripted_server((200, GOOD, {})) as (url, _):
        client = RetrieverClient(url, topk=5)
        client.retrieve_sync(["q"])
        again = pickle.loads(pickle.dumps(client))
        assert (again.topk, again.counters.calls) == (5, 1)
        assert ask(again, "q")[0][0].id == "p1"
    error = pickle.loads(pickle.dumps(RetrieverError("http://h", "timeout", "does not answer")))
    assert (str(error), error.kind) == ("retriever at http://h does not answer", "timeout")


def test_p43_a_proxy_in_the_environment_is_not_asked_for_this_machine(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")
    with scripted_server((200, GOOD, {})) as (url, _):
        assert ask(RetrieverClient(url, timeout_s=5, retries=0), "q")[0][0].id == "p1"


def test_a_far_address_is_asked_through_the_proxy(monkeypatch):
    with scripted_server((200, GOOD, {})) as (proxy, bodies):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        assert ask(RetrieverClient("http://search.example.org"), "q")[0][0].id == "p1"
    assert len(bodies) == 1
