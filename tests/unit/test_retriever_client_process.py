"""The client and its process: variables of the environment, forks, threads, cancelled calls, settings."""

import asyncio
import json
import math
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retriever_server.index import build_index
from retriever_server.process import start_server
from verl_agentic.clients.retriever import RetrieverClient, RetrieverError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "a", "contents": "red fox"}) + "\n")
    build_index(folder / "corpus.jsonl", "bm25", folder / "index")
    with start_server(folder / "index") as server:
        yield server.url


@pytest.mark.parametrize(
    ("name", "value"),
    [("ALL_PROXY", "gopher://192.0.2.1:9"), ("NO_PROXY", "[::"), ("SSL_CERT_FILE", "/nowhere/at/all")],
)
def test_variables_that_no_connection_can_be_made_with_are_one_typed_error(monkeypatch, url, name, value):
    monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(name, value)
    client = RetrieverClient("http://search.example.org", retries=3)
    with pytest.raises(RetrieverError) as caught:
        client.retrieve_sync(["red"])
    assert str(caught.value).endswith("; mend the proxy or SSL_CERT variables of the environment")
    assert (caught.value.kind, client.counters.errors, client.counters.retries) == ("connection", 1, 0)
    assert RetrieverClient(url).retrieve_sync(["red"])[0][0].id == "a", "this machine needs none of them"


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"timeout_s": 0}, {"deadline_s": -1.0}, {"timeout_s": math.nan}])
def test_settings_by_which_nothing_could_be_asked_are_refused(wrong):
    with pytest.raises(ValueError, match="timeout_s and deadline_s must be above 0 and retries at least 0, got"):
        RetrieverClient("http://127.0.0.1:9", **wrong)


def test_endless_times_are_fine(url):
    client = RetrieverClient(url, timeout_s=math.inf, deadline_s=math.inf)
    assert client.retrieve_sync(["red"])[0][0].id == "a"


def test_seconds_are_counted_also_for_failed_calls():
    client = RetrieverClient("http://127.0.0.1:9", retries=1)
    before = time.monotonic()
    with pytest.raises(RetrieverError):
        client.retrieve_sync(["red"])
    assert 0 < client.counters.seconds <= time.monotonic() - before


FORKED = """
import os, sys
from verl_agentic.clients.retriever import RetrieverClient

client = RetrieverClient(sys.argv[1])
print(client.retrieve_sync(["red"])[0][0].id, flush=True)
child = os.fork()
if child == 0:
    print(client.retrieve_sync(["red"])[0][0].id, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(client.retrieve_sync(["red"])[0][0].id, flush=True)
"""


def test_p33_synchronous_use_goes_on_in_a_forked_child(url):
    command = [sys.executable, "-c", FORKED, url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "a\na\na\n"


def test_event_loops_in_several_threads_share_a_client_whose_counters_are_right(url):
    client = RetrieverClient(url)

    async def many():
        try:
            await asyncio.gather(*[client.retrieve(["red", "nothing"]) for _ in range(25)])
        finally:
            await client.aclose()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(lambda: asyncio.run(many())) for _ in range(8)]:
            done.result(60)
    counted = client.counters
    assert (counted.calls, counted.queries, counted.empty, counted.errors) == (200, 400, 200, 0)


def test_a_call_that_is_cancelled_leaves_nothing_in_flight_and_the_client_usable(url):
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = RetrieverClient([f"http://127.0.0.1:{silent.getsockname()[1]}", url])
            calls = [asyncio.create_task(client.retrieve(["red"])) for _ in range(8)]
            await asyncio.sleep(0.3)
            stuck = [call for call in calls if not call.done()]
            for call in stuck:
                call.cancel()
            ended = await asyncio.gather(*stuck, return_exceptions=True)
        assert stuck
        assert {type(error) for error in ended} == {asyncio.CancelledError}
        assert set(client.endpoints._in_flight.values()) == {0}
        assert (await client.retrieve(["red"]))[0][0].id == "a"
        await client.aclose()
        return client.counters

    assert asyncio.run(run()).errors == 0
