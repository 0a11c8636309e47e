"""32 clients ask while real servers are killed, stopped or reloaded: no answer is wrong, none is lost needlessly."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage
from retriever_server.index import BuildOptions, build_index
from retriever_server.process import RunningServer, start_server
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.retriever import RetrieverClient

CLIENTS, TOPK = 32, 5
QUIET = BuildOptions(line=lambda text: None)


def passages(edition: str) -> list[Passage]:
    draw = random.Random(3)
    words = [f"{letter}{number}" for letter in "abcdefgh" for number in range(40)]
    return [Passage(f"p{row}", f'"T{row}"\n{" ".join(draw.choices(words, k=20))} {edition}') for row in range(400)]


def build(folder: Path, edition: str) -> None:
    """Build, or build anew, the index `folder`."""
    corpus = folder.with_suffix(".jsonl")
    lines = [json.dumps({"id": row.id, "contents": row.contents}) + "\n" for row in passages(edition)]
    corpus.write_text("".join(lines), encoding="utf-8")
    build_index(corpus, "bm25", folder, force=True, options=QUIET)


QUERIES = [" ".join(row.contents.split()[3:7]) for row in passages("first")[:200]]


def expected(edition: str) -> dict[str, list[tuple[str, str]]]:
    """For each query the ids and contents that a search in this process finds."""
    found = BM25Backend.from_passages(passages(edition)).search(QUERIES, TOPK)
    return {query: [(hit.id, hit.contents) for hit in hits] for query, hits in zip(QUERIES, found, strict=True)}


@pytest.fixture(scope="module")
def first() -> dict[str, list[tuple[str, str]]]:
    return expected("first")


@pytest.fixture
def index(tmp_path) -> Path:
    build(tmp_path / "index", "first")
    return tmp_path / "index"


Outcome = tuple[str, list[tuple[str, str]] | RetrieverError]


def ask(client: RetrieverClient, rounds: int, disturb: Callable[[], None]) -> list[Outcome]:
    """Ask every query `rounds` times, CLIENTS at once, and call `disturb` in a thread when a quarter is answered."""
    todo = iter(QUERIES * rounds)
    outcomes: list[Outcome] = []

    async def one_client():
        for query in todo:
            try:
                found = (await client.retrieve([query]))[0]
                outcomes.append((query, [(passage.id, passage.contents) for passage in found]))
            except RetrieverError as error:
                outcomes.append((query, error))

    async def disturber():
        while len(outcomes) < len(QUERIES) * rounds // 4:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(disturb)

    async def run():
        try:
            await asyncio.gather(disturber(), *[one_client() for _ in range(CLIENTS)])
        finally:
            await client.aclose()

    asyncio.run(run())
    assert len(outcomes) == len(QUERIES) * rounds
    return outcomes


def stop(server: RunningServer, signal_number: int) -> Callable[[], None]:
    return lambda: os.kill(server.process.pid, signal_number)


def test_kill_9_of_the_only_server_gives_right_answers_or_typed_errors(index, first):
    with start_server(index) as server:
        client = RetrieverClient(server.url, topk=TOPK, retries=1)
        outcomes = ask(client, 2, stop(server, signal.SIGKILL))
    errors = [found for _, found in outcomes if isinstance(found, RetrieverError)]
    assert errors, "the server died before all was asked"
    assert {error.kind for error in errors} == {"connection"}
    assert all(first[query] == found for query, found in outcomes if not isinstance(found, RetrieverError))
    assert client.counters.errors == client.counters.errors_by_kind["connection"] == len(errors)
    with start_server(index, port=int(server.url.rsplit(":", 1)[1])):
        again = client.retrieve_sync([QUERIES[0]])[0]
    assert [(passage.id, passage.contents) for passage in again] == first[QUERIES[0]]


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_with_two_servers_every_query_is_answered_though_one_is_killed_or_stopped(index, first, signal_number):
    with ExitStack() as servers:
        one, other = (servers.enter_context(start_server(index)) for _ in "12")
        client = RetrieverClient([one.url, other.url], topk=TOPK)
        outcomes = ask(client, 4, stop(one, signal_number))
        assert one.process.wait(30) == (0 if signal_number == signal.SIGTERM else -signal.SIGKILL)
    assert all(first[query] == found for query, found in outcomes)
    assert client.counters.errors == 0


def test_a_reload_under_load_fails_no_request_and_mixes_no_editions(index, first):
    second = expected("second")

    def reload() -> None:
        build(index, "second")
        os.kill(server.process.pid, signal.SIGHUP)

    with start_server(index, options=("--cache-mb", "1")) as server:
        client = RetrieverClient(server.url, topk=TOPK, retries=0)
        outcomes = ask(client, 6, reload)
        deadline = time.monotonic() + 60
        while client.retrieve_sync([QUERIES[0]])[0][0].contents.endswith(" first"):
            assert time.monotonic() < deadline, server.log_path.read_text()[-2000:]
            time.sleep(0.05)
        after = {query: client.retrieve_sync([query])[0] for query in QUERIES[:20]}
    assert all(found in (first[query], second[query]) for query, found in outcomes)
    assert (client.counters.errors, client.counters.retries) == (0, 0)
    assert all([(p.id, p.contents) for p in found] == second[query] for query, found in after.items())


def test_p43_the_start_up_check_of_a_real_server_goes_past_a_proxy(index, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")
    with start_server(index) as server:
        (found,) = RetrieverClient(server.url, timeout_s=10).check_startup(concurrent=2)
        client = RetrieverClient(server.url, topk=TOPK)
        for _ in range(2):
            client.retrieve_sync([QUERIES[0], QUERIES[1]])
    assert found.canaries == 8
    assert client.counters.cache_hits == 2, "the second time both were remembered"
