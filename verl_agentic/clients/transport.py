"""HTTP calls to one of several equal servers, tried again where another attempt may help, within a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from retriever_server.schema import ResponseError
from verl_agentic.clients.connections import Connections
from verl_agentic.clients.endpoints import Endpoints, is_near
from verl_agentic.clients.errors import RetrieverError, RetryableError

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0
RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
LONGEST_DEADLINE_MS = 3_600_000  # what servers accept
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What the server at `url` answered with status 200."""

    url: str
    headers: Mapping[str, str]
    content: bytes

    def read(self, parse: Callable[[Any], T]) -> T:
        """Return what `parse` makes of the JSON; RetrieverError (shape) where it raises ResponseError."""
        try:
            return parse(json.loads(self.content))
        except ResponseError as error:
            raise RetrieverError(self.url, "shape", f"answers in an unknown shape: {error}") from error
        except RecursionError as error:
            raise RetrieverError(self.url, "shape", "answers JSON that is nested too deeply") from error
        except ValueError as error:
            raise RetrieverError(self.url, "shape", "answers something that is not JSON") from error


class Transport:
    """Calls the servers at `urls`; usable from any event loop, and picklable.

    `timeout_s` bounds one attempt and `deadline_s` a whole call; `retries` further attempts follow a failed one.
    `key_variable` names the variable of the environment that holds the servers' key, read at each call.
    """

    _connections: dict[asyncio.AbstractEventLoop, dict[bool, Connections]]  # by "reached without proxy"

    def __init__(
        self, urls: Sequence[str], timeout_s: float, deadline_s: float, retries: int, key_variable: str = ""
    ) -> None:
        self.key_variable = key_variable
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.retries = retries
        self.endpoints = Endpoints(urls)
        self._connections = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_connections"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.endpoints = Endpoints(self.endpoints.urls)  # nothing is in flight here
        self._connections = {}

    def only(self, url: str) -> Transport:
        """Return a transport like this one to `url` alone."""
        return Transport([url], self.timeout_s, self.deadline_s, self.retries, self.key_variable)

    async def call(self, path: str, body: Mapping[str, Any], on_retry: Callable[[], None] = lambda: None) -> Answer:
        """Post `body` to `path` of the least loaded server, and of others where that fails.

        `on_retry` is called before each further attempt. Raises RetrieverError when none succeeded.
        """
        deadline = time.monotonic() + self.deadline_s
        content, failed = _encode(body), set[str]()
        for attempt in range(self.retries + 1):
            with self.endpoints.use(failed) as url:
                try:
                    left = deadline - time.monotonic()
                    return await self.attempt(url, path, content, min(self.timeout_s, left))
                except RetryableError as failure:
                    last = failure
                    failed.add(url)
                    self.endpoints.rest(url)
            if attempt == self.retries:
                break
            wait_s = self._wait_s(last, attempt, failed)
            if time.monotonic() + wait_s >= deadline:
                what = f"{last.error.what}, and the deadline of {self.deadline_s:g} s leaves no further attempt"
                raise RetrieverError(last.error.url, "deadline", what)
            on_retry()
            await asyncio.sleep(wait_s)
        raise RetrieverError(last.error.url, last.error.kind, f"{last.error.what} ({attempt + 1} attempts)")

    async def attempt(self, url: str, path: str, content: bytes | None, timeout_s: float) -> Answer:
        """Post `content` (None: get) once; raises RetryableError or RetrieverError."""
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._request(url, path, content, timeout_s)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RetryableError(RetrieverError(url, "timeout", f"does not answer within {timeout_s:.3g} s")) from error
        except httpx.RequestError as error:
            raise RetryableError(RetrieverError(url, "connection", f"does not answer ({_reason(error)})")) from error
        except (ValueError, httpx.InvalidURL, ImportError, OSError) as error:
            # what httpx says of a proxy that it cannot use, or of certificates that are not there
            what = f"cannot be asked ({error}); mend the proxy or SSL_CERT variables of the environment"
            raise RetrieverError(url, "connection", what) from error
        _raise_for_status(url, response)
        return Answer(url, response.headers, response.content)

    async def aclose(self) -> None:
        """Close this loop's connections; the transport can be used again."""
        for pool in self._connections.pop(asyncio.get_running_loop(), {}).values():
            await pool.aclose()

    def _wait_s(self, last: RetryableError, attempt: int, failed: set[str]) -> float:
        # what one server asks for does not keep a call from another server
        asked = last.wait_s if len(failed) == len(set(self.endpoints.urls)) else 0.0
        return max(asked, min(FIRST_BACKOFF_S * 2**attempt, LONGEST_BACKOFF_S))

    async def _request(self, url: str, path: str, content: bytes | None, timeout_s: float) -> httpx.Response:
        near = is_near(url)
        pool = self._pools().setdefault(near, Connections(trust_env=not near))
        with pool.use() as client:
            if content is None:
                return await client.get(f"{url}{path}")
            # after this time nobody waits for the answer: a server that knows the header need not compute it
            headers = {"Content-Type": "application/json", "X-Deadline-Ms": str(_deadline_ms(timeout_s))}
            if key := os.environ.get(self.key_variable):
                headers["Authorization"] = f"Bearer {key}"
            return await client.post(f"{url}{path}", content=content, headers=headers)

    def _pools(self) -> dict[bool, Connections]:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            # a loop that ended without `aclose` cannot close its connections any more; forgotten, they close themselves
            for other in [other for other in tuple(self._connections) if other.is_closed()]:
                self._connections.pop(other, None)
        return self._connections.setdefault(loop, {})


def _deadline_ms(timeout_s: float) -> int:
    return max(1, int(min(timeout_s * 1000, LONGEST_DEADLINE_MS)))


def _encode(body: Mapping[str, Any]) -> bytes:
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
    raise RetryableError(RetrieverError(url, kind, said), _retry_after_s(response.headers.get("Retry-After", "")))


def _retry_after_s(value: str) -> float:
    """Read a Retry-After header, seconds or a date (RFC 9110, 10.2.3); 0.0 for neither."""
    if value.isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _error_text(response: httpx.Response) -> str:
    try:
        text = str(response.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = response.text
    # one line that any stream can print, whoever answers there
    printable = "".join(char if char.isprintable() else " " for char in text[:1000])
    return " ".join(printable.split())[:300] or response.reason_phrase


def _reason(error: httpx.RequestError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
