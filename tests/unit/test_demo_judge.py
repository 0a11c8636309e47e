"""The demo's judge: exact facts of the world, no model."""

import asyncio
import json
import pickle

import pytest

from verl_agentic.core.judging import Ask, Missing, Verdict
from verl_agentic.demo.judge import WorldJudge
from verl_agentic.demo.prepare import write_world
from verl_agentic.demo.questions import chain_question, comparison_question
from verl_agentic.demo.world import generate_world

WORLD = generate_world(3)
FILM = WORLD.entities["film"][0]
DIRECTOR = WORLD.facts[FILM, "director"]
YEAR = WORLD.facts[DIRECTOR, "birthyear"]
QUESTION = chain_question(WORLD, "2hop", FILM, ("director", "birthyear"))
CONTENTS = {passage.title: passage.contents for passage in WORLD.passages}
OTHER = next(person for person in WORLD.entities["person"] if person not in (DIRECTOR, WORLD.facts[DIRECTOR, "spouse"]))


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, WORLD)
    return WorldJudge(str(folder / "world.json"))


def verdict(judge, kind, question=QUESTION.text, **fields):
    (judgement,) = asyncio.run(judge([Ask(kind, 0, (("question", question), *fields.items()))]))
    return judgement


@pytest.mark.parametrize(("titles", "value"), [((FILM,), 1.0), ((OTHER, DIRECTOR), 1.0), ((OTHER,), 0.0), ((), 0.0)])
def test_a_search_is_relevant_where_it_brought_a_needed_passage(judge, titles, value):
    documents = "\n".join(f"( {rank} ) {CONTENTS[title]}" for rank, title in enumerate(titles, start=1))
    assert verdict(judge, "retrieval", query="x", documents=documents) == Verdict(value)


@pytest.mark.parametrize(
    ("action", "text", "value"),
    [
        ("summary", f"director is {DIRECTOR}", 1.0),
        ("summary", f"born is {YEAR}", 1.0),
        ("summary", f"director is {OTHER}", 0.0),
        ("summary", "director is unknown", 0.0),
        ("backtrack", f"wrong {OTHER}", 1.0),
        ("backtrack", f"wrong {DIRECTOR}", 0.0),
        ("backtrack", f"wrong {FILM}", 0.0),
    ],
)
def test_an_edit_is_judged_by_what_it_says(judge, action, text, value):
    assert verdict(judge, "memory", action=action, text=text, stack="") == Verdict(value)


def test_with_both_stacks_what_was_lost_counts(judge):
    edit = {"action": "summary", "text": f"born is {YEAR}"}
    before = f"1. summary: director is {DIRECTOR}\n2. search: {DIRECTOR} born\n   {CONTENTS[DIRECTOR]}"
    assert verdict(judge, "memory_change", **edit, before=before, stack=f"1. summary: born is {YEAR}") == Verdict(0.0)
    kept = f"1. summary: director is {DIRECTOR}\n2. summary: born is {YEAR}"
    assert verdict(judge, "memory_change", **edit, before=before, stack=kept) == Verdict(1.0)


def test_in_a_comparison_a_value_belongs_to_its_entity(judge):
    one, other = WORLD.entities["film"][:2]
    question = comparison_question(WORLD, one, other, "later").text
    year = WORLD.facts[one, "release"]
    assert verdict(judge, "memory", question, action="summary", text=f"{year} {one}", stack="") == Verdict(1.0)
    assert verdict(judge, "memory", question, action="summary", text=f"{year} {other}", stack="") == Verdict(0.0)


def test_words_are_compared_whole(judge):
    assert verdict(judge, "memory", action="summary", text=f"x{DIRECTOR}", stack="") == Verdict(0.0)
    assert verdict(judge, "memory", action="summary", text=DIRECTOR.split()[0], stack="") == Verdict(0.0)


def test_what_the_world_does_not_know_is_missing_and_not_0(judge):
    assert verdict(judge, "retrieval", "Who wrote it ?", query="x", documents="") == Missing("unknown_question")
    assert verdict(judge, "style", text="x") == Missing("unknown_kind")


def test_it_is_named_for_what_it_is_and_pickles(judge):
    assert judge.name == "demo world scorer (exact facts, no model)"
    again = pickle.loads(pickle.dumps(judge))
    assert verdict(again, "memory", action="summary", text=DIRECTOR, stack="") == Verdict(1.0)


@pytest.mark.parametrize(
    "content", [None, "{", "[]", '{"seed": 1}', '{"seed": 3, "sizes": {"dragons": 1}, "facts": []}']
)
def test_a_file_that_is_no_world_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "world.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"agentic\.judge\.options\.world: .* is no world\.json of the demo"):
        verdict(WorldJudge(str(path)), "retrieval", query="", documents="")


def test_a_world_of_another_version_is_refused(tmp_path):
    write_world(tmp_path, WORLD)
    record = json.loads((tmp_path / "world.json").read_text())
    record["facts"][0][2] = "Elsewhere"
    (tmp_path / "world.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="a world of another version"):
        verdict(WorldJudge(str(tmp_path / "world.json")), "retrieval", query="", documents="")
