"""Every recipe of agentic_rag_r1 composes, and says what it is for; its twin on a CPU keeps that."""

from pathlib import Path

import pytest

from verl_agentic.bridge.settings import load_settings
from verl_agentic.bridge.training_rules import trainer_settings
from verl_agentic.demo.judge import NAME
from verl_agentic.demo.recipe import compose_recipe, judge_of

# recipe without its prefix -> what differs from the main one
ABLATIONS = {
    "": {},
    "_no_memory": {"actions_off": ("backtrack", "summary"), "process": ["format", "retrieval"]},
    "_no_rejection": {"rule": "all"},
    "_no_process": {"process": ["format"]},
    "_no_retrieval_process": {"process": ["format", "memory"]},
    "_no_memory_process": {"process": ["format", "retrieval"]},
    "_steps30": {"max_actions": 30},
    "_released": {"rule": "quantile"},
    "_sft": {"model": "sft"},
    "_sft_only": {"model": "sft", "val_only": True},
}
MAIN = {
    "actions_off": (),
    "process": ["format", "retrieval", "memory"],
    "rule": "information",
    "fraction": 0.7,
    "max_actions": 10,
    "max_corrections": 3,
    "metric": "f1",
    "credit": "hierarchical",
    "process_coefficient": 0.1,
    "forgery_ends": False,
    "model": "plain",
    "prompts": "natural",
    "val_only": False,
    "val_before_train": True,
}
# Last part of the model's path -> what it is.
START = {
    "Qwen2.5-3B": "plain",
    "agentic_rag_r1": "plain",
    "agentic_rag_r1_sft": "sft",
    "agentic_rag_r1-without-backtrack-summary": "never taught to edit",
}
LENGTHS = {"": (5096, 4096), "_cpu": (320, 384)}
LONG = {"": (12288, 12288), "_cpu": (512, 512)}


def facts(recipe):
    config = compose_recipe(recipe)
    settings, trainer = load_settings(config), trainer_settings(config)
    return {
        "actions_off": settings.actions_off,
        "process": list(settings.reward["process"]),
        "rule": trainer.selection.rule,
        "fraction": trainer.selection.fraction,
        "max_actions": settings.budget.max_actions,
        "max_corrections": settings.budget.max_corrections,
        "metric": settings.reward["metric"],
        "credit": trainer.credit.name,
        "process_coefficient": trainer.credit.process_coefficient,
        "forgery_ends": settings.forgery_ends,
        "model": START[Path(config.actor_rollout_ref.model.path).name],
        "prompts": settings.prompts.replace("demo", "natural"),
        "lengths": (config.data.max_prompt_length, config.data.max_response_length),
        "val_only": config.trainer.val_only,
        "val_before_train": config.trainer.val_before_train,
    }


@pytest.mark.parametrize("twin", ["", "_cpu"])
@pytest.mark.parametrize("name", ABLATIONS)
def test_each_recipe_changes_what_it_is_named_for_and_nothing_else(name, twin):
    expected = {**MAIN, **ABLATIONS[name], "lengths": (LONG if name == "_steps30" else LENGTHS)[twin]}
    if name == "_no_memory":
        # the demo's prompts name no action, but its policies are taught by examples
        expected.update({"model": "never taught to edit"} if twin else {"prompts": "natural_no_memory"})
    found = facts(f"agentic_rag_r1{name}{twin}")
    if twin and "sft" in name:
        config = compose_recipe(f"agentic_rag_r1{name}{twin}")
        assert config.actor_rollout_ref.model.path == f"{config.agentic.demo_dir}/sft/agentic_rag_r1"
        found["model"] = "sft"
    assert found == expected


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_twins_are_judged_by_the_demos_scorer_where_anything_is_judged(name):
    assert judge_of(compose_recipe(f"agentic_rag_r1{name}_cpu")) == (None if name == "_no_process" else NAME)


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_experiment_has_the_name_of_its_recipe(name):
    for recipe in (f"agentic_rag_r1{name}", f"agentic_rag_r1{name}_cpu"):
        assert compose_recipe(recipe).trainer.experiment_name == recipe


def test_the_released_training_figures():
    config = compose_recipe("agentic_rag_r1")
    actor = config.actor_rollout_ref.actor
    assert (config.actor_rollout_ref.rollout.n, config.data.train_batch_size, actor.ppo_mini_batch_size) == (
        16,
        256,
        16,
    )
    assert (actor.optim.lr, actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (
        1e-6,
        True,
        0.001,
        "low_var_kl",
    )
    assert (config.data.max_prompt_length, config.data.max_response_length, config.trainer.total_epochs) == (
        5096,
        4096,
        3,
    )
