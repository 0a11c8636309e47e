"""The oracle of dep_search, played in the demo's world."""

import asyncio
import random

import pytest

from verl_agentic.bridge.settings import default_agentic, default_environment, load_settings
from verl_agentic.core.answers import exact_match
from verl_agentic.core.question import Question
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.oracles import load_oracle
from verl_agentic.demo.questions import KINDS, draw_question
from verl_agentic.demo.recipe import compose_recipe
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import MethodRunner, scripted_sampler
from verl_agentic.demo.world import generate_world
from verl_agentic.methods.dep_search.score import score

WORLD = generate_world(11)
SEARCH = CorpusSearch(WORLD.passages)
CODEC = WordCodec(build_tokenizer())
ORACLE = load_oracle("dep_search")
CHAINS = [kind for kind in KINDS if kind != "shared"]
OFFS = [(), ("Decompose",), ("Memory",), ("Conclusion",)]
RUNNERS = {off: MethodRunner("dep_search", CODEC, off) for off in OFFS}
REWARD = dict(default_agentic("dep_search").reward)


def questions(kind, count=20) -> list[Question]:
    rng = random.Random(kind)
    return [draw_question(WORLD, kind, rng) for _ in range(count)]


def play(question, habit=None, off=()):
    mix = {kind: {habit: 1.0} for kind in KINDS}
    given = (random.Random(1), mix) if habit else (None, None)
    oracle = ORACLE.make_oracle(question, WORLD.look_up, *given, actions_off=off)
    runner = RUNNERS[off]
    return asyncio.run(runner.engine.run(question.text, scripted_sampler(CODEC, oracle), runner.environment(SEARCH)))


@pytest.mark.parametrize("off", OFFS)
@pytest.mark.parametrize(("kind", "searches"), zip(CHAINS, (1, 2, 3, 4, 2), strict=True))
def test_the_good_oracle_answers_every_kind(kind, searches, off):
    for question in questions(kind):
        episode = play(question, off=off)
        assert episode.outcome.kind == "ok"
        assert exact_match(episode.prediction, question.answers) == 1.0
        done = {"Decompose": 1, "Retrieve": searches, "Conclusion": 1, "Memory": 1}
        assert episode.actions == {name: count for name, count in done.items() if count and name not in off}
        assert not any(turn.fault for turn in episode.turns)


@pytest.mark.parametrize("off", OFFS)
def test_the_good_oracle_looks_up_a_shared_sub_answer_and_does_not_search_it_again(off):
    for question in questions("shared"):
        episode = play(question, off=off)
        assert exact_match(episode.prediction, question.answers) == 1.0
        done = {"Decompose": 1, "Retrieve": len(question.searches) - 1, "Conclusion": 2, "Memory": 2}
        assert episode.actions == {name: count for name, count in done.items() if name not in off}
        assert len(set(episode.passages)) == len(episode.passages)
        assert not any(turn.fault for turn in episode.turns)


def test_memory_brings_what_a_shared_question_compares():
    for question in questions("shared"):
        spouse_born = question.searches[-1]
        born = question.searches[-3]
        last = play(question).turns[-2]
        assert last.action.tag.name == "Memory"
        assert f"{spouse_born.entity} born {spouse_born.answer} ." in last.effect.texts
        assert f"{born.entity} born {born.answer} ." in last.effect.texts


def test_without_the_habit_of_looking_up_a_shared_sub_answer_is_searched_again():
    for question in questions("shared"):
        episode = play(question, "twice")
        assert episode.actions["Retrieve"] == len(question.searches)
        assert episode.actions["Memory"] == 1
        assert exact_match(episode.prediction, question.answers) == 1.0


@pytest.mark.parametrize("name", ["", "_no_memory", "_no_conclusion", "_no_decompose", "_sequential"])
def test_the_demo_s_environment_is_that_of_the_recipe(name):
    settings = load_settings(compose_recipe(f"dep_search{name}_cpu"))
    knobs = {**default_environment("dep_search"), **ORACLE.demo_environment(settings.actions_off)}
    if (
        name == "_sequential"
    ):  # its start is the main recipe's: the oracle's decompositions are kept, their order is not
        knobs["decomposition"] = "linear"
    assert settings.environment == knobs


def test_a_good_session_reads_as_documented():
    question = next(q for q in questions("2hop", 60) if q.path == ("founder", "birthplace"))
    first, second = question.steps
    episode = play(question)
    assert [turn.text for turn in episode.turns] == [
        f"<Decompose> 1. Who is the founder of {first.entity} ? [ deps: none ] "
        "2. Where was #1 born ? [ deps: #1 ] </Decompose>",
        f"<Retrieve> {first.entity} founder </Retrieve>",
        f"<Retrieve> {first.answer} born </Retrieve>",
        "<Conclusion> </Conclusion>",
        f"<Memory> {first.answer} born </Memory>",
        f"<answer> {second.answer} </answer>",
    ]
    assert CODEC.decode(episode.turns[3].side_call.response_ids) == (
        f"{first.entity} founder {first.answer} . {first.answer} born {second.answer} . <|im_end|>"
    )
    metrics = score(episode, question.answers, REWARD).metrics
    assert (metrics["memory/stored"], metrics["memory/recalled"], metrics["memory/reused"]) == (2.0, 2.0, 2.0)


def test_the_early_habit_answers_the_first_step():
    for question in questions("3hop"):
        episode = play(question, "early")
        assert episode.actions["Retrieve"] == 1
        assert episode.prediction == question.steps[0].answer


def test_the_habit_of_searching_twice_searches_the_first_step_again():
    for question in questions("2hop"):
        episode = play(question, "twice")
        assert episode.actions["Retrieve"] == 3
        assert episode.passages[0] == episode.passages[2]
        assert exact_match(episode.prediction, question.answers) == 1.0


def test_actions_that_the_oracle_needs_cannot_be_taken_away():
    with pytest.raises(ValueError, match=r"not without \['Retrieve'\]"):
        ORACLE.make_oracle(questions("1hop")[0], WORLD.look_up, actions_off=("Retrieve",))
