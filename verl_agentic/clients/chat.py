"""The client of an OpenAI-compatible chat endpoint: one reply to one conversation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from retriever_server.schema import ResponseError
from verl_agentic.clients.endpoints import check_url
from verl_agentic.clients.errors import ChatError
from verl_agentic.clients.transport import Answer, Transport

PATH = "/v1/chat/completions"
LARGEST_ANSWER = 16 * 2**20  # bytes: far above what `max_tokens` lets a model write
CUT_OFF = ("length", "content_filter")
KEY_BYTES = range(0x21, 0x7F)  # printable ASCII without the blank: what the value of a header may hold


class ChatClient:
    """Asks one or several equal chat endpoints; safe for many coroutines, usable from any loop, and picklable.

    At most `concurrency` calls of one event loop are under way at a time; the others wait, which does not count against
    `deadline_s` (a whole call, all attempts) or `timeout_s` (one attempt).

    Args:
        urls: addresses of the endpoints, with or without `/v1` at the end; the least loaded is asked.
        model: name of the model there.
        timeout_s, deadline_s: seconds above 0.
        retries: further attempts after one that failed, on another address where there is one.
        concurrency: at least 1.
        api_key_variable: the environment variable that holds the key; none is sent where it is unset or empty.

    Raises:
        ValueError: one of these is wrong.
    """

    _free: dict[asyncio.AbstractEventLoop, asyncio.Semaphore]

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str,
        *,
        timeout_s: float,
        deadline_s: float,
        retries: int,
        concurrency: int,
        api_key_variable: str = "OPENAI_API_KEY",
    ) -> None:
        urls = [urls] if isinstance(urls, str) else list(urls)
        if not urls or not model:
            raise ValueError("a chat client needs at least one address in urls, and the name of the model there")
        if not (timeout_s > 0 and deadline_s > 0 and retries >= 0 and concurrency >= 1):
            raise ValueError(
                "timeout_s and deadline_s of a chat client must be above 0, retries at least 0 and concurrency at "
                f"least 1, got {timeout_s:g}, {deadline_s:g}, {retries} and {concurrency}"
            )
        bases = [_base(url) for url in urls]
        self.model = model
        self.api_key_variable = api_key_variable
        self._concurrency = concurrency
        self._transport = Transport(bases, timeout_s, deadline_s, retries, ChatError, LARGEST_ANSWER)
        self._free = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses, without `/v1`."""
        return self._transport.endpoints.urls

    def only(self, url: str) -> ChatClient:
        """Return a client like this one of `url` alone."""
        transport = self._transport
        return ChatClient(
            [url],
            self.model,
            timeout_s=transport.timeout_s,
            deadline_s=transport.deadline_s,
            retries=transport.retries,
            concurrency=self._concurrency,
            api_key_variable=self.api_key_variable,
        )

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
        stop: Sequence[str] = (),
    ) -> str:
        """Return the model's reply to `messages` ({"role", "content"} each), without the stop string that ended it.

        Raises:
            ChatError: no attempt succeeded, or the reply is cut off at `max_tokens`, empty, or in an unknown shape.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "stream": False,
        }
        if stop:
            body["stop"] = list(stop)
        async with self._slot():
            return _text(await self._transport.call(PATH, body, headers=self._headers()))

    async def aclose(self) -> None:
        """Close this loop's connections; the client can be used again."""
        await self._transport.aclose()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": {}}

    def _headers(self) -> dict[str, str]:
        # read at each call and kept nowhere: what is pickled or printed cannot hold it
        key = os.environ.get(self.api_key_variable, "").strip()
        if any(ord(char) not in KEY_BYTES for char in key):
            what = f"was not asked: the environment variable {self.api_key_variable} holds what no HTTP header may hold"
            raise ChatError(self.urls[0], "refused", what)
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _slot(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._free:
            for other in [other for other in tuple(self._free) if other.is_closed()]:
                self._free.pop(other, None)
        return self._free.setdefault(loop, asyncio.Semaphore(self._concurrency))


def _base(url: str) -> str:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            f"the address of the chat endpoint at {parts.hostname} holds more than a host and a path; write it without "
            "user, password and query, and give the key in the environment"
        )
    check_url(url)
    return url.rstrip("/").removesuffix("/v1")


def _text(answer: Answer) -> str:
    text, finish_reason = answer.read(_first_choice)
    if finish_reason in CUT_OFF:
        raise ChatError(answer.url, "truncated", f"gives a reply that is cut off ({finish_reason})")
    if not text.strip():
        raise ChatError(answer.url, "empty", "gives no text")
    return text


def _first_choice(payload: Any) -> tuple[str, Any]:
    """The text of the first choice ("" for none) and its `finish_reason`."""
    choices = payload.get("choices") if isinstance(payload, dict) else None
    if not isinstance(choices, list):
        raise ResponseError("there is no list `choices`")
    if not choices:
        return "", None
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message = choice.get("message")
    text = message.get("content", "") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(text, str | None):
        raise ResponseError("`choices[0].message.content` is no text")
    return text or "", choice.get("finish_reason")
