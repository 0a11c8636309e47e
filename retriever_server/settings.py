"""Settings of a server, apart from what it serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from retriever_server.schema import Limits


@dataclass(frozen=True)
class ServerSettings:
    """How requests are admitted, gathered, remembered and given up.

    `max_pending` requests may wait at once (each holds a thread) and `max_queued` queries may wait for their search;
    what comes beyond is refused with 429 and `retry_after_s`. `deadline_s` bounds the wait of a request that states
    none. `max_batch` queries are searched together (1: no micro-batching), and a batch that is not full waits at most
    `window_ms` for more (see engine.engine); `executors` batches are searched at once, unless the backend states its
    own `concurrency`. `cache_mb` MiB of results are remembered (0: none). `max_body_bytes` caps a body.
    `drain_timeout_s` bounds the time that a stopping server gives to requests under way. `threads` is what the server
    states as the threads of one search; None when it did not choose them.
    """

    limits: Limits = field(default_factory=Limits)
    max_body_bytes: int = 8 * 2**20
    max_pending: int = 256
    retry_after_s: int = 1
    max_queued: int = 4096
    deadline_s: float = 30.0
    max_batch: int = 64
    window_ms: float = 10.0
    cache_mb: float = 256.0
    drain_timeout_s: float = 30.0
    executors: int = 1
    threads: int | None = None
