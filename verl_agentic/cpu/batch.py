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
from verl_agentic.cpu.request import Request
from verl_agentic.cpu.sampling import BatchSampler
from verl_agentic.cpu.sampling_params import SamplingParamsError
from verl_agentic.cpu.stops import StopStrings


class Batch:
    """Decodes requests with a transformers causal language model.

    Args:
        model: decoder-only, with full attention in every layer.
        stops: finds stop strings; None where there is no tokenizer.
    """

    def __init__(self, model: Any, stops: StopStrings | None) -> None:
        self._model = model
        self._stops = stops
        self._cache = RowCache(model.config.get_text_config().num_hidden_layers)
        self._sampler: BatchSampler | None = None
        self.active: list[Request] = []

    @torch.inference_mode()
    def join(self, requests: Sequence[Request]) -> list[Request]:
        """Prefill the prompts and draw their first tokens.

        Returns:
            Those that are finished already; they have left again. If the pass or the draw raises, none has joined.
        """
        tokens, positions = _right_aligned([request.prompt for request in requests])
        self._cache.clear(len(self.active), len(self.active) + len(requests))
        logits = self._forward(len(self.active), tokens, positions)
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
        row, last = self.active.index(request), self.active.pop()
        if last is not request:
            self.active[row] = last
            self._cache.move(len(self.active), row)
        self._sampler = None

    def clear(self) -> list[Request]:
        """Take all requests out, as after a failed step; returns them."""
        requests, self.active, self._sampler = self.active, [], None
        return requests

    def free(self) -> None:
        """Give the key-value memory back. Only while no request is active."""
        self._cache.free()

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


def _right_aligned(prompts: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and positions, [n, longest]; a short prompt repeats its first token at its first position.

    The repeated token computes and stores the same key and value again, so no padding needs masking, and the last
    column is every prompt's last token.
    """
    longest = max(map(len, prompts))
    tokens = [[prompt[0]] * (longest - len(prompt)) + prompt for prompt in prompts]
    positions = [[0] * (longest - len(prompt)) + list(range(len(prompt))) for prompt in prompts]
    return torch.tensor(tokens), torch.tensor(positions)
