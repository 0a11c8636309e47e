"""The chat client against a real server on loopback that answers as scripted."""

import asyncio
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from http_servers import JsonHandler, serving

from verl_agentic.clients import chat
from verl_agentic.clients.chat import ChatClient
from verl_agentic.clients.errors import ChatError

HELLO = [{"role": "user", "content": "hello"}]
SAMPLING = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 8}
KEY = "sk-very-secret-0123456789"


def reply(content: object, finish_reason: str = "stop") -> dict:
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}]}


@dataclass
class Seen:
    paths: list[str] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    most_at_once: int = 0


class Drop:
    """Announces a body, sends half of it, and closes the connection."""


@contextmanager
def endpoint(*script: object, slow_s: float = 0.0) -> Iterator[tuple[str, Seen]]:
    """A server that answers the script in turn, its last entry for ever: (status, payload, headers) or Drop."""
    seen, lock, busy = Seen(), threading.Lock(), 0

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            nonlocal busy
            with lock:
                busy += 1
                seen.most_at_once = max(seen.most_at_once, busy)
                seen.paths.append(self.path)
                seen.bodies.append(self.body())
                seen.keys.append(self.headers["Authorization"])
                answer = script[min(len(seen.bodies), len(script)) - 1]
            time.sleep(slow_s)
            with lock:
                busy -= 1
            if isinstance(answer, Drop):
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
            else:
                self.answer(*answer)

    with serving(Handler) as url:
        yield url, seen


def client(*urls: str, retries: int = 0, concurrency: int = 8, timeout_s: float = 20.0, **more: object) -> ChatClient:
    return ChatClient(
        urls, "some-model", timeout_s=timeout_s, deadline_s=30.0, retries=retries, concurrency=concurrency, **more
    )


async def ask(asked: ChatClient, times: int = 1) -> list[str]:
    try:
        return await asyncio.gather(*[asked.complete(HELLO, **SAMPLING) for _ in range(times)])
    finally:
        await asked.aclose()


def failure(asked: ChatClient) -> ChatError:
    with pytest.raises(ChatError) as caught:
        asyncio.run(ask(asked))
    return caught.value


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_conversation_is_posted_and_the_reply_returned(ending):
    with endpoint((200, reply("hi there"))) as (url, seen):
        asked = client(url + ending)
        assert asyncio.run(ask(asked)) == ["hi there"]
        assert asked.urls == (url,)
    assert seen.paths == ["/v1/chat/completions"]
    assert seen.bodies == [
        {
            "model": "some-model",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": 8,
            "stream": False,
        }
    ]
    assert seen.keys == [None]


def test_stop_strings_are_sent():
    with endpoint((200, reply("hi"))) as (url, seen):
        asyncio.run(client(url).complete(HELLO, **SAMPLING, stop=["</search>"]))
    assert seen.bodies[0]["stop"] == ["</search>"]


@pytest.mark.parametrize("first", [(429, {}, {"Retry-After": "0"}), (500, {}), (503, {}), Drop()])
def test_a_failed_attempt_is_followed_by_another(first):
    with endpoint(first, (200, reply("hi"))) as (url, seen):
        assert asyncio.run(ask(client(url, retries=1))) == ["hi"]
    assert len(seen.bodies) == 2


def test_another_address_takes_over_from_one_that_refuses_connections():
    with endpoint((200, reply("hi"))) as (url, _):
        asked = client(free_address(), url, retries=1)
        assert asyncio.run(ask(asked, times=4)) == ["hi"] * 4


@pytest.mark.parametrize(
    ("answer", "reason", "says"),
    [
        ((429, {"error": {"message": "slow down"}}), "status", "answers 429: slow down (1 attempts)"),
        ((500, b"oh no"), "status", "answers 500: oh no (1 attempts)"),
        ((404, {"error": {"message": "no such model"}}), "status", "answers 404: no such model"),
        ((307, {"error": "there"}, {"Location": "http://127.0.0.1:9/"}), "status", "answers 307: there"),
        (Drop(), "connection", "does not answer"),
        ((200, b"<html>"), "shape", "something that is not JSON"),
        ((200, [1]), "shape", "there is no list `choices`"),
        ((200, {"choices": ["text"]}), "shape", "`choices[0].message.content` is no text"),
        ((200, {"choices": [{"message": "hi"}]}), "shape", "`choices[0].message.content` is no text"),
        ((200, reply(["hi"])), "shape", "`choices[0].message.content` is no text"),
        ((200, b"[" * 100_000), "shape", "nested too deeply"),
        ((200, {"choices": []}), "empty", "gives no text"),
        ((200, reply(None)), "empty", "gives no text"),
        ((200, reply(" \n")), "empty", "gives no text"),
        ((200, reply("a rather long", "length")), "truncated", "cut off (length)"),
        ((200, reply("a rather", "content_filter")), "truncated", "cut off (content_filter)"),
    ],
)
def test_a_failure_has_a_reason_and_one_sentence(answer, reason, says):
    with endpoint(answer) as (url, seen):
        error = failure(client(url))
    assert error.reason == reason
    assert str(error).startswith(f"chat endpoint at {url} ")
    assert says in str(error)
    assert "\n" not in str(error)
    assert len(seen.bodies) == 1


