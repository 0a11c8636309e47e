"""The oracle of agentic_rag_r1, and the demo's judge on what it writes."""

import asyncio
import random

import pytest

from verl_agentic.core.answers import exact_match
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.oracles import load_oracle
from verl_agentic.demo.questions import KINDS, draw_question
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import MethodRunner, scripted_sampler
from verl_agentic.demo.world import generate_world

WORLD = generate_world(11)
SEARCH = CorpusSearch(WORLD.passages)
OFF = ("backtrack", "summary")
CODEC = WordCodec(build_tokenizer())
RUNNERS = {off: MethodRunner("agentic_rag_r1", CODEC, off) for off in ((), OFF)}
ORACLE = load_oracle("agentic_rag_r1")


def questions(kind, count=30):
    rng = random.Random(kind)
    return [draw_question(WORLD, kind, rng) for _ in range(count)]


def play(question, habit=None, off=(), rng=None):
    mix = {kind: {habit: 1.0} for kind in KINDS}
    rng = rng or random.Random(1)
    oracle = ORACLE.make_oracle(question, WORLD.look_up, *((rng, mix) if habit else (None, None)), actions_off=off)
    runner = RUNNERS[off]
    return asyncio.run(runner.engine.run(question.text, scripted_sampler(CODEC, oracle), runner.environment(SEARCH)))


def texts(episode):
    return [turn.text for turn in episode.turns]


@pytest.mark.parametrize("off", [(), OFF])
@pytest.mark.parametrize(("kind", "searches"), zip(KINDS, ({1}, {2}, {3}, {4}, {2}, {3, 4}), strict=True))
def test_the_good_oracle_answers_every_kind_with_one_search_a_step(kind, searches, off):
    for question in questions(kind):
        episode, due = play(question, off=off), len(question.searches)
        assert episode.outcome.kind == "ok"
        assert exact_match(episode.prediction, question.answers) == 1.0
        assert due in searches
        assert episode.actions["search"] == due
        assert episode.actions.get("summary", 0) == (0 if off else due)
        assert len(episode.rows) == (1 if off else 1 + due)
        for step, found in zip(question.searches, episode.passages, strict=True):
            assert step.passage_id in found


def test_a_good_session_reads_as_documented():
    question = next(q for q in questions("2hop") if q.path == ("founder", "birthplace"))
    first, second = question.steps
    assert texts(play(question)) == [
        "<plan> find founder ; find born </plan>",
        f"<search> {first.entity} founder </search>",
        f"<summary> 1 | founder is {first.answer} </summary>",
        f"<search> {first.answer} born </search>",
        f"<summary> 1 | born is {second.answer} </summary>",
        f"<conclusion> {second.answer} </conclusion>",
    ]
    assert texts(play(question, off=OFF))[2] == f"<reasoning> founder is {first.answer} </reasoning>"


def test_a_comparison_is_reasoned_from_both_years():
    question = questions("comparison")[0]
    one, other, last = question.steps
    best = next(step.answer for step in (one, other) if step.entity == question.answers[0])
    assert texts(play(question))[2:] == [
        f"<summary> 1 | {one.answer} {one.entity} </summary>",
        f"<search> {other.entity} {other.keyword} </search>",
        f"<summary> 1 | {other.answer} {other.entity} </summary>",
        f"<reasoning> {last.relation} {best} {question.answers[0]} </reasoning>",
        f"<conclusion> {question.answers[0]} </conclusion>",
    ]


def test_the_early_habit_concludes_after_one_search():
    for question in questions("2hop"):
        episode = play(question, "early")
        assert episode.actions == {"plan": 1, "search": 1, "summary": 1}
        assert episode.prediction == question.steps[0].answer


def test_a_retry_takes_back_a_search_that_found_another_and_still_answers_right():
    taken_back = 0
    for question in questions("1hop", 60):
        episode = play(question, "retry", rng=random.Random(question.id))
        assert exact_match(episode.prediction, question.answers) == 1.0
        if "backtrack" in episode.actions:
            taken_back += 1
            first = episode.turns[2].text
            assert first.startswith("<backtrack> 1 | wrong ")
            assert question.steps[0].entity not in first
            assert episode.actions == {"plan": 1, "search": 2, "backtrack": 1, "summary": 1}
    assert taken_back > 10
    assert "backtrack" not in play(questions("1hop")[0], "retry", off=OFF).actions


def test_a_sloppy_session_copies_what_its_passages_say():
    wrong = 0
    for question in questions("2hop", 60):
        episode = play(question, "sloppy", rng=random.Random(question.id))
        wrong += exact_match(episode.prediction, question.answers) == 0.0
        value = episode.prediction
        assert value == "unknown" or any(value in text for text in episode.turns[-3].effect.texts)
    assert wrong > 5


def test_an_oracle_of_half_the_edits_is_refused():
    with pytest.raises(ValueError, match=r"not without \['summary'\]"):
        ORACLE.make_oracle(questions("1hop")[0], WORLD.look_up, actions_off=("summary",))
    with pytest.raises(ValueError, match="search_r1 cannot do without"):
        load_oracle("search_r1").make_oracle(questions("1hop")[0], WORLD.look_up, actions_off=("search",))
