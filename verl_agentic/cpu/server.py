"""The rollout server: an engine in a ray actor, with the methods that verl calls on a rollout server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from verl_agentic.cpu.engine import Engine
from verl_agentic.cpu.reply import Reply
from verl_agentic.cpu.rollout_config import EngineSettings


@dataclass(frozen=True)
class ServerConfig:
    """What the server needs of verl's configuration, in values that can be unpickled without verl.

    Attributes:
        model_path: local folder of the model.
        hf_config: transformers configuration, overrides applied.
        tokenizer: transformers tokenizer.
        trust_remote_code: whether the folder's own code may run.
        dtype: of the weights.
        max_model_len, max_num_seqs, max_num_batched_tokens, prompt_length, response_length, repetition_penalty,
            ignore_eos, free_cache_engine: as in `actor_rollout_ref.rollout`.
        settings: `rollout.engine_kwargs.hf`.
    """

    model_path: str
    hf_config: Any
    tokenizer: Any
    trust_remote_code: bool
    dtype: torch.dtype
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    prompt_length: int
    response_length: int
    repetition_penalty: float
    ignore_eos: bool
    free_cache_engine: bool
    settings: EngineSettings


def load_engine(config: ServerConfig) -> Engine:
    """Load the policy and start an engine on it.

    Weights are read from the model's folder even for `load_format=dummy`: a host read is cheap, and a run whose first
    weight update failed would otherwise sample from noise.
    """
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(config.settings.threads)
    model = AutoModelForCausalLM.from_pretrained(
        config.model_path,
        config=config.hf_config,
        dtype=config.dtype,
        attn_implementation="sdpa",
        trust_remote_code=config.trust_remote_code,
    )
    return Engine(
        model.eval(),
        config.tokenizer,
        max_model_len=config.max_model_len,
        max_batch=config.max_num_seqs,
        max_prefill_tokens=config.max_num_batched_tokens,
        max_kept_tokens=config.settings.max_kept_tokens,
        threads=config.settings.threads,
    )


class EmbeddedServer:
    """One engine; run as a ray actor by `EmbeddedReplica`."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._engine = load_engine(config)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> Reply:
        """Generate one continuation, token ids in and out.

        Without `max_tokens` or `max_new_tokens` the budget is that of verl's own servers: the configured response
        length, and no more than prompt length + response length in all.

        Raises:
            ValueError: see `Engine.generate`; also when the request carries images, video or audio.
        """
        if any(media is not None for media in (image_data, video_data, audio_data)):
            raise ValueError(f"request {request_id} carries images, video or audio: the rollout 'hf' serves text only")
        params = {"repetition_penalty": self._config.repetition_penalty, "ignore_eos": self._config.ignore_eos}
        params |= sampling_params
        if params.get("max_tokens") is None and params.get("max_new_tokens") is None:
            params["max_tokens"] = self._default_budget(len(prompt_ids))
        return Reply(await self._engine.generate(prompt_ids, params, request_id))

    async def update_weights(
        self, tensors: list[tuple[str, torch.Tensor]], global_steps: int | None, last: bool = True
    ) -> None:
        """See `Engine.update_weights`."""
        await self._engine.update_weights(tensors, global_steps, last)

    async def sleep(self) -> None:
        """Wait for running requests and release the key-value memory; the weights stay, they are the only copy here."""
        if self._config.free_cache_engine:
            await self._engine.sleep()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Admit requests again; with tags only at "kv_cache", which verl asks for after the new weights."""
        if tags is None or "kv_cache" in tags:
            await self._engine.wake_up()

    async def clear_kv_cache(self) -> None:
        """Forget what was computed for earlier requests."""
        await self._engine.clear_cache()

    async def release_kv_cache(self) -> None:
        """Release the key-value memory around a weight update from outside."""
        await self.sleep()

    async def resume_kv_cache(self) -> None:
        """Counterpart of `release_kv_cache`."""
        await self._engine.wake_up()

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End all requests, callers get their tokens so far; later ones wait for `resume_generation` or are refused."""
        ids = await self._engine.abort_all(reject=reject_request)
        return {"aborted_count": len(ids), "request_ids": ids}

    async def resume_generation(self) -> None:
        """Admit requests again after `abort_all_requests`."""
        await self._engine.resume()

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """End one request."""
        return {"aborted": await self._engine.abort(request_id), "request_id": request_id}

    async def start_profile(self, **kwargs: Any) -> None:
        """The embedded engine has no profiler of its own."""

    async def stop_profile(self) -> None:
        """See `start_profile`."""

    def _default_budget(self, prompt_length: int) -> int:
        config = self._config
        return max(1, min(config.response_length, config.prompt_length + config.response_length - prompt_length))
