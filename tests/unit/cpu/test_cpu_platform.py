"""The CPU platform against verl's own interface, and the hooks that adapt verl only where the platform is ours."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import verl
from verl.plugin.platform import PlatformBase, PlatformRegistry

from verl_agentic.cpu.device_module import DEVICE_MODULE
from verl_agentic.cpu.platform import PlatformCPU

VERL = Path(verl.__file__).parent

# Functions of the device namespace that verl calls only in kernels and offloading made for an accelerator.
ACCELERATOR_ONLY = {"cudart", "memory", "nvtx", "profiler", "get_device_properties", "temperature", "utilization"}


def run_python(code, **environment):
    """Run code in a fresh interpreter without plugins; returns its standard output."""
    # Without what the hooks have set in this process, where an earlier test imported verl with the plugin.
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("VERL_ENGINE_DEVICE", "VERL_PLATFORM")
    }
    variables = {**inherited, "VERL_USE_EXTERNAL_PLUGINS": "none", **environment}
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_every_abstract_method_of_verl_is_implemented():
    assert not PlatformCPU.__abstractmethods__
    assert set(vars(PlatformCPU)) >= PlatformBase.__abstractmethods__


def device_functions_verl_calls():
    """Names read from `get_torch_device()` anywhere in verl."""
    names = set()
    for file in VERL.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
                called = node.value.func
                if "get_torch_device" in (getattr(called, "id", None), getattr(called, "attr", None)):
                    names.add(node.attr)
    return names


def test_the_device_module_has_all_that_verl_reads_from_it():
    names = device_functions_verl_calls()
    assert {"empty_cache", "synchronize", "is_available", "set_device"} <= names
    assert {name for name in names if not hasattr(DEVICE_MODULE, name)} <= ACCELERATOR_ONLY


def test_answers():
    platform = PlatformCPU()
    assert (platform.device_name, platform.communication_backend_name()) == ("cpu", "gloo")
    assert platform.is_available()
    assert not platform.device_module.is_available()
    assert (platform.device_count(), platform.get_device_capability()) == (1, (None, None))
    assert platform.ray_resource_options(0.5) == {"num_gpus": 0.5}
    assert torch.zeros(1).to(platform.current_device()).device.type == "cpu"
    assert not platform.is_ipc_supported()
    for call in (platform.empty_cache, platform.synchronize, platform.profiler_start, platform.profiler_stop):
        call()
    platform.set_device(0)
    platform.set_allocator_settings("expandable_segments:True")
    with platform.nvtx_range("step"):
        platform.manual_seed_all(3)
        first = torch.rand(4)
    platform.manual_seed(3)
    assert torch.equal(first, torch.rand(4))


def test_the_device_module_tells_of_the_host():
    available, total = DEVICE_MODULE.mem_get_info()
    assert 0 < available <= total
    assert 10_000_000 < DEVICE_MODULE.memory_allocated() <= DEVICE_MODULE.max_memory_allocated() <= total
    state = DEVICE_MODULE.get_rng_state()
    first = torch.rand(2)
    DEVICE_MODULE.set_rng_state(state)
    assert torch.equal(first, torch.rand(2))
    with DEVICE_MODULE.stream(DEVICE_MODULE.current_stream()):
        assert DEVICE_MODULE.device_count() == 1


def test_an_accelerator_registered_later_wins(monkeypatch):
    class Accelerator(PlatformCPU.__bases__[0]):
        def is_platform_available(self, use_smi_check=False):
            return True

    Accelerator.__abstractmethods__ = frozenset()
    monkeypatch.setattr(PlatformRegistry, "_platforms", {"cpu": PlatformCPU, "new": Accelerator})
    assert not PlatformCPU().is_platform_available(use_smi_check=True)
    monkeypatch.setattr(PlatformRegistry, "_platforms", {"cpu": PlatformCPU})
    assert PlatformCPU().is_platform_available(use_smi_check=True)


HOOKED = """
import verl
from verl_agentic.cpu.hooks import register
register(); register()
import verl.utils.distributed as distributed, verl.workers.rollout.replica as replica, verl.workers.rollout.base as base
from verl.plugin.platform import get_platform
import os
print(get_platform().device_name, "hf" in replica.RolloutReplicaRegistry._registry,
      ("hf", "async") in base._ROLLOUT_REGISTRY, os.environ.get("VERL_ENGINE_DEVICE"),
      hasattr(distributed.initialize_global_process_group_ray, "__wrapped__"))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with an accelerator must not detect the CPU")
def test_without_an_accelerator_the_cpu_is_detected_and_verl_adapted():
    assert run_python(HOOKED, VERL_PLATFORM="") == "cpu True True None True"


def test_the_variable_forces_the_cpu_and_the_engine_registry_is_redirected_late():
    code = HOOKED.replace("import os\n", "import os\nimport verl.workers.engine.base\n")
    assert run_python(code, VERL_PLATFORM="cpu") == "cpu True True cuda True"


def test_on_another_platform_verl_stays_as_it_is():
    assert run_python(HOOKED, VERL_PLATFORM="nvidia") == "cuda False False None False"


def test_registration_imports_nothing_heavy():
    code = """
import sys, verl
before = set(sys.modules)
from verl_agentic.cpu.hooks import register
register()
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - {"wrapt", "verl_agentic"} - set(sys.stdlib_module_names)))
print([name for name in sys.modules if name.startswith("verl_agentic.")])
"""
    heavy, own = run_python(code).splitlines()
    assert heavy == "[]"
    assert "verl_agentic.cpu.engine" not in own
    assert "verl_agentic.cpu.replica" not in own


def test_the_server_process_never_imports_verl():
    code = "import sys, verl_agentic.cpu.server; print(any(name.partition('.')[0] == 'verl' for name in sys.modules))"
    assert run_python(code) == "False"


def test_gloo_forms_a_group_and_an_explicit_backend_is_kept():
    code = """
import os, verl
from verl_agentic.cpu.hooks import register
register()
from verl.utils.distributed import initialize_global_process_group_ray
import torch.distributed as dist, tempfile
os.environ.update(RANK="0", WORLD_SIZE="1", DIST_INIT_METHOD="file://" + tempfile.mkdtemp() + "/store")
initialize_global_process_group_ray(timeout_second=30)
print(dist.get_backend())
"""
    assert run_python(code, VERL_PLATFORM="cpu") == "gloo"


def test_the_critic_is_loaded_with_sdpa(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    code = f"""
import verl
from verl_agentic.cpu.hooks import register
register()
import torch
from transformers import AutoConfig
from verl.utils.model import load_valuehead_model
config = AutoConfig.from_pretrained({str(tmp_path)!r}, num_labels=1)
model = load_valuehead_model({str(tmp_path)!r}, torch.float32, config, False)
print(type(model).__name__, model.config._attn_implementation, model.dtype, tuple(model.score.weight.shape))
"""
    expected = "LlamaForTokenClassification sdpa torch.float32 (1, 64)"
    assert run_python(code, VERL_PLATFORM="cpu").splitlines()[-1] == expected
