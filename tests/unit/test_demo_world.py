import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.index import build_index, open_index
from verl_agentic.demo.lexicon import name_words, plain_words
from verl_agentic.demo.prepare import write_world
from verl_agentic.demo.questions import (
    KINDS,
    PATHS,
    comparison_question,
    draw_question,
    shared_intermediates,
    shared_question,
)
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.splits import SplitSizes, combination, split_questions
from verl_agentic.demo.world import WorldSizes, generate_world

seeds = st.integers(min_value=0, max_value=2**40)
few = settings(max_examples=15)


def drawn(world, seed, count=6):
    rng = random.Random(seed)
    return [draw_question(world, kind, rng) for kind in KINDS for _ in range(count)]


def test_default_world_has_342_short_passages():
    world = generate_world(0)
    assert len(world.passages) == 342
    assert max(len(passage.contents.split()) for passage in world.passages) == 15
    assert len({passage.id for passage in world.passages}) == 342


def test_passages_look_as_documented():
    world = generate_world(0)
    patterns = {p.id.split("-")[0]: p.contents.split() for p in world.passages}
    assert patterns["person"][2:4] == ["person", ":"]
    assert patterns["town"][2:5] == ["town", ":", "in"]
    assert all(p.contents.startswith(p.title) for p in world.passages)


def test_invented_words_collide_with_nothing():
    words = [word for group in name_words().values() for word in group]
    plain = [word for word in plain_words() if word not in words]
    assert len({word.lower() for word in words}) == len(words) == 452
    assert not {word.lower() for word in words} & {word.lower() for word in plain}


@few
@given(seeds)
def test_same_seed_same_world_and_other_seed_other_world(seed):
    assert generate_world(seed) == generate_world(seed)
    assert generate_world(seed).facts != generate_world(seed + 1).facts


@few
@given(seeds)
def test_gold_answers_stand_in_gold_passages_and_steps_walk_to_the_answer(seed):
    world = generate_world(seed)
    texts = {passage.id: passage.contents for passage in world.passages}
    for question in drawn(world, seed):
        for step in question.searches:
            assert f" {step.answer} " in f"{texts[step.passage_id]} "
            assert step.entity in texts[step.passage_id]
            assert world.look_up(step.entity, step.relation) == step.answer
        assert question.steps[-1].answer == question.answers[0]
        assert question.passage_ids == tuple(dict.fromkeys(step.passage_id for step in question.searches))
        for step in question.steps:
            assert all(earlier < step.index and f"#{earlier}" in step.text for earlier in step.depends)
        for before, after in zip(question.steps, question.steps[1:], strict=False):
            if question.kind not in ("comparison", "shared"):
                assert after.entity == before.answer


@few
@given(seeds)
def test_answer_is_not_in_the_question_except_in_comparisons(seed):
    for question in drawn(generate_world(seed), seed):
        if question.kind == "shared":
            continue  # of a person who is named, the answer may be that person
        named = question.answers[0] in question.text
        assert named == (question.kind == "comparison")


@few
@given(seeds)
def test_plain_queries_find_gold_passages_in_the_top_two(seed):
    world = generate_world(seed)
    search = CorpusSearch(world.passages)
    steps = [step for question in drawn(world, seed, count=40) for step in question.searches]
    found = sum(search.finds(step.entity, step.keyword, step.passage_id) for step in steps)
    assert found / len(steps) > 0.97


def test_hops_match_the_kind():
    rng, world = random.Random(0), generate_world(1)
    assert {kind: len(draw_question(world, kind, rng).searches) for kind in KINDS} == {
        "1hop": 1, "2hop": 2, "3hop": 3, "4hop": 4, "comparison": 2, "shared": 4,
    }  # fmt: skip
    assert all(len(path) == int(kind[0]) for kind, paths in PATHS.items() for _, path in paths)


def shared_cases(world):
    """Each start of a question with a shared sub-answer, and the person it is about."""
    for person in world.entities["person"]:
        yield person, person
    for name, relation in (("company", "founder"), ("film", "director")):
        for start in world.entities[name]:
            yield start, world.facts[start, relation]


def test_a_shared_sub_answer_is_what_two_sub_questions_refer_to():
    world = generate_world(3)
    for start, person in shared_cases(world):
        spouse = world.facts[person, "spouse"]
        one, other = (int(world.facts[entity, "birthyear"]) for entity in (person, spouse))
        question = shared_question(world, start, "earlier")
        if one == other:
            assert question is None
            continue
        assert question.answers == ((person if one < other else spouse),)
        assert shared_question(world, start, "later").answers != question.answers
        *_, born, spouse_of, spouse_born, last = question.steps
        assert (born.passage_id, spouse_of.passage_id) == (world.passage_of[person],) * 2
        assert born.depends == spouse_of.depends == ((1,) if start != person else ())
        assert spouse_born.depends == (spouse_of.index,)
        assert last.depends == (born.index, spouse_born.index)
        assert (born.answer, spouse_of.answer, spouse_born.answer) == (str(one), spouse, str(other))


def test_a_shared_question_reads_as_documented():
    world = generate_world(0)
    company = world.entities["company"][0]
    question = shared_question(world, company, "later")
    assert question.text == f"Who was born later , the founder of {company} or the spouse of the founder of {company} ?"
    assert [step.text for step in question.steps] == [
        f"Who is the founder of {company} ?",
        "When was #1 born ?",
        "Who is the spouse of #1 ?",
        "When was #3 born ?",
        "Which is later , #2 or #4 ?",
    ]


