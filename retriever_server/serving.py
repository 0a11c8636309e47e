"""Serving an application on a socket until the process is told to stop."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any

from flask import Flask
from waitress.server import create_server

from retriever_server.app import ServerSettings
from retriever_server.errors import RetrieverServerError

SPARE_THREADS = 8  # beyond the searches under way: these refuse the rest at once and answer /health
CONNECTIONS = 2000  # idle keep-alive connections count; waitress's default of 100 would stall larger rollouts


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


def serve(app: Flask, claimed: socket.socket, settings: ServerSettings, announce: str) -> None:
    """Accept requests on `claimed` and print `announce` once that is so; returns on SIGTERM or SIGINT.

    Raises RetrieverServerError when another server has begun to listen on the port since it was claimed.
    """
    try:
        server = _listen(app, claimed, settings)
    except OSError as error:
        host, port = claimed.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, _leave)
    print(announce, flush=True)
    server.run()
    server.close()


def url_of(claimed: socket.socket) -> str:
    """Return the http address of a claimed port."""
    host, port = claimed.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(app: Flask, claimed: socket.socket, settings: ServerSettings) -> Any:
    return create_server(
        app,
        sockets=[claimed],
        threads=settings.max_pending + SPARE_THREADS,
        connection_limit=CONNECTIONS,
        # the application refuses a somewhat larger body in JSON; far larger ones end here, unread
        max_request_body_size=2 * settings.max_body_bytes,
        backlog=1024,
        channel_timeout=300,
        asyncore_use_poll=True,  # select() ends at file descriptor 1024
        ident="retriever",
    )


def _cannot_listen(host: str, port: int, error: Exception) -> RetrieverServerError:
    reason = getattr(error, "strerror", None) or str(error)
    return RetrieverServerError(
        f"Cannot listen on {host}:{port} ({reason}); choose another --port, or 0 for any free one."
    )


def _leave(signum: int, frame: Any) -> None:
    sys.exit(0)
