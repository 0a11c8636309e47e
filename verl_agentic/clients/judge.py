"""The client of a judge behind an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agentic.core.judging import Ask, Judgement


class JudgeClient:
    """Asks a chat model for verdicts."""

    def __init__(
        self,
        url: str,
        model: str,
        prompts: Mapping[str, str],
        *,
        timeout_s: float,
        deadline_s: float,
        retries: int,
        concurrency: int,
        cache_size: int,
        sampling: Mapping[str, Any],
    ):
        self.name = f"{model} at {url}"

    async def __call__(self, asks: Sequence[Ask]) -> list[Judgement]:
        raise NotImplementedError
