"""The one place where searches run: one at a time, with a bounded number waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from retriever_server.backends.base import Backend, Hit
from retriever_server.errors import Overloaded


class SearchExecutor:
    """Runs searches one after another, so that HTTP threads do not multiply the search threads (case P35).

    At most `max_pending` >= 1 searches wait or run; further ones are refused at once (case P34).
    """

    def __init__(self, backend: Backend, max_pending: int) -> None:
        self._backend = backend
        self._slots = threading.BoundedSemaphore(max_pending)
        self._turn = threading.Lock()
        self._max_pending = max_pending

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Search as Backend.search does; raises Overloaded when `max_pending` searches are under way."""
        if not self._slots.acquire(blocking=False):
            raise Overloaded(f"{self._max_pending} searches are under way already; try again in a moment.")
        try:
            with self._turn:
                return self._backend.search(queries, topk)
        finally:
            self._slots.release()
