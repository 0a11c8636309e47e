import asyncio
import random
import re

import pytest

pytest.importorskip("transformers")

from verl_agentic.core.answers import exact_match
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.oracles import load_oracle, methods_with_oracle
from verl_agentic.demo.questions import KINDS, draw_question
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import MethodRunner, scripted_sampler
from verl_agentic.demo.world import generate_world

WORLD = generate_world(11)
SEARCH = CorpusSearch(WORLD.passages)
RUNNER = MethodRunner("search_r1", WordCodec(build_tokenizer()))
ORACLE = load_oracle("search_r1")


def questions(kind, count=30):
    rng = random.Random(kind)
    return [draw_question(WORLD, kind, rng) for _ in range(count)]


def play(question, oracle):
    sampler = scripted_sampler(RUNNER.engine.codec, oracle)
    return asyncio.run(RUNNER.engine.run(question.text, sampler, RUNNER.environment(SEARCH)))


def always(habit):
    return {kind: {habit: 1.0} for kind in KINDS}


@pytest.mark.parametrize(("kind", "searches"), zip(KINDS, ({1}, {2}, {3}, {4}, {2}, {3, 4}), strict=True))
def test_good_oracle_answers_every_kind_with_one_search_a_step(kind, searches):
    for question in questions(kind):
        episode = play(question, ORACLE.make_oracle(question, WORLD.look_up))
        assert episode.outcome.kind == "ok"
        assert exact_match(episode.prediction, question.answers) == 1.0
        assert episode.actions == {"search": len(question.searches)}
        assert len(question.searches) in searches
        for step, found in zip(question.searches, episode.passages, strict=True):
            assert step.passage_id in found


def test_good_trace_reads_as_documented():
    question = next(q for q in questions("2hop") if q.path == ("founder", "birthplace"))
    first, second = question.steps
    (row,) = play(question, ORACLE.make_oracle(question, WORLD.look_up)).rows
    assert [turn.text for turn in row.turns] == [
        f"<think> find founder </think> <search> {first.entity} founder </search>",
        f"<think> founder is {first.answer} ; find born </think> <search> {first.answer} born </search>",
        f"<think> born is {second.answer} </think> <answer> {second.answer} </answer>",
    ]


def test_only_policy_tokens_are_trained():
    question = questions("2hop")[0]
    (row,) = play(question, ORACLE.make_oracle(question, WORLD.look_up)).rows
    codec = RUNNER.engine.codec
    trained = [t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert codec.decode(trained) == " ".join(turn.text for turn in row.turns)
    masked = [t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if not mask]
    assert re.fullmatch(r"(<information> \( 1 \) [^<]+ </information> ?)+", codec.decode(masked))


def test_early_habit_answers_the_bridge_entity_after_one_search():
    for question in questions("2hop"):
        oracle = ORACLE.make_oracle(question, WORLD.look_up, random.Random(0), always("early"))
        episode = play(question, oracle)
        assert episode.prediction == question.steps[0].answer
        assert episode.actions == {"search": 1}
        assert exact_match(episode.prediction, question.answers) == 0.0


def test_early_habit_answers_a_comparison_with_the_first_year_found():
    for question in questions("comparison"):
        episode = play(question, ORACLE.make_oracle(question, WORLD.look_up, random.Random(0), always("early")))
        assert episode.prediction == question.steps[0].answer
        assert episode.actions == {"search": 1}


def test_good_comparison_writes_both_years_and_the_one_that_decides():
    question = questions("comparison")[0]
    (one, other, last) = question.steps
    winner = next(step for step in (one, other) if step.entity == question.answers[0])
    (row,) = play(question, ORACLE.make_oracle(question, WORLD.look_up)).rows
    assert row.turns[-1].text == (
        f"<think> {one.answer} {one.entity} ; {other.answer} {other.entity} ; "
        f"{last.relation} {winner.answer} {winner.entity} </think> <answer> {winner.entity} </answer>"
    )


def test_sloppy_habit_searches_one_word_of_the_name_and_trusts_the_first_passage():
    rng = random.Random(0)
    hits = []
    for question in questions("1hop", 60):
        episode = play(question, ORACLE.make_oracle(question, WORLD.look_up, rng, always("sloppy")))
        text = episode.rows[0].turns[0].text
        query = re.search(r"<search> (.*) </search>", text)[1].split()
        step = question.steps[0]
        assert query[:2] == [step.keyword, "of"]
        assert query[2:] in ([word] for word in step.entity.split())
        first = next(p for p in WORLD.passages if p.id == episode.passages[0][0])
        assert episode.prediction == (WORLD.look_up(first.title, step.relation) or "unknown")
        hits.append(exact_match(episode.prediction, question.answers))
    assert 0.0 < sum(hits) / len(hits) < 0.9


def test_habits_come_in_the_shares_of_the_mix():
    rng, question = random.Random(0), questions("2hop")[0]
    habits = [ORACLE.make_oracle(question, WORLD.look_up, rng).habit for _ in range(1000)]
    for habit, share in ORACLE.HASTY_MIX["2hop"].items():
        assert abs(habits.count(habit) / 1000 - share) < 0.05
    long = questions("4hop")[0]
    assert {ORACLE.make_oracle(long, WORLD.look_up, rng).habit for _ in range(50)} == {"good"}


def test_discovery_finds_search_r1_and_names_what_is_there():
    assert "search_r1" in methods_with_oracle()
    with pytest.raises(ValueError, match=r"'serch_r1' has no oracle.*search_r1"):
        load_oracle("serch_r1")