def test_a_refused_connection_is_a_reason_of_its_own():
    error = failure(client(free_address()))
    assert error.reason == "connection"
    assert "connection refused" in str(error)


def test_a_slow_reply_is_a_timeout():
    with endpoint((200, reply("late")), slow_s=1.0) as (url, _):
        error = failure(client(url, timeout_s=0.2))
    assert error.reason == "timeout"


def test_an_endless_reply_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(chat, "LARGEST_ANSWER", 1000)
    with endpoint((200, reply("x" * 1000))) as (url, _):
        error = failure(client(url))
    assert error.reason == "shape"
    assert "answers more than 1000 bytes" in str(error)


def test_a_status_that_no_attempt_mends_is_asked_once():
    with endpoint((401, {"error": {"message": "who are you"}})) as (url, seen):
        error = failure(client(url, retries=3))
    assert (error.reason, error.status) == ("status", 401)
    assert len(seen.bodies) == 1


def test_calls_under_way_are_capped_in_every_loop():
    with endpoint((200, reply("hi")), slow_s=0.02) as (url, seen):
        asked = client(url, concurrency=3)
        assert asyncio.run(ask(asked, times=12)) == ["hi"] * 12
        assert asyncio.run(ask(asked, times=12)) == ["hi"] * 12
    assert seen.most_at_once == 3


def test_a_pickled_client_works():
    with endpoint((200, reply("hi"))) as (url, _):
        asked = client(url)
        asyncio.run(ask(asked))
        assert asyncio.run(ask(pickle.loads(pickle.dumps(asked)))) == ["hi"]


def test_an_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(ChatError("http://h", "refused", "answers 401: no", 401)))
    assert (str(error), error.reason, error.status) == ("chat endpoint at http://h answers 401: no", "status", 401)


def test_the_key_of_the_environment_is_sent_and_found_nowhere_else(monkeypatch, caplog):
    caplog.set_level(0)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with endpoint((401, {"error": {"message": f"Incorrect API key: {KEY}."}})) as (url, seen):
        asked = client(url)
        error = failure(asked)
        assert KEY.encode() not in pickle.dumps(asked)
    assert seen.keys == [f"Bearer {KEY}"]
    assert "Incorrect API key: ***." in str(error)
    assert KEY not in caplog.text
    assert KEY not in repr(vars(asked))


def test_the_variable_of_the_key_can_be_another(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("JUDGE_KEY", "other")
    with endpoint((200, reply("hi"))) as (url, seen):
        asyncio.run(ask(client(url, api_key_variable="JUDGE_KEY")))
    assert seen.keys == ["Bearer other"]


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\nbreak"])
def test_a_key_that_no_header_can_hold_is_not_sent_and_not_shown(key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with endpoint((200, reply("hi"))) as (url, seen):
        error = failure(client(url))
    assert "the environment variable OPENAI_API_KEY holds what no HTTP header may hold" in str(error)
    assert key not in str(error)
    assert error.reason == "status"
    assert seen.bodies == []


@pytest.mark.parametrize("url", ["http://me:secret@host:1", "http://host:1/v1?key=secret", "http://host:1#secret"])
def test_an_address_with_a_secret_in_it_is_refused_without_showing_it(url):
    with pytest.raises(ValueError, match="chat endpoint at host holds more than a host and a path") as caught:
        client(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"timeout_s": 0.0}, {"retries": -1}, {"concurrency": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be above 0, retries at least 0 and concurrency at least 1"):
        client("http://127.0.0.1:1", **wrong)


@pytest.mark.parametrize("urls", [[], ["127.0.0.1:8001"]])
def test_addresses_that_cannot_be_asked_are_refused(urls):
    with pytest.raises(ValueError, match=r"at least one address|not an address like"):
        client(*urls)


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"
