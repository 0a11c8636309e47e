"""A judge that is a language model behind a chat endpoint."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cachetools import LRUCache

from verl_agentic.clients.chat import ChatClient
from verl_agentic.clients.errors import ChatError
from verl_agentic.core.judge_prompts import render
from verl_agentic.core.judging import Ask, Judgement, Missing, Verdict
from verl_agentic.core.verdicts import parse_verdict

logger = logging.getLogger(__name__)
NO_PROMPT = "no_prompt"
HERE_ONLY = ("counters", "_verdicts", "_flights", "_said", "_lock")
SHOWN = 200  # characters of a reply that is no verdict in the log


@dataclass
class JudgeCounters:
    """What a judge has done: `asked` judgements, of which `cached` and `shared` (with an equal ask under way) needed no
    request, the `requests`, and the judgements `missing` by reason.
    """

    asked: int = 0
    cached: int = 0
    shared: int = 0
    requests: int = 0
    missing: Counter[str] = field(default_factory=Counter)


@dataclass
class _Flight:
    """A request under way, and how many wait for it."""

    task: asyncio.Task[Judgement]
    waiting: int = 0


class JudgeClient:
    """Asks `chat` for each verdict; usable from any event loop, and picklable (without what it remembers).

    Equal prompts have one verdict: it is remembered, and asks under way at the same time share a request. A failure is
    Missing with the reason of `ChatError.reason` or `parse_verdict`, or `no_prompt` (the ask's kind has no prompt, or
    one with a placeholder that the ask has no field for); it is not remembered: the next equal ask tries again.

    Args:
        prompts: the template of each kind of ask (`core.judge_prompts`).
        cache_size: verdicts remembered, the least recently used go first; 0 for none.
        field_chars: characters of a field that are shown to the model.
        temperature, top_p, max_tokens: of the model's reply.
    """

    def __init__(
        self,
        chat: ChatClient,
        prompts: Mapping[str, str],
        *,
        cache_size: int,
        field_chars: int,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> None:
        self.name = f"{chat.model} at {', '.join(chat.urls)}"
        self.chat = chat
        self.prompts = dict(prompts)
        self.field_chars = field_chars
        self.sampling: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        self._cache_size = cache_size
        self._start()

    async def __call__(self, asks: Sequence[Ask]) -> list[Judgement]:
        """One judgement for each ask, in order; a failure is `Missing`."""
        return await asyncio.gather(*[self._answer(ask) for ask in asks])

    async def reply(self, chat: ChatClient, prompt: str) -> str:
        """What the model behind `chat` says to `prompt`; raises ChatError."""
        return await chat.complete([{"role": "user", "content": prompt}], **self.sampling)

    async def aclose(self) -> None:
        """Close this loop's connections; the judge can be used again."""
        await self.chat.aclose()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in HERE_ONLY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self.counters = JudgeCounters()
        self._verdicts: LRUCache[bytes, Verdict] = LRUCache(self._cache_size)
        self._flights: dict[tuple[asyncio.AbstractEventLoop, bytes], _Flight] = {}
        self._said: set[str] = set()
        self._lock = threading.Lock()  # loops of several threads may share this judge

    async def _answer(self, ask: Ask) -> Judgement:
        self.counters.asked += 1
        try:
            prompt = render(self.prompts[ask.kind], dict(ask.fields), self.field_chars)
        except KeyError as error:
            judgement: Judgement = self._failure(
                NO_PROMPT, f"no prompt, or no field of an ask of {ask.kind}, is {error}"
            )
        else:
            judgement = await self._judge(prompt)
        if isinstance(judgement, Missing):
            self.counters.missing[judgement.reason] += 1
        return judgement

    async def _judge(self, prompt: str) -> Judgement:
        # a digest, since a hundred thousand prompts would fill the memory; a sampled text may hold a lone surrogate
        key = sha256(prompt.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            known = self._verdicts.get(key)
        if known is not None:
            self.counters.cached += 1
            return known
        return await self._share(key, prompt)

    async def _share(self, key: bytes, prompt: str) -> Judgement:
        """Wait for the request under way for `key`, or start it; it ends early once nobody waits for it any more."""
        place = (asyncio.get_running_loop(), key)
        flight = self._flights.get(place)
        if flight is None:
            flight = self._flights[place] = _Flight(asyncio.create_task(self._request(key, prompt)))
        else:
            self.counters.shared += 1
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)  # that one waiter is cancelled leaves the others their verdict
        finally:
            flight.waiting -= 1
            if flight.waiting == 0:
                del self._flights[place]  # nobody may join a request that is being cancelled
                flight.task.cancel()

    async def _request(self, key: bytes, prompt: str) -> Judgement:
        self.counters.requests += 1
        try:
            reply = await self.reply(self.chat, prompt)
        except ChatError as error:
            return self._failure(error.reason, str(error))
        judgement = parse_verdict(reply)
        if isinstance(judgement, Missing):
            return self._failure(judgement.reason, f"{self.name} gives no verdict: {reply[:SHOWN]!r}")
        if self._cache_size:
            with self._lock:
                self._verdicts[key] = judgement
        return judgement

    def _failure(self, reason: str, what: str) -> Missing:
        if reason not in self._said:
            self._said.add(reason)
            logger.warning("a judgement is missing (%s, said once a reason): %s", reason, what)
        return Missing(reason)
