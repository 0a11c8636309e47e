"""Which of verl's rollout settings the embedded rollout honours; the others are refused before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_agentic.core.suggest import did_you_mean

SECTION = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class EngineSettings:
    """Settings under `rollout.engine_kwargs.hf`.

    Attributes:
        threads: torch threads of the server process.
        max_kept_tokens: most tokens of finished requests whose keys and values are kept for later prompts.
    """

    threads: int = 1
    max_kept_tokens: int = 65_536

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> EngineSettings:
        """Check the settings; an unknown or impossible one raises ValueError."""
        known = list(cls.__dataclass_fields__)
        for key, value in raw.items():
            if key not in known:
                raise ValueError(f"unknown setting {SECTION}.engine_kwargs.hf.{key}{did_you_mean(key, known)}")
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{SECTION}.engine_kwargs.hf.{key}={value!r} must be a positive integer")
        return cls(**raw)


def check_rollout_config(config: Any, model_config: Any) -> None:
    """Refuse what the embedded rollout cannot do.

    Args:
        config: verl's RolloutConfig.
        model_config: verl's model configuration, dataclass or mapping.

    Raises:
        NotImplementedError: one sentence with the setting, its value, and what to do.
    """
    for key in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        _refuse(key, config[key], config[key] != 1, "the model runs whole in one process: set it to 1")
    _refuse("quantization", config.quantization, config.quantization is not None, "set it to null")
    qat = config.qat or {}
    _refuse("qat.enable", True, bool(qat.get("enable", False)), "set it to False")
    _refuse("mtp.enable_rollout", True, config.mtp.enable and config.mtp.enable_rollout, "set it to False")
    replay = config.enable_rollout_routing_replay
    _refuse("enable_rollout_routing_replay", replay, replay, "set it to False")
    _refuse("prometheus.enable", True, config.prometheus.enable, "the rollout has no HTTP address: set it to False")
    lora = model_config.get("lora", None) or {}
    if (model_config.get("lora_rank", 0) or lora.get("rank", 0)) and not lora.get("merge", False):
        raise NotImplementedError(
            "the rollout 'hf' serves full weights and no LoRA adapters: set actor_rollout_ref.model.lora.merge=True"
        )


def _refuse(key: str, value: Any, refused: bool, advice: str) -> None:
    if refused:
        raise NotImplementedError(f"the rollout 'hf' cannot honour {SECTION}.{key}={value}: {advice}")
