"""The rollout server: an engine in a ray actor, with the methods that verl calls on a rollout server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from verl_agentic.cpu.engine import Engine, GenerationOutput
from verl_agentic.cpu.rollout_config import EngineSettings

# verl knows "completed" (also for a full budget, as its own servers say) and "aborted", which its client resumes.
STOP_REASONS = {"stop": "completed", "length": "completed", "abort": "aborted"}


def load_engine(config: RolloutConfig, model_config: Any) -> Engine:
    """Load the policy and start an engine on it.

    Weights are read from the model's folder even for `load_format=dummy`: a host read is cheap, and a run whose first
    weight update failed would otherwise sample from noise.

    Args:
        config: verl's rollout configuration.
        model_config: verl's model configuration, dataclass or mapping.
    """
    from transformers import AutoModelForCausalLM

    settings = EngineSettings.parse(dict(config.engine_kwargs.get("hf", None) or {}))
    torch.set_num_threads(settings.threads)
    model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
    model = AutoModelForCausalLM.from_pretrained(
        model_config.local_path,
        config=model_config.hf_config,
        dtype=PrecisionType.to_dtype(config.dtype),
        attn_implementation="sdpa",
        trust_remote_code=model_config.trust_remote_code,
    )
    return Engine(
        model.eval(),
        model_config.tokenizer,
        max_model_len=config.max_model_len,
        max_batch=config.max_num_seqs,
        max_prefill_tokens=config.max_num_batched_tokens,
        threads=settings.threads,
    )


class EmbeddedServer:
    """One engine; run as a ray actor by `EmbeddedReplica`.

    Args:
        config: verl's rollout configuration.
        model_config: verl's model configuration.
    """

    def __init__(self, config: RolloutConfig, model_config: Any) -> None:
        self._config = config
        self._engine = load_engine(config, model_config)

    async def ready(self) -> bool:
        """Answers once the model is loaded."""
        return True

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> TokenOutput:
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
        return self._token_output(await self._engine.generate(prompt_ids, params, request_id))

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

    @staticmethod
    def _token_output(output: GenerationOutput) -> TokenOutput:
        extra = {
            "global_steps": output.weight_version,
            "finish_reason": output.finish_reason,
            "num_cached_tokens": output.cached_tokens,
        }
        return TokenOutput(
            token_ids=output.token_ids,
            log_probs=output.log_probs,
            stop_reason=STOP_REASONS[output.finish_reason],
            num_preempted=0,
            extra_fields=extra,
        )
