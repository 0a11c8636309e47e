"""What is asked of a retriever before a run: does it answer, does it find its own passages, how fast is it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retriever_server.schema import Document, parse_response, render_request
from verl_agentic.clients.errors import RetrieverError, RetryableError
from verl_agentic.clients.transport import Transport

PROBE_TIMEOUT_S = 10.0
PROBE_PAUSE_S = 0.2
QUERIES = 64  # asked to measure the throughput, or as many as fit into MEASURE_S
MEASURE_S = 5.0
HINT = "start it with `python -m retriever_server serve --index DIR --port 8000` or set agentic.retriever.urls"


@dataclass(frozen=True)
class ServerCheck:
    """What a start-up check found: `canaries` that came first (None: the server names none), and its throughput."""

    url: str
    canaries: int | None
    queries_per_s: float
    concurrent: int

    def __str__(self) -> str:
        held = (
            "its /info names no canaries, so whether it finds the right passages is not checked"
            if self.canaries is None
            else f"{self.canaries} canaries come first"
        )
        return f"retriever at {self.url}: {held}; {self.queries_per_s:.0f} queries/s at {self.concurrent} at a time"


async def check_servers(
    servers: Sequence[Transport], topk: int | None, concurrent: int, min_queries_per_s: float
) -> list[ServerCheck]:
    """Check servers one after another, each given as a transport to it alone, which is closed then.

    Raises RetrieverError: one does not answer, a canary does not come first, or it is slower than `min_queries_per_s`.
    """
    return [await _check_server(server, topk, concurrent, min_queries_per_s) for server in servers]


async def _check_server(
    transport: Transport, topk: int | None, concurrent: int, min_queries_per_s: float
) -> ServerCheck:
    url = transport.endpoints.urls[0]
    try:
        await wait_ready(transport, url, 0.0)
        canaries = await _canaries(transport, url)
        await _check_canaries(transport, url, canaries)
        speed = await _queries_per_s(transport, topk, concurrent)
    finally:
        await transport.aclose()
    if speed < min_queries_per_s:
        what = (
            f"answers {speed:.1f} queries/s at {concurrent} at a time, agentic.retriever.min_queries_per_s asks for "
            f"{min_queries_per_s:g}; add servers to agentic.retriever.urls, choose a faster index, or lower it"
        )
        raise RetrieverError(url, "slow", what)
    return ServerCheck(url, len(canaries) or None, speed, concurrent)


async def wait_ready(transport: Transport, url: str, deadline_s: float) -> None:
    """Wait until `url` answers a test query; after `deadline_s` RetrieverError says what to do."""
    deadline = time.monotonic() + deadline_s
    content = json.dumps(render_request(["ready"], 1)).encode()
    while True:
        try:
            answer = await transport.attempt(url, "/retrieve", content, PROBE_TIMEOUT_S)
            answer.read(lambda payload: parse_response(payload, 1))
            return
        except RetryableError as failure:
            if time.monotonic() >= deadline:
                raise RetrieverError(url, failure.error.kind, f"{failure.error.what}; {HINT}") from failure
        await asyncio.sleep(PROBE_PAUSE_S)


async def _canaries(transport: Transport, url: str) -> list[tuple[str, str]]:
    """Return the (query, id) pairs of /info; none where the server is another make, without them."""
    try:
        answer = await transport.attempt(url, "/info", None, PROBE_TIMEOUT_S)
        info = json.loads(answer.content)
    except (RetrieverError, RetryableError, ValueError, RecursionError):
        return []
    found = info.get("canaries") if isinstance(info, dict) else None
    return [(item["query"], item["id"]) for item in found if _is_canary(item)] if isinstance(found, list) else []


def _is_canary(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("query"), str) and isinstance(item.get("id"), str)


async def _check_canaries(transport: Transport, url: str, canaries: Sequence[tuple[str, str]]) -> None:
    results = await _retrieve(transport, [query for query, _ in canaries], 1) if canaries else []
    firsts = [documents[0].id if documents else None for documents in results]
    wrong = [(id, first) for (_, id), first in zip(canaries, firsts, strict=True) if first != id]
    if wrong:
        id, first = wrong[0]
        found = "nothing" if first is None else f"passage {first!r}"
        what = (
            f"finds {found} by the first words of passage {id!r} ({len(wrong)} of {len(canaries)} canaries fail): its "
            "index and encoder do not belong together, or another server answers there; build the index again"
        )
        raise RetrieverError(url, "canary", what)


async def _queries_per_s(transport: Transport, topk: int | None, concurrent: int) -> float:
    """Ask different queries (no cache helps), `concurrent` at a time, and return how many were answered a second."""
    first = time.time_ns() // 1000  # a server may still remember the queries of the run before
    numbers = iter(range(first, first + QUERIES))
    started = time.monotonic()
    answered = 0

    async def ask_in_turn() -> None:
        nonlocal answered
        for number in numbers:
            if time.monotonic() - started > MEASURE_S:
                return
            await _retrieve(transport, [f"who founded town number {number} on the river, and in which year"], topk)
            answered += 1

    await asyncio.gather(*[ask_in_turn() for _ in range(concurrent)])
    return answered / (time.monotonic() - started)


async def _retrieve(transport: Transport, queries: Sequence[str], topk: int | None) -> list[list[Document]]:
    answer = await transport.call("/retrieve", render_request(queries, topk))
    return answer.read(lambda payload: parse_response(payload, len(queries)))
