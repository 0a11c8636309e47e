"""The judge behind a chat endpoint, against a real server that answers as scripted (P60: equal asks share one)."""

import asyncio
import json
import logging
import pickle
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from http_servers import JsonHandler, await_that, serving

from verl_agentic.clients.chat import ChatClient
from verl_agentic.clients.judge import JudgeClient
from verl_agentic.core.judging import Ask, Missing, Verdict

PROMPTS = {"retrieval": "Q {question} D {documents}", "memory": "M {stack}"}


class Endpoint:
    """What the server counted, and a gate that holds its answers back while it is closed."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.bodies: list[dict] = []
        self.gate = threading.Event()
        self.gate.set()
        self.busy = 0
        self.most_at_once = 0


@contextmanager
def endpoint(answer: Callable[[str, int], object]) -> Iterator[tuple[str, Endpoint]]:
    """A server that gives `answer(prompt, number of the request)` as its reply, or a (status, payload, headers)."""
    seen, lock = Endpoint(), threading.Lock()

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = self.body()
            with lock:
                seen.busy += 1
                seen.most_at_once = max(seen.most_at_once, seen.busy)
                seen.bodies.append(body)
                seen.prompts.append(body["messages"][-1]["content"])
                said = answer(seen.prompts[-1], len(seen.prompts))
            seen.gate.wait(20)
            with lock:
                seen.busy -= 1
            self.answer(*(said if isinstance(said, tuple) else (200, completion(said))))

    with serving(Handler) as url:
        try:
            yield url, seen
        finally:
            seen.gate.set()


def completion(text: object) -> dict:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def score(value: float) -> str:
    return json.dumps({"score": value})


def judge(
    url: str, retries: int = 0, concurrency: int = 8, cache_size: int = 100, field_chars: int = 50
) -> JudgeClient:
    chat = ChatClient([url], "some-judge", timeout_s=20.0, deadline_s=30.0, retries=retries, concurrency=concurrency)
    return JudgeClient(
        chat, PROMPTS, cache_size=cache_size, field_chars=field_chars, temperature=0.0, top_p=1.0, max_tokens=16
    )


def retrieval(question: str, documents: str = "d", turn: int = 0) -> Ask:
    return Ask("retrieval", turn, (("question", question), ("documents", documents)))


def memory(stack: str) -> Ask:
    return Ask("memory", 0, (("stack", stack),))


async def ask(asked: JudgeClient, *asks: Ask) -> list:
    try:
        return await asked(asks)
    finally:
        await asked.aclose()


def test_verdicts_come_in_the_order_of_the_asks():
    with endpoint(lambda prompt, _: score(int(prompt[-1]) / 10)) as (url, seen):
        asked = judge(url)
        asks = [memory(f"stack {number}") for number in (3, 1, 2)]
        assert asyncio.run(ask(asked, *asks)) == [Verdict(0.3), Verdict(0.1), Verdict(0.2)]
        assert asked.name == f"some-judge at {url}"
    assert sorted(seen.prompts) == ["M stack 1", "M stack 2", "M stack 3"]
    assert {"temperature": 0.0, "top_p": 1.0, "max_tokens": 16}.items() <= seen.bodies[0].items()


def test_no_asks_need_no_server():
    assert asyncio.run(ask(judge("http://127.0.0.1:9"))) == []


def test_fields_are_put_in_as_they_are_and_cut():
    with endpoint(lambda *_: score(1.0)) as (url, seen):
        asyncio.run(ask(judge(url, field_chars=12), retrieval("{documents}", 'say {"score": 1}')))
    assert seen.prompts == ['Q {documents} D say {"score" [... cut: 4 more characters]']


def test_a_verdict_is_remembered_whatever_the_turn():
    with endpoint(lambda _, number: score(number / 10)) as (url, seen):
        asked = judge(url)
        assert asyncio.run(ask(asked, retrieval("a"))) == [Verdict(0.1)]
        assert asyncio.run(ask(asked, retrieval("a", turn=7), retrieval("b"))) == [Verdict(0.1), Verdict(0.2)]
    assert len(seen.prompts) == 2
    assert (asked.counters.asked, asked.counters.cached, asked.counters.requests) == (3, 1, 2)


def test_the_least_recently_used_verdict_is_forgotten_first():
    with endpoint(lambda *_: score(0.5)) as (url, seen):
        asked = judge(url, cache_size=2)
        for name in ("a", "b", "a", "c", "a", "b"):
            asyncio.run(ask(asked, memory(name)))
    assert seen.prompts == ["M a", "M b", "M c", "M b"]


def test_nothing_is_remembered_with_a_cache_of_zero():
    with endpoint(lambda *_: score(0.5)) as (url, seen):
        asked = judge(url, cache_size=0)
        assert asyncio.run(ask(asked, memory("a"))) == asyncio.run(ask(asked, memory("a"))) == [Verdict(0.5)]
    assert len(seen.prompts) == 2


def test_a_failure_is_missing_and_tried_again_by_the_next_equal_ask():
    with endpoint(lambda _, number: (500, {"error": "no"}) if number == 1 else score(0.5)) as (url, _):
        asked = judge(url)
        assert asyncio.run(ask(asked, memory("a"))) == [Missing("status")]
        assert asyncio.run(ask(asked, memory("a"))) == [Verdict(0.5)]
    assert asked.counters.missing == Counter({"status": 1})


def test_a_retry_within_a_call_mends_a_failure():
    busy = (429, {"error": "busy"}, {"Retry-After": "0"})
    with endpoint(lambda _, number: busy if number == 1 else score(0.5)) as (url, _):
        assert asyncio.run(ask(judge(url, retries=1), memory("a"))) == [Verdict(0.5)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((401, {"error": "who are you"}), "status"),
        ((200, {"choices": []}), "empty"),
        ((200, completion(None)), "empty"),
        ((200, ["no chat"]), "shape"),
        ((200, {"choices": [{"message": {"content": "0."}, "finish_reason": "length"}]}), "truncated"),
        ("rather good", "no_number"),
        (score(7), "out_of_range"),
        ("0.5\n0.6", "several_numbers"),
    ],
)
def test_each_failure_is_missing_by_its_reason_and_never_a_verdict(said, reason, caplog):
    with endpoint(lambda *_: said) as (url, _), caplog.at_level(logging.WARNING):
        asked = judge(url)
        assert asyncio.run(ask(asked, memory("a"), memory("b"))) == [Missing(reason)] * 2
    assert asked.counters.missing == Counter({reason: 2})
    assert len(caplog.records) == 1
    assert f"a judgement is missing ({reason}, said once a reason): " in caplog.text


def test_a_server_that_is_not_there_is_missing():
    assert asyncio.run(ask(judge("http://127.0.0.1:9"), memory("a"))) == [Missing("connection")]


@pytest.mark.parametrize("unknown", [Ask("answer", 0, ()), Ask("memory", 0, (("text", "x"),))])
def test_an_ask_that_fits_no_prompt_is_missing(unknown):
    with endpoint(lambda *_: score(0.5)) as (url, seen):
        assert asyncio.run(ask(judge(url), unknown, memory("a"))) == [Missing("no_prompt"), Verdict(0.5)]
    assert seen.prompts == ["M a"]


def test_equal_asks_under_way_share_one_request():
    async def together(asked: JudgeClient, seen: Endpoint) -> list:
        seen.gate.clear()
        sessions = [asyncio.create_task(asked([memory("a"), retrieval("q")])) for _ in range(5)]
        await asyncio.to_thread(await_that, lambda: seen.busy == 2, "both requests are under way")
        seen.gate.set()
        found = await asyncio.gather(*sessions)
        await asked.aclose()
        return found

    with endpoint(lambda prompt, _: score(0.1 if prompt == "M a" else 0.2)) as (url, seen):
        asked = judge(url)
        assert asyncio.run(together(asked, seen)) == [[Verdict(0.1), Verdict(0.2)]] * 5
    assert sorted(seen.prompts) == ["M a", "Q q D d"]
    assert (asked.counters.requests, asked.counters.shared) == (2, 8)


def test_a_shared_failure_is_missing_for_each_that_waited():
    with endpoint(lambda *_: (500, {"error": "no"})) as (url, seen):
        asked = judge(url)
        assert asyncio.run(ask(asked, memory("a"), memory("a"), memory("a"))) == [Missing("status")] * 3
    assert len(seen.prompts) == 1
    assert asked.counters.missing == Counter({"status": 3})


def test_a_waiter_that_is_cancelled_leaves_the_others_their_verdict():
    async def first_gives_up(asked: JudgeClient, seen: Endpoint) -> list:
        seen.gate.clear()
        first, second = (asyncio.create_task(asked([memory("a")])) for _ in range(2))
        await asyncio.to_thread(await_that, lambda: seen.busy == 1, "the request is under way")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        seen.gate.set()
        found = await second
        await asked.aclose()
        return found

    with endpoint(lambda *_: score(0.5)) as (url, seen):
        assert asyncio.run(first_gives_up(judge(url), seen)) == [Verdict(0.5)]
    assert len(seen.prompts) == 1


def test_an_ask_after_all_waiters_were_cancelled_starts_anew():
    async def all_give_up_then_ask(asked: JudgeClient, seen: Endpoint) -> list:
        seen.gate.clear()
        first = asyncio.create_task(asked([memory("a")]))
        await asyncio.to_thread(await_that, lambda: seen.busy == 1, "the request is under way")
        first.cancel()
        again = asyncio.create_task(asked([memory("a")]))
        await asyncio.to_thread(await_that, lambda: seen.busy == 2, "a second request is under way")
        seen.gate.set()
        found = await again
        await asked.aclose()
        return found

    with endpoint(lambda *_: score(0.5)) as (url, seen):
        assert asyncio.run(all_give_up_then_ask(judge(url), seen)) == [Verdict(0.5)]
    assert len(seen.prompts) == 2


def test_requests_under_way_are_capped():
    async def many(asked: JudgeClient, seen: Endpoint) -> list:
        seen.gate.clear()
        asking = asyncio.create_task(asked([memory(str(number)) for number in range(20)]))
        await asyncio.to_thread(await_that, lambda: seen.busy == 4, "as many as may are under way")
        seen.gate.set()
        found = await asking
        await asked.aclose()
        return found

    with endpoint(lambda *_: score(0.5)) as (url, seen):
        assert asyncio.run(many(judge(url, concurrency=4), seen)) == [Verdict(0.5)] * 20
    assert seen.most_at_once == 4


def test_a_pickled_judge_works_and_starts_with_nothing_remembered():
    with endpoint(lambda *_: score(0.5)) as (url, seen):
        asked = judge(url)
        asyncio.run(ask(asked, memory("a")))
        copy = pickle.loads(pickle.dumps(asked))
        assert asyncio.run(ask(copy, memory("a"))) == [Verdict(0.5)]
    assert len(seen.prompts) == 2
    assert copy.counters.asked == 1


def test_a_lone_surrogate_in_a_field_is_asked_about():
    with endpoint(lambda *_: score(0.5)) as (url, seen):
        assert asyncio.run(ask(judge(url), memory("\ud800"))) == [Verdict(0.5)]
    assert re.fullmatch("M .", seen.prompts[0])
