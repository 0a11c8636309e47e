"""Which credit and selection a configuration asks for, and whether the rest of it goes with them."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from verl_agentic.bridge.settings import completed
from verl_agentic.core.selection import SelectionRule
from verl_agentic.core.suggest import did_you_mean

VERL, HIERARCHICAL = "verl", "hierarchical"
CREDITS = (VERL, HIERARCHICAL)


@dataclass(frozen=True)
class CreditSettings:
    """How rewards become advantages; the fields of `agentic.credit`."""

    name: str
    process_coefficient: float


@dataclass(frozen=True)
class TrainerSettings:
    """What the trainer reads of `config.agentic`; the rest is for the agent loops."""

    credit: CreditSettings
    selection: SelectionRule
    max_missing_share: float


def trainer_settings(config: DictConfig) -> TrainerSettings:
    """The trainer's part of `config.agentic`; the defaults where a stock configuration has no such key.

    Raises:
        ValueError: one sentence that names the key: it is unknown, its value is, or credit and selection do not go with
            the rest of the configuration.
    """
    given = config.get("agentic")
    method = given.get("method") if given else None
    agentic = completed(given, str(method or config.actor_rollout_ref.rollout.agent.default_agent_loop))
    credit = agentic.credit.name
    if credit not in CREDITS:
        raise ValueError(
            f"agentic.credit.name: unknown credit {credit!r}{did_you_mean(credit, CREDITS)} "
            f"(available: {list(CREDITS)})"
        )
    try:
        rule = SelectionRule(**agentic.selection)
    except ValueError as error:
        raise ValueError(f"agentic.selection.{error}") from error
    if credit == VERL and not rule.keeps_all:
        raise ValueError(
            "agentic.selection leaves sessions out before verl computes advantages, which would then miss them: set "
            "agentic.credit.name=hierarchical, or agentic.selection.rule=all and drop_zero_variance=false"
        )
    if credit == HIERARCHICAL:
        _check_hierarchical(config)
    return TrainerSettings(CreditSettings(**agentic.credit), rule, agentic.judge.max_missing_share)


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
