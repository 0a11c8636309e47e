"""The client by which rollouts ask a retriever server for passages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from retriever_server.schema import Document, ResponseError, parse_response, render_request
from verl_agentic.clients.connections import Connections
from verl_agentic.clients.endpoints import Endpoints, check_url, is_near
from verl_agentic.clients.loop_thread import LoopThread
from verl_agentic.core.environment import Passage

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0
PROBE_TIMEOUT_S = 10.0
PROBE_PAUSE_S = 0.2
JSON_HEADERS = {"Content-Type": "application/json"}
RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
HINT = "start it with `python -m retriever_server serve --index DIR --port 8000` or set agentic.retriever.urls"


class RetrieverError(Exception):
    """A retrieval that failed for good, in one sentence.

    `kind` is one of connection, timeout, overloaded, server, refused (the request is at fault), shape, deadline.
    """

    def __init__(self, url: str, kind: str, what: str) -> None:
        super().__init__(url, kind, what)
        self.url = url
        self.kind = kind
        self.what = what

    def __str__(self) -> str:
        return f"retriever at {self.url} {self.what}"


@dataclass
class RetrieverCounters:
    """What a client has done; `empty` counts queries without passages, `errors` failed calls, `seconds` all waiting."""

    calls: int = 0
    queries: int = 0
    empty: int = 0
    errors: int = 0
    retries: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the counters by name."""
        return asdict(self)


