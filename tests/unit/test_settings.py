"""The key `agentic`: defaults, typed reading, and refusals that name the nearest key."""

import pytest
from omegaconf import OmegaConf

from verl_agentic.bridge.settings import default_agentic, load_settings
from verl_agentic.core.items import question_and_golds
from verl_agentic.demo.oracles import load_oracle, methods_with_oracle
from verl_agentic.demo.recipe import compose_recipe
from verl_agentic.methods import discover, load_method

ROLLOUT = {"actor_rollout_ref": {"rollout": {"prompt_length": 64, "response_length": 1600}}}


def config(agentic=None):
    return OmegaConf.create({**ROLLOUT, **({} if agentic is None else {"agentic": agentic})})


def test_a_stock_configuration_gets_the_methods_defaults():
    settings = load_settings(config(), "search_r1")
    assert settings.method == "search_r1"
    assert settings.retriever.urls == ("http://127.0.0.1:8000",)
    assert settings.budget.max_actions == 2
    assert (settings.budget.prompt_tokens, settings.budget.response_tokens) == (64, 1600)
    assert settings.reward == {"metric": "em", "fault": 0.0, "forgery": -0.1}


def test_given_values_stand_over_the_defaults():
    settings = load_settings(
        config({"method": "search_r1", "budget": {"max_actions": 4}, "retriever": {"urls": "http://a:1"}})
    )
    assert settings.budget.max_actions == 4
    assert settings.budget.max_corrections == 1
    assert settings.retriever.urls == ("http://a:1",)


@pytest.mark.parametrize(
    ("agentic", "message"),
    [
        ({"method": "search_r1", "budgt": {}}, "unknown key agentic.budgt; did you mean 'budget'"),
        ({"method": "search_r1", "budget": {"max_turn": 1}}, "unknown key agentic.budget.max_turn"),
        ({"method": "search_r1", "reward": {"metrics": "em"}}, "agentic.reward.metrics; did you mean 'metric'"),
        ({"method": "search_r1", "retriever": {"urls": []}}, "agentic.retriever.urls is empty"),
        ({"method": "search_r1", "budget": {"turn_tokens": 900}}, "cannot hold one action and one answer"),
        ({"prompts": "demo"}, "agentic.method is not set"),
        ({"method": "search_r1", "retriever": 3}, "agentic.retriever must hold the keys .*'topk'"),
        ({"method": "search_r1", "retriever": {"topk": "three"}}, "agentic.retriever.topk must be like 3, got 'three'"),
        ({"method": "search_r1", "assert_tokens": "no"}, "agentic.assert_tokens must be like False, got 'no'"),
        ({"method": "search_r1", "seed": {"a": 1}}, "agentic.seed must be like 0"),
        ({"method": "search_r1", "seed": True}, "agentic.seed must be like 0, got True"),
    ],
)
def test_p71_wrong_settings_are_refused(agentic, message):
    with pytest.raises(ValueError, match=message):
        load_settings(config(agentic))


def test_a_whole_number_may_stand_for_a_fraction():
    assert load_settings(config({"method": "search_r1", "retriever": {"timeout_s": 5}})).retriever.timeout_s == 5


def test_an_agent_loop_of_another_method_than_the_recipes_is_refused():
    with pytest.raises(ValueError, match=r"the agent loop 'search_r1' was asked for .* but agentic.method is 'm_ask'"):
        load_settings(config({"method": "m_ask"}), "search_r1")


def test_unknown_methods_name_the_nearest():
    with pytest.raises(ValueError, match="unknown method 'serch_r1'; did you mean 'search_r1'"):
        load_method("serch_r1")
    with pytest.raises(ValueError, match="defines no METHOD"):
        load_method("verl_agentic.core")
    with pytest.raises(ValueError, match=r"unknown method 'no_such\.package'"):
        load_method("no_such.package")


def test_a_package_and_its_method_have_one_name(tmp_path, monkeypatch):
    (tmp_path / "other_name").mkdir()
    (tmp_path / "other_name" / "__init__.py").write_text("from verl_agentic.methods.search_r1 import METHOD\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="METHOD of package other_name is called 'search_r1'"):
        load_method("other_name")


@pytest.mark.parametrize("method", discover())
def test_every_method_has_defaults_and_loads(method):
    assert default_agentic(method).method == method
    assert load_method(method).name == method


@pytest.mark.parametrize("method", methods_with_oracle())
def test_demo_episodes_are_written_under_the_budget_of_the_cpu_recipe(method):
    composed = compose_recipe(f"{method}_cpu")
    assert load_settings(composed).budget == load_oracle(method).DEMO_BUDGET


@pytest.mark.parametrize("truth", ["Oslo", ["Oslo"], {"target": "Oslo"}, {"target": ["Oslo"]}])
def test_gold_answers_are_read_in_the_fields_usual_shapes(truth):
    row = {"raw_prompt": [{"role": "user", "content": "capital?"}], "reward_model": {"ground_truth": truth}}
    assert question_and_golds(row) == ("capital?", ["Oslo"])


def test_the_question_itself_stands_over_the_rendered_prompt():
    row = {
        "raw_prompt": [{"role": "user", "content": "Long instruction. capital?"}],
        "extra_info": {"question": "capital?"},
        "reward_model": {"ground_truth": ["Oslo"]},
    }
    assert question_and_golds(row)[0] == "capital?"


def test_released_search_r1_rows_keep_the_bare_question_at_the_top():
    row = {
        "question": "capital?",
        "raw_prompt": [{"role": "user", "content": "Answer the given question. capital?"}],
        "reward_model": {"ground_truth": {"target": ["Oslo"]}},
    }
    assert question_and_golds(row) == ("capital?", ["Oslo"])


@pytest.mark.parametrize(
    ("row", "message"),
    [({"reward_model": {"ground_truth": ["a"]}}, "no question"), ({"extra_info": {"question": "q"}}, "no gold answer")],
)
def test_a_row_without_question_or_gold_is_refused(row, message):
    with pytest.raises(ValueError, match=message):
        question_and_golds(row)
