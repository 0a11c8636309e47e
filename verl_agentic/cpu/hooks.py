"""The few places of verl 0.9 that need adapting on a CPU, each wrapped when verl imports the module it lives in.

verl's files are never changed. Every hook first asks whether the platform is ours, so that a machine with an
accelerator runs stock verl. Registration imports nothing that verl has not imported by then.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

ROLLOUT_NAME = "hf"
_registered = False


def register() -> None:
    """Register the CPU platform with verl and install the hooks; idempotent, cheap, called in every process."""
    global _registered
    if _registered:
        return
    _registered = True
    importlib.import_module("verl_agentic.cpu.platform")
    for module_name, adapt in _HOOKS.items():
        wrapt.when_imported(module_name)(_only_on_cpu(adapt))


def _only_on_cpu(adapt: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    @functools.wraps(adapt)
    def hook(module: ModuleType) -> None:
        # Asked here and not in register(): detection may start nvidia-smi, and not every process needs the answer.
        from verl.plugin.platform import get_platform

        if get_platform().device_name == "cpu":
            adapt(module)

    return hook


def _use_gloo(module: Any) -> None:
    """verl composes "cpu:gloo,{device}:{backend}", and torch refuses a string that names the same device twice."""
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    module.initialize_global_process_group_ray = initialize


def _load_value_head_with_sdpa(module: Any) -> None:
    """verl's loader of the critic asks for flash_attention_2, which has no CPU kernel; sdpa computes the same."""

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model


def _hand_out_fsdp_engine(module: ModuleType) -> None:
    """verl registers its FSDP engine for cuda and npu. The class runs on a CPU; the variable is verl's own switch."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def _register_replica(module: Any) -> None:
    """The driver's side of the rollout: starts the server actor. Imported when a run asks for it by name."""

    def load() -> type:
        return importlib.import_module("verl_agentic.cpu.replica").EmbeddedReplica

    module.RolloutReplicaRegistry.register(ROLLOUT_NAME, load)


def _register_adapter(module: Any) -> None:
    """The trainer's side of the rollout: hands new weights to the server. verl has a dict here and no register()."""
    module._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "verl_agentic.cpu.replica.EmbeddedRollout"


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "verl.utils.distributed": _use_gloo,
    "verl.utils.model": _load_value_head_with_sdpa,
    "verl.workers.engine.base": _hand_out_fsdp_engine,
    "verl.workers.rollout.replica": _register_replica,
    "verl.workers.rollout.base": _register_adapter,
}
