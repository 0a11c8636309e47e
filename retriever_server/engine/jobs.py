"""Jobs, which are what the engine searches for, and waiters, which are the requests that wait for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from retriever_server.backends.base import Backend


class Waiter:
    """One request's wait for its jobs, until `deadline` (seconds of time.monotonic)."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._left = 0
        self._all_done = threading.Event()

    def add_to(self, job: Job) -> None:
        """Wait for `job` too; only under the engine's lock."""
        self._left += 1
        job.waiters.append(self)

    def one_done(self) -> None:
        """Count a job as done; only under the engine's lock."""
        self._left -= 1
        if not self._left:
            self._all_done.set()

    def wait(self) -> bool:
        """Block until every job is done; returns False when the deadline passed first."""
        return not self._left or self._all_done.wait(max(0.0, self.deadline - time.monotonic()))


@dataclass(eq=False)
class Job:
    """A query to be searched, or a `call` to be made, for every request that waits for it.

    `outcome` is what came of it, or `error` why nothing did; `generation` is that of the index that was asked.
    """

    group: Hashable  # jobs of one group may share a batch
    query: str = ""
    topk: int = 0
    call: Callable[[Backend], Any] | None = None
    arrived: float = field(default_factory=time.monotonic)
    waiters: list[Waiter] = field(default_factory=list)
    outcome: Any = None
    error: Exception | None = None
    generation: int = 0

    def wanted(self, now: float) -> bool:
        """Whether some request still waits for this job at the time `now`."""
        return any(waiter.deadline > now for waiter in self.waiters)


class JobQueue:
    """Waiting jobs by group, first come first served; not thread-safe by itself."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Job]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, job: Job) -> None:
        """Add a job at the end of its group."""
        self._groups.setdefault(job.group, deque()).append(job)
        self._count += 1

    def head(self) -> deque[Job]:
        """Return the group whose first job has waited longest; the queue must not be empty."""
        return min(self._groups.values(), key=lambda group: group[0].arrived)

    def take(self, most: int) -> list[Job]:
        """Remove and return the first jobs of the group at the head: at most `most`, and one at a time of calls."""
        group = self.head()
        most = 1 if group[0].call else most
        taken = [group.popleft() for _ in range(min(most, len(group)))]
        self._count -= len(taken)
        if not group:
            del self._groups[taken[0].group]
        return taken
