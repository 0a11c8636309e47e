"""An embedded generation engine: continuous batching over any transformers causal language model, one decode thread.

    engine = Engine(model, tokenizer)
    output = await engine.generate([1, 2, 3], {"temperature": 1.0, "max_tokens": 32, "stop": ["</search>"]})

Knows nothing of verl and ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from verl_agentic.cpu.batch import Batch
from verl_agentic.cpu.decode_thread import DecodeThread, EngineClosedError
from verl_agentic.cpu.model_checks import (
    check_architecture,
    check_limits,
    context_length,
    end_token_ids,
    vocabulary_size,
)
from verl_agentic.cpu.request import GenerationOutput, Request
from verl_agentic.cpu.sampling_params import SamplingParams, SamplingParamsError
from verl_agentic.cpu.stops import StopStrings
from verl_agentic.cpu.weights import WeightLoader

__all__ = ["Engine", "EngineClosedError", "GenerationOutput", "SamplingParamsError"]


class Engine:
    """Generates for many requests at once, each with its own sampling parameters.

    Args:
        model: transformers decoder-only model in eval mode.
        tokenizer: needed for stop strings only.
        max_model_len: most tokens of prompt and output; the model's own limit where None.
        max_batch: most requests decoded at once; others wait in order of arrival.
        max_prefill_tokens: most prompt tokens, padding included, of one prefill; a longer prompt goes alone.
        max_kept_tokens: most tokens of finished requests whose keys and values are kept, so that a later prompt which
            begins with them computes only what is new; nothing outlives a change of the weights.
        threads: torch threads of this process.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_model_len: int | None = None,
        max_batch: int = 256,
        max_prefill_tokens: int = 8192,
        max_kept_tokens: int = 65_536,
        threads: int = 1,
    ) -> None:
        self.max_model_len = context_length(model.config, max_model_len)
        check_architecture(model, self.max_model_len)
        check_limits(max_batch=max_batch, max_prefill_tokens=max_prefill_tokens, threads=threads)
        self._weights = WeightLoader(model)
        self._vocabulary = vocabulary_size(model)
        self._end_tokens = end_token_ids(model, tokenizer)
        self._has_tokenizer = tokenizer is not None
        self._ids = itertools.count()
        self._thread = DecodeThread(
            Batch(model, StopStrings(tokenizer) if tokenizer is not None else None, max_kept_tokens),
            max_batch=max_batch,
            max_prefill_tokens=max_prefill_tokens,
            threads=threads,
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str | None = None
    ) -> GenerationOutput:
        """Generate one continuation.

        Args:
            prompt_ids: at least one token, and room for one more in the context.
            sampling_params: see `SamplingParams`.
            request_id: for `abort`; unique among the requests in flight.

        Raises:
            SamplingParamsError: a parameter is unknown or out of range.
            ValueError: the prompt is empty, too long for the context, or holds an unknown token.
            EngineClosedError: `close` was called.
            RuntimeError: a weight update failed half-way and none has completed since.
        """
        deliver, future = _bridge()
        request = self._request(list(prompt_ids), SamplingParams.parse(sampling_params), request_id, deliver)
        self._thread.enqueue(request)
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(EngineClosedError):  # then it has ended already
                self._thread.submit(lambda: self._thread.abort([request]), lambda _: None, urgent=True)
            raise

    async def abort(self, request_id: str) -> bool:
        """End a request; its caller gets the tokens so far with finish reason "abort". False if it is not in flight."""

        def end() -> bool:
            return bool(thread.abort([request for request in thread.in_flight() if request.request_id == request_id]))

        thread = self._thread
        return await self._call(end, urgent=True)

    async def abort_all(self, reject: bool = False) -> list[str]:
        """End every request and hold later ones until `resume`.

        Args:
            reject: end later requests at once instead of holding them.

        Returns:
            Ids of the ended requests.
        """

        def close_and_abort() -> list[str]:
            self._thread.gates.add("paused")
            self._thread.rejecting = reject
            return self._thread.abort(self._thread.in_flight())

        return await self._call(close_and_abort, urgent=True)

    async def resume(self) -> None:
        """Admit requests again after `abort_all`."""

        def reopen() -> None:
            self._thread.gates.discard("paused")
            self._thread.rejecting = False

        await self._call(reopen, urgent=True)  # as `abort_all` is, so that the two keep their order

    async def sleep(self) -> None:
        """Wait for running requests, give the key-value memory back and hold later requests until `wake_up`."""

        def fall_asleep() -> None:
            self._thread.gates.add("asleep")
            self._thread.batch.free()

        await self._call(fall_asleep, when_idle=True)

    async def wake_up(self) -> None:
        """Admit requests again after `sleep`."""
        await self._call(lambda: self._thread.gates.discard("asleep"))

    async def drain(self) -> None:
        """Wait for running requests; requests that wait for a place go on waiting meanwhile."""
        await self._call(lambda: None, when_idle=True)

    async def clear_cache(self) -> None:
        """Give the key-value memory back once running requests are finished; it is allocated anew when needed."""
        await self._call(self._thread.batch.free, when_idle=True)

    async def update_weights(
        self, tensors: Iterable[tuple[str, torch.Tensor]], version: int | None, last: bool = True
    ) -> None:
        """Replace weights once running requests are finished; later requests wait for the new weights.

        Args:
            tensors: (name, tensor) by the model's own parameter names.
            version: reported with every output from now on.
            last: False where more tensors of the same version follow in further calls.

        Raises:
            KeyError, ValueError: a name or shape that the model does not have, or a weight that did not come by `last`.
                Where earlier buckets have been loaded, requests then fail until an update completes.
        """
        named = list(tensors)

        def replace() -> None:
            thread = self._thread
            thread.gates.discard("weights")  # stays open if loading fails: waiting callers must not hang
            thread.batch.forget()
            try:
                self._weights.load(named, last)
            except Exception as error:
                thread.unusable = _half_updated(error) if self._weights.mixed else None
                raise
            thread.unusable = None
            if last:
                thread.weight_version = version
            else:
                thread.gates.add("weights")

        await self._call(replace, when_idle=True)

    @property
    def weight_version(self) -> int | None:
        """Version of the weights in use; None before the first update."""
        return self._thread.weight_version

    def close(self) -> None:
        """Stop the decode thread; requests in flight and calls that wait get EngineClosedError. Idempotent."""
        self._thread.close()

    def _request(self, prompt: list[int], params: SamplingParams, request_id: str | None, deliver: Any) -> Request:
        room = self.max_model_len - len(prompt)
        if not prompt or room < 1:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens cannot be continued in a context of {self.max_model_len} tokens: "
                f"it must have between 1 and {self.max_model_len - 1}"
            )
        unknown = next((t for t in (*prompt, *params.stop_token_ids) if not 0 <= t < self._vocabulary), None)
        if unknown is not None:
            raise ValueError(f"token {unknown} is outside the model's vocabulary of {self._vocabulary} tokens")
        if params.stop and not self._has_tokenizer:
            raise SamplingParamsError("stop strings need a tokenizer: give one to the engine, or use stop_token_ids")
        seen = None
        if params.repetition_penalty != 1.0:
            seen = torch.zeros(self._vocabulary, dtype=torch.bool)
            seen[prompt] = True
        return Request(
            request_id=request_id if request_id is not None else f"request-{next(self._ids)}",
            prompt=prompt,
            params=params,
            end_tokens=frozenset() if params.ignore_eos else self._end_tokens,
            max_new=min(room, params.max_tokens or room),
            deliver=deliver,
            seen=seen,
        )

    async def _call(self, run: Callable[[], Any], *, when_idle: bool = False, urgent: bool = False) -> Any:
        deliver, future = _bridge()
        self._thread.submit(run, deliver, when_idle, urgent)
        return await future


def _half_updated(error: Exception) -> RuntimeError:
    return RuntimeError(
        f"the rollout model holds weights of two versions, because an update failed after some had been replaced "
        f"({error}): send all weights again"
    )


def _bridge() -> tuple[Callable[[Any], None], asyncio.Future[Any]]:
    """A future of the running loop, and a function that settles it from another thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def deliver(result: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result)

    return deliver, future
