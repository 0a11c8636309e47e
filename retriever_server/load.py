"""A load generator: closed-loop clients on keep-alive connections, in one thread and with little CPU of its own."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from retriever_server.errors import RetrieverServerError
from retriever_server.schema import ResponseError, parse_response, render_request

RECONNECT_S = 0.02
GIVE_UP_S = 60.0  # for the answers still to come when the time is over
Check = Callable[[int, Any], str]  # query's position, decoded answer -> what is wrong with it, or ""


@dataclass
class LoadReport:
    """What `clients` clients saw: a latency in ms for each answer within `seconds`, and errors by kind.

    `cpu_share` is the generator's own processor time by wall time; `cache_hits` counts what the server says it kept.
    """

    clients: int
    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    cache_hits: int = 0
    seconds: float = 0.0
    cpu_share: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies_ms) / self.seconds if self.seconds else 0.0

    def percentile_ms(self, share: float) -> float:
        """Return the latency that `share` (0 to 1) of the answers did not exceed, by nearest rank; 0 without any."""
        ranked = sorted(self.latencies_ms)
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "clients": self.clients,
            "answers": len(self.latencies_ms),
            "rate": round(self.rate, 2),
            "p50_ms": round(self.percentile_ms(0.5), 2),
            "p99_ms": round(self.percentile_ms(0.99), 2),
            "errors": dict(self.errors),
            "cache_hits": self.cache_hits,
            "seconds": round(self.seconds, 2),
            "generator_cpu_share": round(self.cpu_share, 3),
        }


def run_load(
    url: str,
    queries: Iterator[str],
    clients: int,
    *,
    topk: int | None = 3,
    seconds: float | None = None,
    check: Check | None = None,
) -> LoadReport:
    """Ask `url` for `queries`, one a request, from `clients` connections at once, each as soon as it has its answer.

    Ends with `queries`, or after `seconds`. Every answer's shape is checked, and its content by `check`; an answer that
    fails, another status, or a lost connection counts as an error, and the next query is asked. So does an answer that
    is missing GIVE_UP_S after `seconds`. Raises RetrieverServerError unless `url` is an http address.
    """
    return asyncio.run(_Load(url, queries, clients, topk, check).run(seconds))


class _Load:
    """One run: the queries still to ask, and the report that the clients fill."""

    def __init__(self, url: str, queries: Iterator[str], clients: int, topk: int | None, check: Check | None) -> None:
        self.address, self.head = _target(url)
        self.report = LoadReport(clients)
        self._queries = enumerate(queries)
        self._topk = topk
        self._check = check
        self._until = float("inf")

    async def run(self, seconds: float | None) -> LoadReport:
        loop = asyncio.get_running_loop()
        started, cpu = time.monotonic(), time.process_time()
        if seconds is not None:
            self._until = started + seconds
        clients = [_Client(self, loop) for _ in range(self.report.clients)]
        for client in clients:
            client.connect()
        _, silent = await asyncio.wait(
            [client.done for client in clients], timeout=None if seconds is None else seconds + GIVE_UP_S
        )
        if silent:
            self.report.errors["no answer"] += len(silent)
            for client in clients:
                client.give_up()
        elapsed = time.monotonic() - started
        self.report.cpu_share = (time.process_time() - cpu) / elapsed
        self.report.seconds = min(elapsed, seconds or elapsed)
        return self.report

    def next_request(self) -> tuple[int, bytes] | None:
        """Return the next query's position and request, or None when it is time to end."""
        if time.monotonic() >= self._until:
            return None
        following = next(self._queries, None)
        if following is None:
            return None
        position, query = following
        body = json.dumps(render_request([query], self._topk)).encode()
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        return position, self.head + length + body

    def answered(self, position: int, head: bytes, body: bytes, milliseconds: float) -> None:
        """Check one answer and count it; one that came after the time is left out."""
        status = head[9:12].decode()
        wrong = f"status {status}" if status != "200" else self._wrong(position, body)
        if wrong:
            self.report.errors[wrong] += 1
        elif time.monotonic() < self._until:
            self.report.latencies_ms.append(milliseconds)
            self.report.cache_hits += b"\r\nx-cache-hits: 1" in head.lower()

    def _wrong(self, position: int, body: bytes) -> str:
        try:
            answer = json.loads(body)
            parse_response(answer, 1)
        except (ValueError, ResponseError) as error:
            return f"shape: {error}"
        return self._check(position, answer) if self._check else ""


class _Client(asyncio.Protocol):
    """One connection: sends a request, collects its answer, sends the next."""

    def __init__(self, load: _Load, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._load = load
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._asked: int | None = None
        self._received = bytearray()
        self._wanted: int | None = None  # bytes of the whole answer, once its head is here

    def connect(self) -> None:
        """Connect, and again after a while when nobody listens."""
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: self, *self._load.address)
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            self._load.report.errors["connection refused" if refused else f"no connection ({error})"] += 1
            if self._load.next_request() is None:
                self.done.set_result(None)
            else:
                self._loop.call_later(RECONNECT_S, self.connect)

    def give_up(self) -> None:
        """Close the connection, if there is one, without waiting for an answer."""
        self._asked = None
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received.clear()
        self._send(transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._wanted is None:
            self._wanted = _length(self._received)
        if self._wanted is not None and len(self._received) >= self._wanted:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if self._asked is not None:
            self._load.report.errors["connection lost"] += 1
            self._asked = self._wanted = None
        if not self.done.done():
            self._loop.call_later(RECONNECT_S, self.connect)

    def _send(self, transport: asyncio.Transport) -> None:
        request = self._load.next_request()
        if request is None:
            self.done.set_result(None)
            transport.close()
            return
        self._asked = request[0]
        self._began = time.perf_counter()
        transport.write(request[1])

    def _finish(self) -> None:
        milliseconds = 1000 * (time.perf_counter() - self._began)
        head, _, body = bytes(self._received).partition(b"\r\n\r\n")
        assert self._asked is not None  # an answer is only collected while a request is open
        assert self._transport
        self._load.answered(self._asked, head, body, milliseconds)
        self._received.clear()
        self._asked = self._wanted = None
        if b"\r\nconnection: close" in head.lower():
            self._transport.close()
        else:
            self._send(self._transport)


def _target(url: str) -> tuple[tuple[str, int], bytes]:
    """Return the host and port of `url`, and the first lines of a request to it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host = None
    if not host or parts.scheme != "http":
        raise RetrieverServerError(f"{url!r} is not an address like http://127.0.0.1:8000.")
    head = f"POST {parts.path.rstrip('/')}/retrieve HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    return (host, port), head.encode()


def _length(received: bytearray) -> int | None:
    """Return the length of the whole answer, once its head has come."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    for line in bytes(received[:end]).lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return end + 4 + int(line.split(b":")[1])
    return end + 4
