"""The requests being decoded together: they join after a prefill, advance one token a step, and leave when finished.

Synchronous and single-threaded; `engine.Engine` drives it from its decode thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from verl_agentic.cpu.kv_cache import RowCache
from verl_agentic.cpu.prefixes import PrefixStore
from verl_agentic.cpu.request import Request
from verl_agentic.cpu.sampling import BatchSampler
from verl_agentic.cpu.sampling_params import SamplingParamsError
from verl_agentic.cpu.stops import StopStrings


class Batch:
    """Decodes requests with a transformers causal language model.

    Args:
        model: decoder-only, with full attention in every layer.
        stops: finds stop strings; None where there is no tokenizer.
        max_kept_tokens: most tokens of finished requests whose keys and values are kept for later prompts.
    """

    def __init__(self, model: Any, stops: StopStrings | None, max_kept_tokens: int) -> None:
        self._model = model
        self._stops = stops
        self._cache = RowCache(model.config.get_text_config().num_hidden_layers)
        self._prefixes = PrefixStore(max_kept_tokens)
        self._sampler: BatchSampler | None = None
        self.active: list[Request] = []

    @torch.inference_mode()
    def join(self, requests: Sequence[Request]) -> list[Request]:
        """Prefill what is new of the prompts and draw their first tokens.

        Returns:
            Those that are finished already; they have left again. If the pass or the draw raises, none has joined.
        """
        first = len(self.active)
        self._cache.reserve(first + len(requests), max(len(request.prompt) for request in requests))
        self._cache.clear(first, first + len(requests))
        known = [self._recall(row, request) for row, request in enumerate(requests, start=first)]
        tokens, positions = _right_aligned([request.prompt for request in requests], known)
        logits = self._forward(first, tokens, positions)
        drawn = _draw(requests, BatchSampler([request.params for request in requests]), logits)
        self.active.extend(requests)
        self._sampler = None
        return self._advance(requests, drawn)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Draw one token for every active request; return those that are finished, which have left."""
        if self._sampler is None:
            self._sampler = BatchSampler([request.params for request in self.active])
        tokens = torch.tensor([[request.last_token] for request in self.active])
        positions = torch.tensor([[request.length - 1] for request in self.active])
        requests = list(self.active)
        return self._advance(requests, _draw(requests, self._sampler, self._forward(0, tokens, positions)))

    @torch.inference_mode()
    def remove(self, request: Request) -> None:
        """Take a request out; the last row takes its place, so that the rows stay dense."""
        row = self.active.index(request)
        if request.error is None:
            self._keep(row, request)
        last = self.active.pop()
        if last is not request:
            self.active[row] = last
            self._cache.move(len(self.active), row)
        self._sampler = None

    def clear(self) -> list[Request]:
        """Take all requests out, as after a failed step; returns them."""
        requests, self.active, self._sampler = self.active, [], None
        return requests

    def free(self) -> None:
        """Give the key-value memory back, that of finished requests too. Only while no request is active."""
        self._cache.free()
        self._prefixes.forget()

    def forget(self) -> None:
        """Keep nothing of finished requests, as the weights have changed."""
        self._prefixes.forget()

    def _recall(self, row: int, request: Request) -> int:
        """Fill a row with what is known of a prompt; returns how many tokens that is."""
        length, states = self._prefixes.longest(request.prompt)
        if length:
            self._cache.write(row, states, length)
        return length

    def _keep(self, row: int, request: Request) -> None:
        """Keep a context for later prompts; its last token has no keys and values yet."""
        tokens = [*request.prompt, *request.token_ids][:-1]
        self._prefixes.keep(tokens, [len(request.prompt), len(tokens)], self._cache.read(row, len(tokens)))

    def _forward(self, first: int, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mask = self._cache.aim(first, positions, self._model.dtype)
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def _advance(self, requests: Sequence[Request], drawn: Iterable[tuple[int, float]]) -> list[Request]:
        for request, (token, log_prob) in zip(requests, drawn, strict=True):
            self._append(request, token, log_prob)
        finished = [request for request in requests if request.done]
        for request in reversed(finished):
            self.remove(request)
        return finished

    def _append(self, request: Request, token: int, log_prob: float) -> None:
        try:
            _check_drawn(request, log_prob)
            request.append(token, log_prob, self._stops)
        except Exception as error:  # a fault of one request (its text, its numbers) must not end its neighbours
            request.error = error


def _draw(requests: Sequence[Request], sampler: BatchSampler, logits: torch.Tensor) -> Iterable[tuple[int, float]]:
    positions = np.array([request.length for request in requests], dtype=np.uint64)
    constraints = {row: c for row, request in enumerate(requests) if (c := request.constraint()) is not None}
    return zip(*sampler.draw(logits, positions, constraints), strict=True)


def _check_drawn(request: Request, log_prob: float) -> None:
    where = f"at position {request.length} of request {request.request_id}"
    if log_prob == -math.inf:
        raise SamplingParamsError(
            f"every token the model can produce is forbidden {where} by min_tokens={request.params.min_tokens}: "
            "ask for fewer stop_token_ids or a smaller min_tokens"
        )
    if not math.isfinite(log_prob):
        raise FloatingPointError(
            f"the model's logits are not finite {where}: its weights have diverged; lower the learning rate"
        )


def _right_aligned(prompts: Sequence[list[int]], known: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and positions of what is not known of the prompts, [n, longest].

    A short row repeats its first token at its position. The repeated token computes and stores the same key and value
    again, so no padding needs masking, and the last column is every prompt's last token.
    """
    rest = [prompt[start:] for prompt, start in zip(prompts, known, strict=True)]
    longest = max(map(len, rest))
    tokens = [[new[0]] * (longest - len(new)) + new for new in rest]
    positions = [
        [start] * (longest - len(new)) + list(range(start, start + len(new)))
        for new, start in zip(rest, known, strict=True)
    ]
    return torch.tensor(tokens), torch.tensor(positions)
