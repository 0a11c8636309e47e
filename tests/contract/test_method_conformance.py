"""What every method promises, run over each folder of verl_agentic/methods.

1. its recipe and its CPU twin compose;
2. its loop runs with its own oracle as scripted model, and is truthful about tokens;
3. rewards are finite and on trained tokens, scalars have the same keys in every sample;
4. method, episodes and scores pickle, since they cross processes;
5. its README maps the paper to functions and tests that exist;
6. where it asks a judge, its prompts hold exactly the fields of its asks;
7. its demo pack uses no word that the tiny tokenizer lacks, and its glue is short.
"""

import importlib
import pickle
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from verl_agentic.bridge.judge_prompts import load_judge_prompts
from verl_agentic.bridge.settings import default_agentic, load_settings
from verl_agentic.core.judge_prompts import placeholders
from verl_agentic.core.trajectory import check_episode
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.cold_start import kinds_of
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import DEMO_PACK, trace_source
from verl_agentic.methods import discover, load_method

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(file.stem for file in (ROOT / "recipes" / "recipe").glob("*.yaml"))

pytestmark = pytest.mark.parametrize("name", discover())


@pytest.fixture(scope="module")
def episodes():
    made = {}

    def of(name):
        if name not in made:
            source = trace_source(name, WordCodec(build_tokenizer()), kinds_of(name))
            made[name] = source.episodes("conformance", 40)
        return made[name]

    return of


def test_recipes_compose(name):
    import verl  # noqa: F401  (loads the plugin, which makes recipes known to Hydra)

    own = [recipe for recipe in RECIPES if recipe == name or recipe.startswith(f"{name}_")]
    assert {name, f"{name}_cpu"} <= set(own)
    with initialize_config_module("verl.trainer.config", version_base=None):
        for recipe in own:
            config = compose("ppo_trainer", overrides=[f"+recipe={recipe}"])
            settings = load_settings(config)
            assert settings.method == name
            assert config.trainer.v1.trainer_mode == "agentic"
            assert config.actor_rollout_ref.rollout.agent.default_agent_loop == name
            assert config.actor_rollout_ref.rollout.name == ("hf" if recipe.endswith("_cpu") else "vllm")


def test_episodes_are_truthful_and_scored(name, episodes):
    method, knobs = load_method(name), dict(default_agentic(name).reward)
    keys = set()
    for episode in episodes(name):
        score = method.score(episode, ["nobody"], knobs)
        check_episode(episode, score.rewards, list(sampled(episode)))
        keys.add(tuple(score.metrics))
        assert all(isinstance(value, float) for value in score.metrics.values())
    assert len(keys) == 1
    assert {"acc", "em", "f1", "format"} <= set(keys.pop())


def test_the_judges_prompts_hold_the_fields_of_the_asks(name, episodes):
    method, knobs = load_method(name), dict(default_agentic(name).reward)
    kinds = method.judged_kinds(knobs)
    asks = [ask for episode in episodes(name) for ask in method.asks(episode, ["nobody"], knobs)]
    assert {ask.kind for ask in asks} == set(kinds)
    prompts = load_judge_prompts(method, None, kinds) if kinds else {}
    for ask in asks:
        assert placeholders(prompts[ask.kind]) == set(dict(ask.fields))


def sampled(episode):
    """What the oracle wrote, that beside the session included."""
    for row in episode.rows:
        for turn in row.turns:
            yield from row.response_ids[turn.start : turn.end]
            yield from turn.side_call.response_ids if turn.side_call else ()


def test_a_right_answer_scores_more_than_a_wrong_one(name, episodes):
    method, knobs = load_method(name), dict(default_agentic(name).reward)
    episode = next(e for e in episodes(name) if e.prediction)
    right = method.score(episode, [episode.prediction], knobs)
    wrong = method.score(episode, ["nobody"], knobs)
    assert sum(map(sum, right.rewards)) > sum(map(sum, wrong.rewards))


def test_what_crosses_processes_pickles(name, episodes):
    method = load_method(name)
    score = method.score(episodes(name)[0], ["nobody"], dict(default_agentic(name).reward))
    assert pickle.loads(pickle.dumps(method)) == method
    assert pickle.loads(pickle.dumps(episodes(name)[0])) == episodes(name)[0]
    assert pickle.loads(pickle.dumps(score)) == score


def test_the_readme_maps_the_paper_to_functions_and_tests(name):
    text = (ROOT / "verl_agentic" / "methods" / name / "README.md").read_text()
    functions = re.findall(r"`(verl_agentic[\w.]+):(\w+)`", text)
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert functions, "the README names no function as `module:name`"
    assert tests, "the README names no test as `tests/file.py::name`"
    for module, attribute in functions:
        assert hasattr(importlib.import_module(module), attribute), f"{module}:{attribute}"
    for file, test in tests:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{test}"


def test_the_demo_pack_is_written_in_the_closed_vocabulary(name):
    codec = WordCodec(build_tokenizer())
    texts = {f.stem: f.read_text() for f in (load_method(name).prompts / DEMO_PACK).glob("*.txt")}
    assert {"user", "observation", "passage", "correction", "last_turn"} <= set(texts)
    for stem, text in texts.items():
        words = re.sub(r"\{\w+\}", " ", text).strip()
        assert codec.decode(codec.encode(words)) == " ".join(words.split()), stem


def test_the_glue_is_short(name):
    glue = ROOT / "verl_agentic" / "methods" / name / "agent_loop.py"
    assert len(glue.read_text().splitlines()) < 60
