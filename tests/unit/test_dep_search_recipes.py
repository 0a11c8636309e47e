"""Every recipe of dep_search composes, and says what it is for; its twin on a CPU keeps that."""

import pytest
from hydra import compose, initialize_config_module

from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.settings import load_settings
from verl_agentic.demo.recipe import compose_recipe
from verl_agentic.methods.dep_search import METHOD

# recipe without its prefix -> what differs from the main one
ABLATIONS = {
    "": {},
    "_no_decompose": {"actions_off": ("Decompose",), "prompts": "natural_no_decompose"},
    "_no_memory": {"actions_off": ("Memory",), "store": "nothing", "prompts": "natural_no_memory"},
    "_no_conclusion": {"actions_off": ("Conclusion",), "store": "passages", "prompts": "natural_no_conclusion"},
    "_sequential": {"decomposition": "linear", "prompts": "natural_sequential"},
    "_kl_paper": {},
    "_capacity": {},
    "_thresholds": {},
}
MAIN = {
    "actions_off": (),
    "store": "conclusions",
    "decomposition": "dag",
    "memory_capacity": 20,
    "recent": 2,
    "threshold": 0.5,
    "prompts": "natural",
    "reward": {"metric": "f1", "k1": 10, "k2": 8, "lambda_ret": 0.1, "lambda_dec": 0.05},
    "forgery_ends": False,
}
SWEEPS = {
    "dep_search_capacity": {"agentic.environment.memory_capacity": "1,5,10,15,20,25,30,35,40,45,50"},
    "dep_search_thresholds": {"agentic.reward.k1": "6,8,10,12,14", "agentic.reward.k2": "4,6,8,10,12"},
}


def facts(recipe):
    settings = load_settings(compose_recipe(recipe))
    METHOD.check_knobs(settings.reward)
    METHOD.check_environment(settings.environment)
    own = {"actions_off", "prompts", "reward", "forgery_ends"}
    return {name: getattr(settings, name) if name in own else settings.environment[name] for name in MAIN}


@pytest.mark.parametrize("twin", ["", "_cpu"])
@pytest.mark.parametrize("name", ABLATIONS)
def test_each_recipe_changes_what_it_is_named_for_and_nothing_else(name, twin):
    expected = {**MAIN, **ABLATIONS[name]}
    if twin:
        expected["prompts"] = "demo"
        expected["reward"] = {**MAIN["reward"], "k1": 2, "k2": 1}
    assert facts(f"dep_search{name}{twin}") == expected


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_experiment_has_the_name_of_its_recipe(name):
    for recipe in (f"dep_search{name}", f"dep_search{name}_cpu"):
        assert compose_recipe(recipe).trainer.experiment_name == recipe


@pytest.mark.parametrize("twin", ["", "_cpu"])
@pytest.mark.parametrize("recipe", SWEEPS)
def test_a_sweep_runs_over_its_values(recipe, twin):
    import verl  # noqa: F401  (loads the plugin, which makes recipes known to Hydra)

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"+recipe={recipe}{twin}"], return_hydra_config=True)
    assert config.hydra.mode.name == "MULTIRUN"
    assert dict(config.hydra.sweeper.params) == SWEEPS[recipe]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("no_decompose", "<Decompose>"),
        ("no_memory", "<Memory>"),
        ("no_conclusion", "<Conclusion>"),
        ("sequential", "deps:"),
    ],
)
def test_an_ablations_prompt_does_not_speak_of_what_it_lacks(name, missing):
    assert missing in load_pack(METHOD.prompts, "natural").user
    assert missing not in load_pack(METHOD.prompts, f"natural_{name}").user


def test_the_published_training_figures():
    config = compose_recipe("dep_search")
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert (rollout.n, actor.optim.lr, config.data.train_batch_size, config.trainer.total_epochs) == (4, 1e-5, 8, 3)
    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.top_p) == (0.7, 0.9)
    assert config.data.max_response_length == 16384
    assert config.agentic.retriever.topk == 5
