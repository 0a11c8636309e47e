"""Serving an application on a socket until the process is told to stop."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from flask import Flask
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.task import ErrorTask, WSGITask

from retriever_server.app import SENTENCES, ServerSettings, service_of
from retriever_server.errors import RetrieverServerError

CONNECTIONS = 2000  # idle keep-alive connections count; waitress's default of 100 would stall larger rollouts
OTHER_FILES = 100  # descriptors beside connections: the index, large bodies and answers, libraries
POLL_S = 1.0
DRAIN_POLL_S = 0.05
QUIET_S = 0.1  # without a byte from anybody, after which a request that was sent before the port closed has been read
LINGER_S = 1.0  # for that silence, which a client that sends byte by byte could put off for ever
_log = logging.getLogger("retriever_server")


def claim_port(host: str, port: int) -> socket.socket:
    """Bind `host`:`port` (0 picks a free one) without accepting yet; raises RetrieverServerError when it is taken."""
    claimed = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        claimed.bind((host, port))
    except (OSError, OverflowError) as error:
        claimed.close()
        raise _cannot_listen(host, port, error) from error
    return claimed


def serve(app: Flask, claimed: socket.socket, settings: ServerSettings, announce: str | Callable[[], str]) -> None:
    """Accept requests on `claimed`, print `announce`, and return once told to stop and drained (SIGTERM, SIGINT).

    `announce` may be a function: it is called in a thread of its own, while /health answers already, and what it
    returns is printed. SIGHUP reloads the index. A stopping server refuses new requests with 503, answers those under
    way and flushes their bytes, within `drain_timeout_s`, then closes the port, answers what had come by then, and
    ends; a second signal ends it at once. Raises RetrieverServerError
    when another server has begun to listen on the port since it was claimed, or the error that `announce` raised.
    """
    try:
        server = _listen(app, claimed, settings)
    except OSError as error:
        host, port = claimed.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error
    _Loop(server, app, settings).run(announce if callable(announce) else lambda: announce)


def url_of(claimed: socket.socket) -> str:
    """Return the http address of a claimed port."""
    host, port = claimed.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Loop:
    """The main thread's part: sockets, signals, and the drain."""

    def __init__(self, server: Any, app: Flask, settings: ServerSettings) -> None:
        self._server = server
        self._service = service_of(app)
        self._drain_timeout_s = settings.drain_timeout_s
        self._failure: BaseException | None = None
        self._stop_at: float | None = None
        self._linger_until = 0.0
        self._opening: list[threading.Thread] = []

    def run(self, announce: Callable[[], str]) -> None:
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, self._stop)
        signal.signal(signal.SIGHUP, self._reload)
        self._spawn("start", lambda: self._start(announce))
        while self._failure is None and not self._drained():
            self._poll(POLL_S if self._stop_at is None else DRAIN_POLL_S)
        if self._failure and self._stop_at is None:
            raise self._failure
        if any(thread.is_alive() for thread in self._opening) or not self._end():
            # a thread inside a native library would crash the interpreter's own end
            logging.shutdown()
            sys.stdout.flush()
            os._exit(0)

    def _end(self) -> bool:
        """Stop every thread; returns whether that succeeded in the time that is left."""
        if not self._service.engine.close(max(0.0, (self._stop_at or 0.0) - time.monotonic())):
            return False
        self._server.task_dispatcher.shutdown(cancel_pending=False)
        self._server.close()
        return True

    def _start(self, announce: Callable[[], str]) -> None:
        try:
            print(announce(), flush=True)
        except BaseException as error:
            self._failure = error
            self._server.pull_trigger()

    def _poll(self, seconds: float) -> None:
        wasyncore.loop(seconds, use_poll=True, map=self._server._map, count=1)

    def _drained(self) -> bool:
        if self._stop_at is None:
            return False
        now = time.monotonic()
        busy = sum(bool(channel.requests or channel.total_outbufs_len) for channel in self._channels())
        if busy:
            if now >= self._stop_at:
                _log.warning("%d requests were still under way after %g s of draining", busy, self._drain_timeout_s)
            return now >= self._stop_at
        if self._server.accepting:
            self._close_port()
            self._linger_until = now + LINGER_S
            return False
        return now - self._server.last_heard >= QUIET_S or now >= self._linger_until

    def _close_port(self) -> None:
        count = -1
        while count < len(self._server.active_channels):  # connections that wait to be accepted would be reset
            count = len(self._server.active_channels)
            self._server.handle_accept()
        wasyncore.dispatcher.close(self._server)

    def _channels(self) -> list[Any]:
        return list(self._server.active_channels.values())

    def _stop(self, signum: int, frame: Any) -> None:
        if self._stop_at is not None:
            os._exit(1)
        self._service.draining = True
        self._stop_at = time.monotonic() + self._drain_timeout_s
        self._server.pull_trigger()

    def _reload(self, signum: int, frame: Any) -> None:
        if self._stop_at is None:
            self._spawn("reload", self._service.reload)

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._opening = [other for other in self._opening if other.is_alive()] + [thread]
        thread.start()


class _Task(WSGITask):
    """Tells the client of a stopping server not to use the connection again."""

    def build_response_header(self) -> bytes:
        if service_of(self.channel.server.flask_app).draining:
            self.set_close_on_finish()
        header: bytes = super().build_response_header()
        return header


class _ErrorTask(ErrorTask):
    """Answers in JSON, as the application does, what is no request that could be handed to it."""

    def execute(self) -> None:
        error = self.request.error
        sentence = SENTENCES.get(error.code) or f"{error.reason}: {' '.join(error.body.split())}."
        body = json.dumps({"error": sentence}).encode() + b"\n"
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
    task_class = _Task
    error_task_class = _ErrorTask

    def __init__(self, server: Any, *arguments: Any, **options: Any) -> None:
        server.last_heard = time.monotonic()
        super().__init__(server, *arguments, **options)

    def received(self, data: bytes) -> bool:
        self.server.last_heard = time.monotonic()
        return bool(super().received(data))


def _listen(app: Flask, claimed: socket.socket, settings: ServerSettings) -> Any:
    server = create_server(
        app,
        sockets=[claimed],
        threads=service_of(app).http_threads,
        connection_limit=_connections(),
        # the application refuses a somewhat larger body in JSON; far larger ones end here, unread
        max_request_body_size=2 * settings.max_body_bytes,
        backlog=1024,
        channel_timeout=300,
        asyncore_use_poll=True,  # select() ends at file descriptor 1024
        ident="retriever",
    )
    server.channel_class = _Channel
    server.flask_app = app  # `application` is wrapped
    server.last_heard = 0.0
    return server


def _connections() -> int:
    """Return how many connections to hold at once; with more than descriptors allow, accepting would fail and spin."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CONNECTIONS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(OTHER_FILES // 2, allowed - OTHER_FILES)


def _cannot_listen(host: str, port: int, error: Exception) -> RetrieverServerError:
    reason = getattr(error, "strerror", None) or str(error)
    return RetrieverServerError(
        f"Cannot listen on {host}:{port} ({reason}); choose another --port, or 0 for any free one."
    )
