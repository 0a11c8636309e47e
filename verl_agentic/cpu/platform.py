"""verl's platform interface for a machine without an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from verl_agentic.cpu.device_module import DEVICE_MODULE


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The host as the only device.

    Detection takes it only where no other registered platform is available; `VERL_PLATFORM=cpu` forces it. Ray
    schedules it under the resource name GPU, a logical slot: start ray with `ray_kwargs.ray_init.num_gpus=1`.
    """

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "generic"

    @property
    def device_module(self) -> ModuleType:
        return DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Detection asks the platforms in the order of registration; a plugin that registers an accelerator after us
        # must still win.
        others = [PlatformRegistry.get(name) for name in PlatformRegistry.registered_names()]
        return not any(
            other().is_platform_available(use_smi_check=use_smi_check)
            for other in others
            if other is not None and not issubclass(other, PlatformCPU)
        )

    def current_device(self) -> Any:
        # A string where the interface says int: verl hands it to tensor.to(), and 0 would mean cuda:0.
        return DEVICE_MODULE.current_device()

    def device_count(self) -> int:
        return DEVICE_MODULE.device_count()

    def set_device(self, device_index: int) -> None:
        DEVICE_MODULE.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        DEVICE_MODULE.synchronize(device_index)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The settings that verl passes (expandable segments) concern the CUDA allocator only."""

    def empty_cache(self) -> None:
        DEVICE_MODULE.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # Ray sets it for the logical GPU slots; nothing here reads a device from it.
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler; `global_profiler.tool=torch` profiles host code by itself."""

    def profiler_stop(self) -> None:
        """See `profiler_start`."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
