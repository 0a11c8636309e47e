"""HTTP connections of one event loop, kept cheap for hundreds of calls at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

# httpx walks all connections of a client on every call: one client with 128 of them costs 7 ms of CPU a call here,
# clients of 8 each cost 1 ms
CONNECTIONS_PER_CLIENT = 8


@dataclass
class _Lane:
    client: httpx.AsyncClient
    in_flight: int = 0


class Connections:
    """Lends an httpx client that has a free connection, making a further one when all are busy.

    `trust_env` says whether proxy variables of the environment are honoured.
    """

    def __init__(self, trust_env: bool) -> None:
        self._trust_env = trust_env
        self._lanes: list[_Lane] = []

    @contextmanager
    def use(self) -> Iterator[httpx.AsyncClient]:
        """Lend a client for one call."""
        lane = self._free_lane()
        lane.in_flight += 1
        try:
            yield lane.client
        finally:
            lane.in_flight -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        while self._lanes:
            await self._lanes.pop().client.aclose()

    def _free_lane(self) -> _Lane:
        for lane in self._lanes:
            if lane.in_flight < CONNECTIONS_PER_CLIENT:
                return lane
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS_PER_CLIENT)
        client = httpx.AsyncClient(limits=limits, timeout=None, trust_env=self._trust_env)
        self._lanes.append(_Lane(client))
        return self._lanes[-1]
