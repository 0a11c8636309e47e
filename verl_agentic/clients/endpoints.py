"""The addresses of one service: which to ask next, and whether a proxy may stand between."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

REST_TURNS = 50  # choices during which an address that failed comes last


class Endpoints:
    """Chooses the least loaded of several addresses; equal ones take turns, one that failed rests for a while."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._in_flight = dict.fromkeys(self.urls, 0)
        self._rests_until = dict.fromkeys(self.urls, 0)
        self._turn = 0

    def rest(self, url: str) -> None:
        """Note that an attempt at `url` failed."""
        self._rests_until[url] = self._turn + REST_TURNS

    @contextmanager
    def use(self, avoid: set[str]) -> Iterator[str]:
        """Lend an address for one attempt; those in `avoid` (where this call failed) come last of all."""
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
        return min(in_turn, key=lambda url: self._rank(url, avoid))

    def _rank(self, url: str, avoid: set[str]) -> tuple[bool, bool, int]:
        return url in avoid, self._rests_until[url] > self._turn, self._in_flight[url]


def check_url(url: str) -> None:
    """Raise ValueError, in one sentence, unless `url` is an http or https address with a host that can be asked."""
    if not _is_address(url):
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8000")


def is_near(url: str) -> bool:
    """Tell whether `url` names this machine or a private network, which a proxy cannot reach (case P43)."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_loopback or address.is_private or address.is_link_local


def _is_address(url: str) -> bool:
    try:
        address, port = httpx.URL(url), urlsplit(url).port
        address.host.encode("idna")  # as the resolver will: labels of 1 to 63 characters
    except (ValueError, httpx.InvalidURL):
        return False
    return address.scheme in ("http", "https") and bool(address.host) and port != 0
