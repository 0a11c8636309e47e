"""Mini-batches by their number: a step makes as many optimizer steps as the recipe says, however many rows it has.

verl counts mini-batches in prompts x rollouts and pads the rows up to whole ones, so that sessions of several rows
would add optimizer steps, and left-out sessions would fill mini-batches with padding. Here the rows of a step are split
evenly into the recipe's number of them. With one row a session and nothing left out both come to the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, lcm

from omegaconf import DictConfig, open_dict


def optimizer_steps(config: DictConfig, role: DictConfig, parameter_sync_step: int = 1) -> int:
    """Mini-batches of a step of an actor or a critic: the prompts of a step over those of a mini-batch, rounded up.

    Args:
        config: verl's whole configuration.
        role: its section of the actor or the critic.
        parameter_sync_step: parts into which verl divides a step.
    """
    return ceil(config.data.train_batch_size / parameter_sync_step / role.ppo_mini_batch_size)


def row_multiple(config: DictConfig, ranks: int, *, critic: bool, reference: bool, parameter_sync_step: int = 1) -> int:
    """The number of rows of a step must be a multiple of this.

    Every rank has equal mini-batches, and these whole micro-batches wherever their size is fixed.

    Args:
        config: verl's whole configuration.
        ranks: data-parallel size.
        critic, reference: whether there is a critic, and a reference policy.
        parameter_sync_step: parts into which verl divides a step.
    """
    actor, rollout, ref = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "ref"))
    steps = optimizer_steps(config, actor, parameter_sync_step)
    sizes = [
        steps * _fixed(actor, "use_dynamic_bsz", "ppo_micro_batch_size_per_gpu"),
        _fixed(rollout, "log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu"),
    ]
    if reference:
        sizes.append(_fixed(ref, "log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu"))
    if critic:
        steps = optimizer_steps(config, config.critic, parameter_sync_step)
        sizes.append(steps * _fixed(config.critic, "use_dynamic_bsz", "ppo_micro_batch_size_per_gpu"))
        sizes.append(_fixed(config.critic, "use_dynamic_bsz", "forward_micro_batch_size_per_gpu"))
    return ranks * lcm(*sizes)


def _fixed(section: DictConfig, dynamic: str, size: str) -> int:
    """Rows of a micro-batch where their number is fixed, else 1."""
    return 1 if section.get(dynamic) else section.get(size) or 1


@contextmanager
def even_mini_batches(config: DictConfig, role: DictConfig, rows: int, parameter_sync_step: int = 1) -> Iterator[None]:
    """Let verl read mini-batches of equal size for `rows` rows; the configuration is as before afterwards.

    verl multiplies `ppo_mini_batch_size` by `rollout.n`, which need not divide the rows of a mini-batch: both are set.
    """
    rollout = config.actor_rollout_ref.rollout
    before = role.ppo_mini_batch_size, rollout.n
    size = rows // optimizer_steps(config, role, parameter_sync_step)
    with open_dict(config):
        role.ppo_mini_batch_size, rollout.n = size, 1
        try:
            yield
        finally:
            role.ppo_mini_batch_size, rollout.n = before