def test_comparison_names_the_earlier_or_the_later():
    world = generate_world(0)
    one, other = world.entities["film"][:2]
    years = world.facts[one, "release"], world.facts[other, "release"]
    first = one if years[0] < years[1] else other
    assert comparison_question(world, one, other, "earlier").answers == (first,)
    assert comparison_question(world, one, other, "later").answers != (first,)
    assert comparison_question(world, one, other, "earlier").steps[-1].text == "Which is earlier , #1 or #2 ?"


def test_comparison_of_equal_years_is_refused():
    world = generate_world(0)
    films = world.entities["film"]
    years = {}
    twins = next((years[y], f) for f in films if (y := world.facts[f, "release"]) in years or years.update({y: f}))
    with pytest.raises(ValueError, match="share the year"):
        comparison_question(world, *twins, "earlier")


def test_splits_have_the_headline_mix():
    splits = split_questions(generate_world(0))
    assert {name: len(questions) for name, questions in splits.items()} == {
        "test": 300, "val": 100, "train": 1200,
        "test_3hop": 100, "train_3hop": 200, "test_4hop": 100, "train_4hop": 200,
        "test_shared": 100, "train_shared": 140,
    }  # fmt: skip
    kinds = [question.kind for question in splits["test"]]
    assert [kinds.count(kind) for kind in ("1hop", "2hop", "comparison")] == [120, 120, 60]
    assert {question.kind for question in splits["test_4hop"]} == {"4hop"}


@settings(max_examples=5)
@given(seeds)
def test_no_combination_of_entity_and_path_is_in_two_splits(seed):
    splits = split_questions(generate_world(seed))
    for of in (combination, lambda question: question.text):
        seen = [{of(question) for question in questions} for questions in splits.values()]
        assert sum(map(len, seen)) == len(set().union(*seen))


def test_questions_share_sub_answers():
    shared = shared_intermediates(split_questions(generate_world(0))["train"])
    assert len(shared) >= 20
    assert max(map(len, shared.values())) >= 4


def test_distractor_names_share_a_word():
    def twins(share):
        names = generate_world(0, WorldSizes(distractor_share=share)).entities["company"]
        firsts = [name.split()[0] for name in names]
        return sum(firsts.count(first) > 1 for first in firsts)

    assert twins(0.8) > twins(0.0)


def test_sizes_are_options():
    world = generate_world(0, WorldSizes(persons=40, towns=10, countries=4, companies=12, films=20))
    assert {name: len(entities) for name, entities in world.entities.items()} == {
        "person": 40, "town": 10, "country": 4, "company": 12, "film": 20,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"persons": 121}, "persons must be even"),
        ({"towns": 8}, "do not fit"),
        ({"films": 100_000}, "films=100000 is out of range"),
        ({"hub_share": 1.5}, "hub_share must lie between 0 and 1"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        WorldSizes(**sizes)


@pytest.mark.parametrize("share", [0.99999, 1.0])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, r"no new name for persons in 10000 draws \(\d+ of 120 made, distractor_share="),
        ({"persons": 20}, r"no new name for towns in 10000 draws \(\d+ of 50 made, distractor_share="),
        ({"persons": 20, "towns": 12}, "no new name for (countries|companies) in 10000 draws"),
    ],
)
def test_names_that_run_out_are_an_error_not_a_hang(share, sizes, message):
    with pytest.raises(ValueError, match=message):
        generate_world(1, WorldSizes(distractor_share=share, **sizes))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
@pytest.mark.parametrize(
    "sizes", [{"countries": 120, "towns": 120}, {"persons": 3200}, {"companies": 400, "films": 480}]
)
def test_names_do_not_run_out_at_the_largest_sizes(share, sizes):
    world = generate_world(0, WorldSizes(distractor_share=share, **sizes))
    assert len(world.passages) == sum(len(names) for names in world.entities.values())


def test_held_out_are_combinations_not_facts_and_comparisons_name_their_candidates():
    splits = split_questions(generate_world(0))
    asked = {(step.entity, step.relation) for question in splits["train"] for step in question.searches}
    needed = {(step.entity, step.relation) for question in splits["test"] for step in question.searches}
    assert len(needed & asked) > len(needed) / 2
    comparisons = [question for question in splits["test"] if question.kind == "comparison"]
    assert all(question.answers[0] in question.text for question in comparisons)
    first = sum(question.answers[0] == question.start[0] for question in comparisons)
    assert 0.3 < first / len(comparisons) < 0.7


def test_world_too_small_for_the_splits_says_so():
    world = generate_world(0, WorldSizes(persons=20, towns=8, countries=4, companies=8, films=8))
    with pytest.raises(ValueError, match="choose a larger world or smaller splits"):
        split_questions(world, SplitSizes())


def test_search_in_process_equals_the_servers_index_of_the_corpus_file(tmp_path):
    world = generate_world(4)
    write_world(tmp_path, world)
    build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index")
    server, _ = open_index(tmp_path / "index")
    inside, from_file = CorpusSearch(world.passages), CorpusSearch.from_file(tmp_path / "corpus.jsonl")
    queries = [f"{s.entity} {s.keyword}" for q in drawn(world, 4, count=20) for s in q.searches] + ["born of", "born"]
    for query in queries:
        expected = [(hit.id, hit.contents) for hit in server.search([query], 2)[0]]
        assert [(p.id, p.contents) for p in inside.top(query)] == expected
        assert [(p.id, p.contents) for p in from_file.top(query)] == expected