class _Retryable(Exception):
    """A failure of one attempt that another attempt may mend."""

    def __init__(self, error: RetrieverError, wait_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s


class RetrieverClient:
    """Asks one or several equal servers; safe for many coroutines at once, usable from any loop, and picklable.

    `timeout_s` bounds one attempt and `deadline_s` a whole call; `retries` further attempts follow a failed one, on
    another address where there is one. Addresses of this machine or of a private network are reached without proxy.
    """

    _connections: dict[asyncio.AbstractEventLoop, dict[bool, Connections]]  # by "reached without proxy"
    _loop_thread: LoopThread | None

    def __init__(
        self,
        urls: str | Sequence[str],
        topk: int | None = 3,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        retries: int = 4,
    ) -> None:
        urls = [urls] if isinstance(urls, str) else list(urls)
        if not urls:
            raise ValueError("RetrieverClient needs at least one address; set agentic.retriever.urls")
        for url in urls:
            check_url(url)
        self.topk = topk
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.retries = retries
        self.counters = RetrieverCounters()
        self.endpoints = Endpoints(urls)
        self._drop_connections()

    async def retrieve(self, queries: Sequence[str], topk: int | None = None) -> list[list[Passage]]:
        """Return for each query its passages, best first: `topk` (default: the client's) or fewer, possibly none.

        Raises RetrieverError when no attempt succeeded within the deadline.
        """
        if not queries:
            return []
        started = time.monotonic()
        try:
            results = await self._call(render_request(queries, self.topk if topk is None else topk), len(queries))
        except RetrieverError:
            self.counters.errors += 1
            raise
        finally:
            self.counters.calls += 1
            self.counters.queries += len(queries)
            self.counters.seconds += time.monotonic() - started
        self.counters.empty += sum(not documents for documents in results)
        return [[_passage(document) for document in documents] for documents in results]

    def retrieve_sync(self, queries: Sequence[str], topk: int | None = None) -> list[list[Passage]]:
        """Do as `retrieve` for a caller without an event loop."""
        if self._loop_thread is None:
            self._loop_thread = LoopThread("retriever-client")
        return self._loop_thread.run(self.retrieve(queries, topk))

    async def wait_ready(self, deadline_s: float = 60.0) -> None:
        """Wait until every address answers a test query; after `deadline_s` RetrieverError says what to do."""
        deadline = time.monotonic() + deadline_s
        for url in self.endpoints.urls:
            while (failure := await self._probe(url)) is not None:
                if time.monotonic() >= deadline:
                    raise RetrieverError(url, failure.kind, f"{failure.what}; {HINT}")
                await asyncio.sleep(PROBE_PAUSE_S)

    def check(self, deadline_s: float = 0.0) -> None:
        """Do as `wait_ready` for a caller without an event loop; by default each address is tried once."""
        checking = RetrieverClient(self.endpoints.urls, self.topk, self.timeout_s)
        asyncio.run(checking._check_and_close(deadline_s))

    async def aclose(self) -> None:
        """Close this loop's connections; the client can be used again."""
        for pool in self._connections.pop(asyncio.get_running_loop(), {}).values():
            await pool.aclose()

    def __getstate__(self) -> dict[str, Any]:
        live = {"_connections", "_loop_thread"}
        return {name: value for name, value in self.__dict__.items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.endpoints = Endpoints(self.endpoints.urls)  # nothing is in flight here
        self._drop_connections()

    def _drop_connections(self) -> None:
        self._connections = {}
        self._loop_thread = None

    async def _check_and_close(self, deadline_s: float) -> None:
        try:
            await self.wait_ready(deadline_s)
        finally:
            await self.aclose()

    async def _probe(self, url: str) -> RetrieverError | None:
        try:
            await self._attempt(url, render_request(["ready"], 1), 1, PROBE_TIMEOUT_S)
        except _Retryable as failure:
            return failure.error
        return None

    async def _call(self, body: dict[str, Any], query_count: int) -> list[list[Document]]:
        deadline = time.monotonic() + self.deadline_s
        failed: set[str] = set()
        for attempt in range(self.retries + 1):
            with self.endpoints.use(failed) as url:
                try:
                    left = deadline - time.monotonic()
                    return await self._attempt(url, body, query_count, min(self.timeout_s, left))
                except _Retryable as failure:
                    last = failure
                    failed.add(url)
                    self.endpoints.rest(url)
            wait_s = max(last.wait_s, min(FIRST_BACKOFF_S * 2**attempt, LONGEST_BACKOFF_S))
            if attempt == self.retries:
                break
            if time.monotonic() + wait_s >= deadline:
                what = f"{last.error.what}, and the deadline of {self.deadline_s:g} s leaves no further attempt"
                raise RetrieverError(last.error.url, "deadline", what)
            self.counters.retries += 1
            await asyncio.sleep(wait_s)
        raise RetrieverError(last.error.url, last.error.kind, f"{last.error.what} ({attempt + 1} attempts)")

    async def _attempt(
        self, url: str, body: dict[str, Any], query_count: int, timeout_s: float
    ) -> list[list[Document]]:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._post(f"{url}/retrieve", _encode(body))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise _Retryable(RetrieverError(url, "timeout", f"does not answer within {timeout_s:.3g} s")) from error
        except httpx.RequestError as error:
            raise _Retryable(RetrieverError(url, "connection", f"does not answer ({_reason(error)})")) from error
        _raise_for_status(url, response)
        return _parse(url, response, query_count)

    async def _post(self, url: str, content: bytes) -> httpx.Response:
        near = is_near(url)
        pool = self._pools().setdefault(near, Connections(trust_env=not near))
        with pool.use() as client:
            return await client.post(url, content=content, headers=JSON_HEADERS)

    def _pools(self) -> dict[bool, Connections]:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            # a loop that ended without `aclose` cannot close its connections any more; forgotten, they close themselves
            for other in [other for other in tuple(self._connections) if other.is_closed()]:
                self._connections.pop(other, None)
        return self._connections.setdefault(loop, {})


def _encode(body: dict[str, Any]) -> bytes:
    # ASCII escapes carry a lone surrogate, which a sampled text may hold and UTF-8 cannot
    return json.dumps(body, ensure_ascii=True).encode("ascii")


def _raise_for_status(url: str, response: httpx.Response) -> None:
    status = response.status_code
    if status == 200:
        return
    said = f"answers {status}: {_error_text(response)}"
    if status not in RETRIED_STATUS:
        raise RetrieverError(url, "refused", said)
    kind = "overloaded" if status in (429, 503) else "server"
    raise _Retryable(RetrieverError(url, kind, said), _retry_after_s(response))


def _retry_after_s(response: httpx.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _error_text(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return response.text[:300]


def _parse(url: str, response: httpx.Response, query_count: int) -> list[list[Document]]:
    try:
        return parse_response(response.json(), query_count)
    except ResponseError as error:
        raise RetrieverError(url, "shape", f"answers in an unknown shape: {error}") from error
    except RecursionError as error:
        raise RetrieverError(url, "shape", "answers JSON that is nested too deeply") from error
    except ValueError as error:
        raise RetrieverError(url, "shape", "answers something that is not JSON") from error


def _reason(error: httpx.RequestError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _passage(document: Document) -> Passage:
    first, newline, rest = document.contents.partition("\n")
    title, text = (first.strip().strip('"'), rest) if newline else ("", document.contents)
    return Passage(document.id, document.contents, document.score, title, text)
