"""The engine: HTTP threads hand in queries, executor threads search them in micro-batches.

A query is normalised, answered from the cache where it can be, joined to an identical one under way, or queued. An
executor takes the queries of equal topk that have waited longest, at most `max_batch`, and searches them together; of
what waits it leaves idle executors their part. It never waits for a batch that is full. One that is not full waits for
more only while it is smaller than the batch before (so a lone client never waits), and at most `window_ms`, or a
quarter of the last search's time where that is less, from the end of the batch before or from its own oldest query:
waiting longer would cost more than it saves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from retriever_server.backends.base import Backend, Hit
from retriever_server.engine.cache import ResultCache
from retriever_server.engine.jobs import Job, JobQueue, Waiter
from retriever_server.errors import DeadlinePassed, Overloaded, Unavailable
from retriever_server.metrics import Metrics
from retriever_server.settings import ServerSettings
from retriever_server.text import clean

CALLS = "calls"
WAITING_SHARE = 0.25  # of the last search's time, which a batch that is not full may wait for more


@dataclass(frozen=True)
class Answer:
    """The hits of each query, all from the index of one `generation`; `cache_hits` of the queries were remembered."""

    hits: list[Sequence[Hit]]
    cache_hits: int
    generation: int


@dataclass(frozen=True)
class _Served:
    backend: Backend
    generation: int


def normalise(query: str) -> str:
    """Return the query that is searched: cleaned (see text.clean), every run of blanks as one space."""
    return " ".join(clean(query).split())


class Engine:
    """Searches the installed backend for many threads at once; `install` replaces it under way."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._work = threading.Condition(threading.Lock())
        self._queue = JobQueue()
        self._in_flight: dict[tuple[str, int], Job] = {}
        self._cache = ResultCache(int(settings.cache_mb * 2**20))
        self._served: _Served | None = None
        self._executors: list[threading.Thread] = []
        self._idle = 0
        self._waiting = 0
        self._closing = False
        self._last_batch, self._last_seconds, self._last_end = 1, 0.0, 0.0
        self._owner = os.getpid()
        metrics.watch("queue_queries", "Queries waiting for their search.", lambda: len(self._queue))
        metrics.watch("waiting_requests", "Requests waiting for the engine.", lambda: self._waiting)
        metrics.watch("idle_executors", "Executors that wait for queries.", lambda: self._idle)
        metrics.watch("cache_bytes", "Bytes of remembered results.", lambda: self._cache.bytes)
        metrics.watch("cache_entries", "Remembered results.", lambda: len(self._cache))

    @property
    def executors(self) -> int:
        """How many batches run at once."""
        return len(self._executors)

    def install(self, backend: Backend) -> int:
        """Serve `backend` from now on and return its generation, 1 for the first.

        Searches under way end on the index they began with; no later query joins them or finds them remembered.
        """
        with self._work:
            served = _Served(backend, self._served.generation + 1 if self._served else 1)
            self._served = served
            self._cache.clear()
            self._in_flight = {key: job for key, job in self._in_flight.items() if not job.generation}
            for number in range(len(self._executors), getattr(backend, "concurrency", self._settings.executors)):
                thread = threading.Thread(target=self._execute, name=f"executor-{number}", daemon=True)
                self._executors.append(thread)
                thread.start()
        return served.generation

    def search(self, queries: Sequence[str], topk: int, deadline_s: float | None = None) -> Answer:
        """Return at most `topk` hits for each query; raises Overloaded, Unavailable or DeadlinePassed.

        A query that fails raises its error here and in no other request.
        """
        wanted = [normalise(query) for query in queries]
        with self._admitted(deadline_s) as deadline:
            answer = None
            while answer is None:  # an index that was installed half-way would mix two indexes in one answer
                answer = self._search_once(wanted, topk, deadline)
        return answer

    def call(self, functions: Sequence[Callable[[Backend], Any]], deadline_s: float | None = None) -> list[Any]:
        """Run `functions` in an executor, searches of others in between, and return their values."""
        with self._admitted(deadline_s) as deadline:
            jobs = [Job(CALLS, call=function) for function in functions]
            waiter = Waiter(deadline)
            with self._work:
                self._require_backend()
                self._enqueue(jobs)
                for job in jobs:
                    waiter.add_to(job)
            self._wait(waiter)
        return [_outcome(job) for job in jobs]

    def close(self, timeout_s: float) -> bool:
        """Stop the executors once nothing is queued; returns whether all stopped within `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        with self._work:
            self._closing = True
            self._work.notify_all()
        for thread in self._executors:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._executors)

    @contextmanager
    def _admitted(self, deadline_s: float | None) -> Iterator[float]:
        if os.getpid() != self._owner:
            # the executors and faiss's thread pool do not survive a fork: the child would wait for ever (case P33)
            raise Unavailable("This process was forked from a server that had begun; start a server of its own.")
        with self._work:
            if self._waiting >= self._settings.max_pending:
                self._refuse(f"{self._waiting} requests are waiting already")
            self._waiting += 1
        try:
            yield time.monotonic() + (self._settings.deadline_s if deadline_s is None else deadline_s)
        finally:
            with self._work:
                self._waiting -= 1

    def _search_once(self, wanted: list[str], topk: int, deadline: float) -> Answer | None:
        unique = dict.fromkeys(query for query in wanted if query)
        waiter = Waiter(deadline)
        with self._work:
            generation = self._require_backend().generation
            hits = {query: found for query in unique if (found := self._cache.get((query, topk))) is not None}
            jobs = self._jobs([query for query in unique if query not in hits], topk)
            for job in jobs.values():
                waiter.add_to(job)
        remembered = sum(query in hits for query in wanted)
        self._metrics.cache_hits.inc(remembered)
        self._wait(waiter)
        for query, job in jobs.items():
            hits[query] = _outcome(job)
        if any(job.generation != generation for job in jobs.values()):
            return None
        return Answer([hits.get(query, ()) for query in wanted], remembered, generation)

    def _require_backend(self) -> _Served:
        if self._served is None or self._closing:
            raise Unavailable("This server has no index open; try again in a moment.")
        return self._served

    def _jobs(self, queries: list[str], topk: int) -> dict[str, Job]:
        jobs = {query: job for query in queries if (job := self._in_flight.get((query, topk)))}
        new = {query: Job(topk, query, topk) for query in queries if query not in jobs}
        self._enqueue(list(new.values()))
        self._in_flight.update({(query, topk): job for query, job in new.items()})
        self._metrics.joined.inc(len(jobs))
        self._metrics.cache_misses.inc(len(new))
        return jobs | new

    def _enqueue(self, jobs: list[Job]) -> None:
        # an empty queue takes any request, or one larger than the queue could never be answered
        if jobs and self._queue and len(self._queue) + len(jobs) > self._settings.max_queued:
            self._refuse(f"{len(self._queue)} queries are waiting already")
        for job in jobs:
            self._queue.put(job)
        self._work.notify(len(jobs))

    def _refuse(self, why: str) -> None:
        self._metrics.refused.inc()
        raise Overloaded(f"{why}; try again in a moment.")

    def _wait(self, waiter: Waiter) -> None:
        if not waiter.wait():
            self._metrics.deadlines.inc()
            raise DeadlinePassed("The deadline passed before the answer was found; try again in a moment.")

    def _execute(self) -> None:
        while self._execute_next():
            pass

    def _execute_next(self) -> bool:
        batch = self._next_batch()  # goes with this call, lest a thread at rest keep an index that was replaced
        if batch and batch[0]:
            self._run(*batch)
        return batch is not None

    def _next_batch(self) -> tuple[list[Job], _Served] | None:
        with self._work:
            self._idle += 1
            while not self._queue and not self._closing:
                self._work.wait()
            self._gather()
            self._idle -= 1
            if self._closing and not self._queue:
                return None
            share = -(-len(self._queue) // (self._idle + 1))
            jobs = self._queue.take(min(share, self._settings.max_batch)) if self._queue else []
            if self._queue:
                self._work.notify()  # what is left is for an executor that may have heard of nothing yet
            served = self._require_served()
            return self._still_wanted(jobs, served), served

    def _require_served(self) -> _Served:
        assert self._served is not None  # nothing is queued before the first `install`
        return self._served

    def _gather(self) -> None:
        expected = min(self._last_batch, self._settings.max_batch)
        patience = min(self._settings.window_ms / 1000, WAITING_SHARE * self._last_seconds)
        while self._queue and not self._closing:
            head = self._queue.head()
            left = max(head[0].arrived, self._last_end) + patience - time.monotonic()
            if head[0].call or len(head) >= expected or left <= 0:
                return
            self._work.wait(left)

    def _still_wanted(self, jobs: list[Job], served: _Served) -> list[Job]:
        now = time.monotonic()
        wanted = [job for job in jobs if job.wanted(now)]
        self._metrics.dropped.inc(len(jobs) - len(wanted))
        for job in jobs:
            job.generation = served.generation
            if not job.wanted(now):
                job.error = DeadlinePassed("The deadline passed before the search began.")
                self._forget(job)
        return wanted

    def _run(self, jobs: list[Job], served: _Served) -> None:
        started = time.monotonic()
        if jobs[0].call:
            _attempt(jobs, lambda: [jobs[0].call(served.backend)])  # type: ignore[misc]
        else:
            self._search_batch(jobs, served.backend)
        with self._work:
            self._last_end = time.monotonic()
            if not jobs[0].call:
                self._last_batch, self._last_seconds = len(jobs), self._last_end - started
            for job in jobs:
                self._finish(job)

    def _search_batch(self, jobs: list[Job], backend: Backend) -> None:
        started = time.monotonic()
        _attempt(jobs, lambda: backend.search([job.query for job in jobs], jobs[0].topk))
        if len(jobs) > 1 and jobs[0].error:
            self._metrics.batch_failures.inc()
            for job in jobs:  # so that only the guilty one fails
                _attempt([job], lambda job=job: backend.search([job.query], job.topk))  # type: ignore[misc]
        self._metrics.batch_queries.observe(len(jobs))
        self._metrics.search_seconds.observe(time.monotonic() - started)

    def _finish(self, job: Job) -> None:
        self._forget(job)
        if job.call is None and job.error is None and job.generation == self._require_served().generation:
            self._cache.put((job.query, job.topk), job.outcome)
        for waiter in job.waiters:
            waiter.one_done()

    def _forget(self, job: Job) -> None:
        key = (job.query, job.topk)
        if self._in_flight.get(key) is job:
            del self._in_flight[key]


def _attempt(jobs: list[Job], search: Callable[[], Sequence[Any]]) -> None:
    """Give each job its outcome of `search`, or the error that it raised."""
    try:
        outcomes = search()
        if len(outcomes) != len(jobs):
            raise RuntimeError(f"the backend answered {len(outcomes)} of {len(jobs)} queries")
    except BaseException as error:  # a panic in a native library is no Exception; the executor must outlive it
        for job in jobs:
            job.error = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        return
    for job, outcome in zip(jobs, outcomes, strict=True):
        job.outcome, job.error = outcome, None


def _outcome(job: Job) -> Any:
    if job.error:
        raise job.error
    return job.outcome
