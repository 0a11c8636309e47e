"""Which credit and selection a configuration asks for, and whether the rest of it goes with them."""

from __future__ import annotations

from omegaconf import DictConfig

from verl_agentic.bridge.settings import Settings, load_settings
from verl_agentic.core.selection import SelectionRule
from verl_agentic.core.suggest import did_you_mean

VERL, HIERARCHICAL = "verl", "hierarchical"
CREDITS = (VERL, HIERARCHICAL)


def trainer_settings(config: DictConfig) -> Settings:
    """`config.agentic` as the trainer reads it; the defaults where a stock configuration names no method."""
    agentic = config.get("agentic")
    named = agentic is not None and agentic.get("method")
    return load_settings(config, None if named else str(config.actor_rollout_ref.rollout.agent.default_agent_loop))


def check_training(config: DictConfig, settings: Settings) -> SelectionRule:
    """Refuse credit and selection that are unknown or do not go with the rest of the configuration.

    Returns:
        The rule of selection.

    Raises:
        ValueError: one sentence that names the key.
    """
    credit = settings.credit.name
    if credit not in CREDITS:
        raise ValueError(
            f"agentic.credit.name: unknown credit {credit!r}{did_you_mean(credit, CREDITS)} "
            f"(available: {list(CREDITS)})"
        )
    try:
        rule = SelectionRule(**vars(settings.selection))
    except ValueError as error:
        raise ValueError(f"agentic.selection.{error}") from error
    if credit == VERL and not rule.keeps_all:
        raise ValueError(
            "agentic.selection leaves sessions out before verl computes advantages, which would then miss them: set "
            "agentic.credit.name=hierarchical, or agentic.selection.rule=all and drop_zero_variance=false"
        )
    if credit == HIERARCHICAL:
        _check_hierarchical(config)
    return rule


def _check_hierarchical(config: DictConfig) -> None:
    if config.algorithm.use_kl_in_reward:
        raise ValueError(
            "agentic.credit.name=hierarchical reads no token rewards, so algorithm.use_kl_in_reward=true would do "
            "nothing: set it to false and, for a KL term, actor_rollout_ref.actor.use_kl_loss=true"
        )
    if _has_critic(config):
        raise ValueError(
            "agentic.credit.name=hierarchical uses no critic: set algorithm.adv_estimator=grpo and leave critic.enable "
            "unset, or set agentic.credit.name=verl"
        )


def _has_critic(config: DictConfig) -> bool:
    """As verl decides it (`need_critic`), without its warning where there is none."""
    enabled = config.critic.get("enable")
    return config.algorithm.adv_estimator == "gae" if enabled is None else bool(enabled)
