"""The addresses of one service: which to ask next, and whether a proxy may stand between."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit


class Endpoints:
    """Chooses the least loaded of several addresses; equal ones take turns."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._in_flight = dict.fromkeys(self.urls, 0)
        self._turn = 0

    @contextmanager
    def use(self, avoid: set[str]) -> Iterator[str]:
        """Lend an address for one call; those in `avoid` (they failed just now) come last."""
        url = self._choose(avoid)
        self._in_flight[url] += 1
        try:
            yield url
        finally:
            self._in_flight[url] -= 1

    def _choose(self, avoid: set[str]) -> str:
        self._turn += 1
        count = len(self.urls)
        in_turn = [self.urls[(self._turn + offset) % count] for offset in range(count)]
        return min(in_turn, key=lambda url: (url in avoid, self._in_flight[url]))


def check_url(url: str) -> None:
    """Raise ValueError unless `url` is an http or https address with a host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url}' is not an address like http://127.0.0.1:8000")


def is_near(url: str) -> bool:
    """Tell whether `url` names this machine or a private network, which a proxy cannot reach (case P43)."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_loopback or address.is_private or address.is_link_local
