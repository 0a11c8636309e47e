"""The client of an OpenAI-compatible endpoint: messages go in, the text of the reply comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from retriever_server.schema import ResponseError
from verl_agentic.clients.endpoints import check_url
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.transport import Transport


class ChatError(Exception):
    """A call that failed for good, in one sentence; `kind` as in `RetrieverError`."""

    def __init__(self, url: str, kind: str, what: str) -> None:
        super().__init__(url, kind, what)
        self.url = url
        self.kind = kind
        self.what = what

    def __str__(self) -> str:
        return f"endpoint at {self.url} {self.what}"


class ChatClient:
    """Asks one or several equal servers for chat completions, from one event loop.

    Args:
        urls: addresses with their path up to `/v1`.
        model: the model's name there.
        timeout_s, deadline_s: of one attempt, and of a call with all its attempts.
        retries: further attempts after a failed one, on another address where there is one.
        concurrency: calls under way at a time; others wait.
        api_key_variable: the variable of the environment that holds the servers' key; none is sent where it is not set.

    Raises:
        ValueError: no address, or one that is none; times, retries or concurrency that allow no call.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        timeout_s: float,
        deadline_s: float,
        retries: int,
        concurrency: int,
        api_key_variable: str = "OPENAI_API_KEY",
    ) -> None:
        if not urls:
            raise ValueError("an endpoint needs at least one address")
        for url in urls:
            check_url(url)
        if not (timeout_s > 0 and deadline_s > 0 and retries >= 0 and concurrency > 0):
            raise ValueError(
                "timeout_s, deadline_s and concurrency of an endpoint must be above 0 and retries at least 0, got "
                f"{timeout_s:g}, {deadline_s:g}, {concurrency} and {retries}"
            )
        self.model = model
        self._transport = Transport(urls, timeout_s, deadline_s, retries, api_key_variable)
        self._places = asyncio.Semaphore(concurrency)

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
        stop: Sequence[str] = (),
        json_object: bool = False,
    ) -> str:
        """The text of one reply, possibly empty; servers leave the stop string out.

        Raises:
            ChatError: no attempt succeeded.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            **({"stop": list(stop)} if stop else {}),
            **({"response_format": {"type": "json_object"}} if json_object else {}),
        }
        async with self._places:
            try:
                return (await self._transport.call("/chat/completions", body)).read(_text)
            except RetrieverError as error:  # what the transport says of any server
                raise ChatError(error.url, error.kind, error.what) from error

    async def aclose(self) -> None:
        """Close the connections; the client can be used again."""
        await self._transport.aclose()


def _text(payload: Any) -> str:
    try:
        content = payload["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise ResponseError("no `choices[0].message.content`") from error
    if content is not None and not isinstance(content, str):
        raise ResponseError("`choices[0].message.content` is no text")
    return content or ""  # null where all that the model wrote was its thinking
