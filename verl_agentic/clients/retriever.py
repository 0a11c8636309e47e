"""The client by which rollouts ask a retriever server for passages, vectors and rankings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from retriever_server.schema import Document, parse_response, render_request
from verl_agentic.clients.counters import RetrieverCounters
from verl_agentic.clients.endpoints import Endpoints, check_url
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.loop_thread import LoopThread
from verl_agentic.clients.responses import Ranked, Vectors, parse_embeddings, parse_ranking
from verl_agentic.clients.startup_check import ServerCheck, check_servers, wait_ready
from verl_agentic.clients.transport import Answer, Transport
from verl_agentic.core.environment import Passage

T = TypeVar("T")
_starting = threading.Lock()


class RetrieverClient:
    """Asks one or several equal servers; safe for many coroutines at once, usable from any loop, and picklable.

    `timeout_s` bounds one attempt and `deadline_s` a whole call; `retries` further attempts follow a failed one, on
    another address where there is one. Addresses of this machine or of a private network are reached without proxy.
    Every call raises RetrieverError when no attempt succeeded; `NAME_sync` is NAME for a caller without an event loop.
    """

    _loop_thread: LoopThread | None

    def __init__(
        self,
        urls: str | Sequence[str],
        topk: int | None = 3,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        retries: int = 4,
    ) -> None:
        urls = [urls] if isinstance(urls, str) else list(urls)
        if not urls:
            raise ValueError("RetrieverClient needs at least one address; set agentic.retriever.urls")
        for url in urls:
            check_url(url)
        if not (timeout_s > 0 and deadline_s > 0 and retries >= 0):
            raise ValueError(
                "agentic.retriever.timeout_s and deadline_s must be above 0 and retries at least 0, got "
                f"{timeout_s:g}, {deadline_s:g} and {retries}"
            )
        self.topk = topk
        self.counters = RetrieverCounters()
        self._transport = Transport(urls, timeout_s, deadline_s, retries)
        self._loop_thread = None

    @property
    def endpoints(self) -> Endpoints:
        """The addresses, and what is known of them."""
        return self._transport.endpoints

    async def retrieve(self, queries: Sequence[str], topk: int | None = None) -> list[list[Passage]]:
        """Return for each query its passages, best first: `topk` (default: the client's) or fewer, possibly none."""
        if not queries:
            return []
        self.counters.queries += len(queries)
        request = render_request(queries, self.topk if topk is None else topk)
        results = await self._call("/retrieve", request, lambda answer: self._read_results(answer, len(queries)))
        self.counters.empty += sum(not documents for documents in results)
        return [[_passage(document) for document in documents] for documents in results]

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """Return the vectors that the server's encoder gives `texts`, float32 of shape (texts, dimension).

        `kind` says which prefix of the encoder belongs before them.
        """
        body = {"texts": list(texts), "kind": kind}
        return await self._call(
            "/embed", body, lambda answer: answer.read(lambda payload: parse_embeddings(payload, len(texts)))
        )

    async def rerank(self, query: str, documents: Sequence[str], top_n: int | None = None) -> list[Ranked]:
        """Return the `top_n` (default: all) of `documents` that answer `query` best, best first."""
        if not documents:
            return []
        count = len(documents)
        wanted = count if top_n is None else min(top_n, count)
        body = {"query": query, "documents": list(documents), "top_n": top_n}
        return await self._call(
            "/rerank", body, lambda answer: answer.read(lambda payload: parse_ranking(payload, count, wanted))
        )

    def retrieve_sync(self, queries: Sequence[str], topk: int | None = None) -> list[list[Passage]]:
        """Do as `retrieve`."""
        return self._thread().run(self.retrieve(queries, topk))

    def embed_sync(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """Do as `embed`."""
        return self._thread().run(self.embed(texts, kind))

    def rerank_sync(self, query: str, documents: Sequence[str], top_n: int | None = None) -> list[Ranked]:
        """Do as `rerank`."""
        return self._thread().run(self.rerank(query, documents, top_n))

    async def wait_ready(self, deadline_s: float = 60.0) -> None:
        """Wait until every address answers a test query; after `deadline_s` RetrieverError says what to do."""
        for url in self.endpoints.urls:
            await wait_ready(self._transport, url, deadline_s)

    def check(self, deadline_s: float = 0.0) -> None:
        """Do as `wait_ready` for a caller without an event loop; by default each address is tried once."""
        checking = RetrieverClient(self.endpoints.urls, self.topk, self._transport.timeout_s)
        asyncio.run(checking._check_and_close(deadline_s))

    def check_startup(self, concurrent: int = 8, min_queries_per_s: float = 0.0) -> list[ServerCheck]:
        """Check before a run that every address answers, that its canaries come first, and how fast it is.

        The speed is measured with `concurrent` >= 1 queries at a time; `min_queries_per_s` 0.0 accepts any.
        """
        if concurrent < 1:
            raise ValueError(f"agentic.retriever.check_concurrent must be at least 1, got {concurrent}")
        alone = [self._transport.only(url) for url in self.endpoints.urls]
        return asyncio.run(check_servers(alone, self.topk, concurrent, min_queries_per_s))

    async def aclose(self) -> None:
        """Close this loop's connections; the client can be used again."""
        await self._transport.aclose()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loop_thread": None}

    async def _check_and_close(self, deadline_s: float) -> None:
        try:
            await self.wait_ready(deadline_s)
        finally:
            await self.aclose()

    async def _call(self, path: str, body: Mapping[str, Any], read: Callable[[Answer], T]) -> T:
        started = time.monotonic()
        try:
            return read(await self._transport.call(path, body, self._count_retry))
        except RetrieverError as error:
            self.counters.errors += 1
            self.counters.errors_by_kind[error.kind] += 1
            raise
        finally:
            self.counters.calls += 1
            self.counters.latencies.add(time.monotonic() - started)

    def _read_results(self, answer: Answer, query_count: int) -> list[list[Document]]:
        hits = answer.headers.get("X-Cache-Hits", "")
        results = answer.read(lambda payload: parse_response(payload, query_count))
        if hits.isdecimal() and len(hits) < 10:  # int() refuses thousands of digits
            self.counters.cache_hits += min(int(hits), query_count)
        return results

    def _count_retry(self) -> None:
        self.counters.retries += 1

    def _thread(self) -> LoopThread:
        with _starting:
            if self._loop_thread is None or not self._loop_thread.is_here:
                self._loop_thread = LoopThread("retriever-client")
            return self._loop_thread


def _passage(document: Document) -> Passage:
    first, newline, rest = document.contents.partition("\n")
    title, text = (first.strip().strip('"'), rest) if newline else ("", document.contents)
    return Passage(document.id, document.contents, document.score, title, text)
