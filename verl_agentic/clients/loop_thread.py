"""An event loop in a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines to their end for synchronous callers; the thread ends with the process or by `close`."""

    def __init__(self, name: str) -> None:
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the thread runs in this process; a forked child has none."""
        return self._owner == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns, or raise what it raises."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
