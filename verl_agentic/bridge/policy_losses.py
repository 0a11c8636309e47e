"""Policy losses beside verl's own, chosen by `actor_rollout_ref.actor.policy_loss.loss_mode`."""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla, register_policy_loss

KL_TO_OLD = "kl_to_old"
_LARGEST = 20.0  # of a log-ratio, as in verl's own loss


@register_policy_loss(KL_TO_OLD)
def policy_loss_with_kl_to_old(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's clipped loss plus `policy_loss.ppo_kl_coef` times KL(old || new), estimated on the rollout's tokens.

    Where a batch has one optimizer step, old and new policy are one: the term and its gradient are then 0.

    Args:
        old_log_prob, log_prob, advantages, response_mask: (rows, response length); the mask is 1 on trained tokens.
        loss_agg_mode: how verl makes one number of the tokens; the term is made one in the same way.
        config: verl's actor configuration.
        rollout_is_weights: of verl's rollout correction; they weigh the clipped loss alone.

    Returns:
        The loss, a scalar, and verl's metrics with `actor/kl_to_old`.

    Source: Dep-Search, section 3.4, the objective of GRPO, whose printed penalty is against the old policy.
    """
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )
    terms = kl_to_old(old_log_prob, log_prob)
    term = agg_loss(loss_mat=terms, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return loss + config.policy_loss.ppo_kl_coef * term, {**metrics, "actor/kl_to_old": term.detach().item()}


def kl_to_old(old_log_prob: torch.Tensor, log_prob: torch.Tensor) -> torch.Tensor:
    """r - 1 - log r of each token, where r is the new probability over the old one; at least 0.

    Its mean over tokens of the old policy estimates KL(old || new). Log-ratios are clamped to [-20, 20].
    """
    ratio = torch.clamp(log_prob - old_log_prob, min=-_LARGEST, max=_LARGEST)
    return torch.exp(ratio) - 1 - ratio
