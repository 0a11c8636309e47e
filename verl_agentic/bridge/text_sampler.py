"""A sampler whose turns are written as texts: by an oracle, or by a teacher that has another tokenizer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.core.generation import Sample, Sampler

Write = Callable[[list[int], list[int]], Awaitable[str]]
"""(the context, what of it was appended since the last turn; all of it after an edit) -> the text of the next turn."""


def text_sampler(codec: TokenizerCodec, write: Write) -> Sampler:
    """A sampler that encodes what `write` returns, cut at the token limit of the turn as a rollout server would."""
    seen: list[int] = []

    async def sample(context: list[int], params: dict[str, Any]) -> Sample:
        appended = context[len(seen) :] if context[: len(seen)] == seen else context
        ids = codec.encode(await write(context, appended))
        kept = ids[: params["max_tokens"]]
        seen[:] = [*context, *kept]
        return Sample(token_ids=kept, log_probs=None, finish_reason="stop" if len(kept) == len(ids) else "length")

    return sample
