"""The penalty of dep_search against the old policy, as verl's registry gives it to the actor."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

from verl_agentic.bridge.policy_losses import kl_to_old
from verl_agentic.demo.recipe import compose_recipe

HALVED = math.log(0.5)
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def actor(beta):
    return ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(loss_mode="kl_to_old", ppo_kl_coef=beta),
    )


def batch(rows=3, length=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, length, generator=generator) * 3
    new = (old + torch.randn(rows, length, generator=generator) * 0.4).requires_grad_()
    mask = (torch.rand(rows, length, generator=generator) > 0.3).float()
    mask[:, 0] = 1.0
    return old, new, torch.randn(rows, length, generator=generator), mask


def test_by_hand():
    # r = .5: .5 - 1 + log 2 = .193147; r = 2: 2 - 1 - log 2 = .306853; r = 1: 0
    old = torch.zeros(3)
    found = kl_to_old(old, torch.tensor([HALVED, -HALVED, 0.0]))
    assert found.tolist() == pytest.approx([0.193147, 0.306853, 0.0], abs=1e-6)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=20))
def test_it_is_a_naive_loop_and_never_negative(pairs):
    old, new = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    found = kl_to_old(old, new).tolist()
    ratios = [max(-20.0, min(20.0, b - a)) for a, b in pairs]
    assert found == pytest.approx([math.exp(x) - 1 - x for x in ratios], rel=1e-9, abs=1e-9)
    assert all(value >= -1e-12 for value in found)


def test_old_and_new_policy_in_one_have_neither_term_nor_gradient():
    old = torch.tensor([-1.0, -2.0])
    new = old.clone().requires_grad_()
    term = kl_to_old(old, new).sum()
    term.backward()
    assert term.item() == 0.0
    assert new.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_factor_it_is_verls_own_loss(mode):
    old, new, advantages, mask = batch()
    ours, _ = get_policy_loss_fn("kl_to_old")(old, new, advantages, mask, mode, actor(0.0))
    theirs, _ = get_policy_loss_fn("vanilla")(old, new, advantages, mask, mode, actor(0.0))
    assert ours.item() == theirs.item()


@pytest.mark.parametrize("mode", MODES)
def test_the_term_is_aggregated_as_the_loss_is(mode):
    old, new, advantages, mask = batch(seed=1)
    ours, metrics = get_policy_loss_fn("kl_to_old")(old, new, advantages, mask, mode, actor(0.5))
    theirs, _ = get_policy_loss_fn("vanilla")(old, new, advantages, mask, mode, actor(0.5))
    term = agg_loss(loss_mat=kl_to_old(old, new), loss_mask=mask, loss_agg_mode=mode)
    assert metrics["actor/kl_to_old"] == pytest.approx(term.item())
    assert term.item() > 0
    assert ours.item() == pytest.approx(theirs.item() + 0.5 * term.item())


def test_the_token_mean_by_hand():
    # ratios .5 and 2 on trained tokens, advantages 0: 0.1 * (.193147 + .306853) / 2 = .025
    old, mask = torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 0.0]])
    new = torch.tensor([[HALVED, -HALVED, 5.0]])
    loss, metrics = get_policy_loss_fn("kl_to_old")(old, new, torch.zeros(1, 3), mask, "token-mean", actor(0.1))
    assert loss.item() == pytest.approx(0.025, abs=1e-6)
    assert metrics["actor/kl_to_old"] == pytest.approx(0.25, abs=1e-6)


def test_observations_have_no_part_in_it():
    old, new, advantages, mask = batch(seed=2)
    loss, _ = get_policy_loss_fn("kl_to_old")(old, new, advantages, mask, "token-mean", actor(1.0))
    loss.backward()
    assert new.grad[mask == 0].abs().max().item() == 0.0
    changed = torch.where(mask == 0, new.detach() - 3.0, new.detach())
    again, _ = get_policy_loss_fn("kl_to_old")(old, changed, advantages, mask, "token-mean", actor(1.0))
    assert again.item() == pytest.approx(loss.item())


@pytest.mark.parametrize("twin", ["", "_cpu"])
def test_the_recipe_chooses_it_in_place_of_the_penalty_against_the_first_policy(twin):
    main, paper = (compose_recipe(f"dep_search{name}{twin}").actor_rollout_ref.actor for name in ("", "_kl_paper"))
    assert main.policy_loss.loss_mode == "vanilla"
    assert (paper.policy_loss.loss_mode, paper.policy_loss.ppo_kl_coef, paper.use_kl_loss) == (
        "kl_to_old",
        0.001,
        False,
    )
