"""HTTP servers that answer as a test says, and what tests read from a real server."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from prometheus_client.parser import text_string_to_metric_families


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and writes JSON; prints nothing."""

    def body(self) -> dict:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, payload: object, headers: dict[str, str] | None = None) -> None:
        content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server on loopback whose requests `handler` answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def await_that(holds: Callable[[], bool], what: str, within_s: float = 30) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)


def metrics(http: httpx.Client, url: str) -> dict[str, float]:
    families = text_string_to_metric_families(http.get(f"{url}/metrics").text)
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def await_metric(http: httpx.Client, url: str, name: str, value: float) -> None:
    await_that(lambda: metrics(http, url).get(name) == value, f"{name} = {value}")
