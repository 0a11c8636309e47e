"""What a recipe composes to, and what it needs of the demo: its judge, and the checkpoint that it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from verl_agentic.bridge.judging import make_judge
from verl_agentic.bridge.settings import load_settings
from verl_agentic.demo.oracles import load_method

COLD_START = "cold_start"
WARM_START = "sft"


def compose_recipe(recipe: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration of `python -m verl.trainer.main_ppo +recipe=RECIPE OVERRIDES`.

    Raises:
        ValueError: there is no such recipe, or an override does not fit.
    """
    import verl  # noqa: F401  (loads the plugin, which makes recipes known to Hydra)
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException

    with initialize_config_module("verl.trainer.config", version_base=None):
        try:
            return compose("ppo_trainer", overrides=[f"+recipe={recipe}", *overrides])
        except HydraException as error:
            reason = " ".join(str(error).partition("Available options")[0].split())
            raise ValueError(
                f"recipe {recipe!r} cannot be composed: {reason}; `verl-agentic recipes` lists the recipes"
            ) from error


def cold_start_of(config: DictConfig) -> str | None:
    """Name of the cold start below `agentic.demo_dir` from which a recipe trains; None where it starts elsewhere."""
    return _start_in(config, COLD_START)


def warm_start_of(config: DictConfig) -> str | None:
    """Name of the warm start below `agentic.demo_dir` from which a recipe trains; None where it starts elsewhere."""
    return _start_in(config, WARM_START)


def _start_in(config: DictConfig, folder: str) -> str | None:
    path = Path(config.actor_rollout_ref.model.path)
    return path.name if path.parent == Path(config.agentic.demo_dir) / folder else None


def judge_of(config: DictConfig) -> str | None:
    """Name of the judge that scores a recipe's process rewards; None where nothing is judged.

    Raises:
        ValueError: a judge is needed and cannot be made.
    """
    settings = load_settings(config)
    judge = make_judge(settings, load_method(settings.method))
    return judge.name if judge else None
