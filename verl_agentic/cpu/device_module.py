"""The namespace that verl gets where `torch.cuda` would be: host memory, the host's random state, one stream."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch


def empty_cache() -> None:
    """Nothing to release: the host allocator keeps no cache that torch controls."""


def ipc_collect() -> None:
    """Nothing to collect: weights reach the rollout through ray's object store, not through device handles."""


def synchronize(device: Any = None) -> None:
    """Returns at once: host operations are finished when their call returns."""


def set_device(device: Any) -> None:
    """There is one host device; choosing it changes nothing."""


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """The host has no limit of this kind; verl only calls it for its reward-model servers."""


def is_available() -> bool:
    """Whether an accelerator is usable: never here, which keeps verl from CUDA-only calls."""
    return False


def device_count() -> int:
    """One: the host."""
    return 1


def current_device() -> str:
    """`"cpu"`, since verl passes it to `tensor.to()`, where the index 0 would mean `cuda:0`."""
    return "cpu"


def get_device_name(device: Any = None) -> str:
    """Name of the processor, as the operating system tells it."""
    return platform.processor() or platform.machine()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(available, total) bytes of the host's memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def memory_allocated(device: Any = None) -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def max_memory_allocated(device: Any = None) -> int:
    """Largest number of resident bytes this process had."""
    # The kernel brings its peak up to date lazily, so the present size can be larger.
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, memory_allocated())


def reset_peak_memory_stats(device: Any = None) -> None:
    """The operating system keeps the peak for the life of the process; it cannot be reset."""


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of torch's host generator."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    """Restore the state of torch's host generator."""
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    """Seed torch's host generator."""
    torch.manual_seed(seed)


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[None]:
    """A stream context without effect: the host runs one stream."""
    yield


def _build() -> ModuleType:
    module = ModuleType("verl_agentic.cpu.torch_cpu", __doc__)
    own = [
        empty_cache, ipc_collect, synchronize, set_device, set_per_process_memory_fraction, is_available, device_count,
        current_device, get_device_name, mem_get_info, memory_allocated, max_memory_allocated,
        reset_peak_memory_stats, get_rng_state, set_rng_state, manual_seed, stream,
    ]  # fmt: skip
    for function in own:
        setattr(module, function.__name__, function)
    aliases: dict[str, Any] = {"memory_reserved": memory_allocated, "max_memory_reserved": max_memory_allocated}
    aliases |= {"manual_seed_all": manual_seed}
    borrowed = {name: getattr(torch.cpu, name) for name in ("current_stream", "Stream", "Event")}
    for name, value in (aliases | borrowed).items():
        setattr(module, name, value)
    return module


DEVICE_MODULE = _build()
