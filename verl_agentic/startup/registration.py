"""Registrations with verl and Hydra, each postponed until the module it extends is imported.

Every Ray process of a run imports the plugin; agent loops and the trainer cost seconds, so nothing of them is
imported here.
"""

from collections.abc import Callable
from importlib import import_module, metadata

import wrapt
from packaging.specifiers import SpecifierSet

from verl_agentic import __version__

SUPPORTED_VERL = ">=0.9,<0.10"

# (module that is extended, "module:function" of ours to call once it is imported; without function: import only)
LATE_REGISTRATIONS = (
    ("hydra", "verl_agentic.startup.recipe_search_path:register"),
    ("verl.plugin.platform.platform_manager", "verl_agentic.cpu.hooks:register"),
    ("verl.experimental.agent_loop", "verl_agentic.bridge.registry:register_agent_loops"),
    ("verl.experimental.reward_loop.reward_manager", "verl_agentic.bridge.reward_manager"),
    ("verl.trainer.ppo.core_algos", "verl_agentic.bridge.policy_losses"),
    ("verl.trainer.ppo.v1", "verl_agentic.bridge.trainer"),
)


class UnsupportedVersionError(RuntimeError):
    """The installed verl is outside the range this package was written for."""


def register_with_verl(on_failure: Callable[[Exception], None]) -> None:
    """Check verl's version and arrange all registrations.

    Args:
        on_failure: called with the exception of a registration that fails later, when its module is imported.

    Raises:
        UnsupportedVersionError: verl's version is outside ``SUPPORTED_VERL``.
        importlib.metadata.PackageNotFoundError: verl is not installed.
    """
    check_verl_version(metadata.version("verl"))
    for extended_module, target in LATE_REGISTRATIONS:
        wrapt.register_post_import_hook(_late_call(target, on_failure), extended_module)


def check_verl_version(installed: str) -> None:
    """Raise UnsupportedVersionError, naming both versions, unless `installed` lies in ``SUPPORTED_VERL``."""
    if not SpecifierSet(SUPPORTED_VERL).contains(installed, prereleases=True):
        raise UnsupportedVersionError(
            f"verl {installed} is installed but verl-agentic {__version__} supports verl{SUPPORTED_VERL}: "
            f"run pip install 'verl{SUPPORTED_VERL}'"
        )


def _late_call(target: str, on_failure: Callable[[Exception], None]) -> Callable[[object], None]:
    module_name, _, function_name = target.partition(":")

    def call(_extended_module: object) -> None:
        try:
            module = import_module(module_name)
            if function_name:
                getattr(module, function_name)()
        except Exception as error:
            on_failure(error)

    return call
