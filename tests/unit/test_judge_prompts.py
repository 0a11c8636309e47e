"""The judge's prompts: how they are filled, and which are refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_agentic.bridge.judge_prompts import load_judge_prompts
from verl_agentic.core.judge_prompts import placeholders, render
from verl_agentic.methods import load_method

METHOD = load_method("agentic_rag_r1")
KINDS = ["retrieval", "memory", "memory_change"]


def test_placeholders_are_replaced_and_double_braces_are_braces():
    template = 'Q: {question}\nA: {text}, again {text}. Reply {{"score": 0.5}}.'
    assert placeholders(template) == {"question", "text"}
    assert render(template, {"question": "who?", "text": "he", "unused": "x"}, 100) == (
        'Q: who?\nA: he, again he. Reply {"score": 0.5}.'
    )


def test_braces_in_a_field_mean_nothing():
    fields = {"question": "{text} {{x}} {0} {question.__class__}", "text": "}{"}
    assert render("{question}|{text}", fields, 100) == "{text} {{x}} {0} {question.__class__}|}{"


def test_a_long_field_is_cut_and_marked():
    assert render("<{text}>", {"text": "abcdef"}, 6) == "<abcdef>"
    assert render("<{text}>", {"text": "abcdefgh"}, 6) == "<abcdef [... cut: 2 more characters]>"


@given(st.text(), st.text(), st.integers(0, 20))
def test_fields_come_through_as_they_are_up_to_the_cut(one, other, most):
    found = render("{one}\x00{other}", {"one": one, "other": other}, most)
    assert found.startswith(one[:most])
    assert len(found) <= min(len(one), most) + min(len(other), most) + 1 + 2 * 40
    if max(len(one), len(other)) <= most:
        assert found == f"{one}\x00{other}"


@pytest.mark.parametrize("template", ["{", "}", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>10}", "{a b}"])
def test_what_is_no_plain_placeholder_is_refused(template):
    with pytest.raises(ValueError, match=r"placeholder|brace|'\{'|'\}'|expected"):
        placeholders(template)


def test_the_methods_own_prompts_are_read_for_the_kinds_that_are_asked():
    prompts = load_judge_prompts(METHOD, None, ["retrieval"])
    assert list(prompts) == ["retrieval"]
    assert placeholders(prompts["retrieval"]) == {"question", "query", "documents"}
    assert prompts["retrieval"].endswith('such as {{"score": 0.5}}.')


def test_the_methods_own_prompts_use_the_fields_of_its_asks():
    prompts = load_judge_prompts(METHOD, None, KINDS)
    assert placeholders(prompts["memory"]) == {"question", "action", "text", "stack"}
    assert placeholders(prompts["memory_change"]) == {"question", "action", "text", "before", "stack"}


def test_a_folder_of_the_users_stands_for_the_methods(tmp_path):
    (tmp_path / "retrieval.txt").write_text("Is {query} good for {question}?\n")
    assert load_judge_prompts(METHOD, str(tmp_path), ["retrieval"]) == {"retrieval": "Is {query} good for {question}?"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{quary}", r"retrieval.txt: unknown placeholder 'quary', an ask of this kind has .*; did you mean 'query'\?"),
        ("{stack}", r"retrieval.txt: unknown placeholder 'stack'.*\['documents', 'query', 'question'\]"),
        ('{"score": 1}', r"retrieval.txt: .*; write a brace that is meant as such twice"),
        ("{", r"retrieval.txt: .*; write a brace that is meant as such twice"),
    ],
)
def test_a_wrong_template_is_refused_in_one_sentence(tmp_path, text, message):
    (tmp_path / "retrieval.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_judge_prompts(METHOD, str(tmp_path), ["retrieval"])


def test_a_missing_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the judge is asked for memory and there is no file .*memory.txt"):
        load_judge_prompts(METHOD, str(tmp_path), ["memory"])


def test_a_method_without_prompts_needs_a_folder(tmp_path):
    bare = replace(METHOD, judge_prompts=None)
    with pytest.raises(ValueError, match=r"agentic.judge.prompts: the method agentic_rag_r1 has no prompts of its own"):
        load_judge_prompts(bare, None, ["retrieval"])
    (tmp_path / "retrieval.txt").write_text("{anything}")
    assert load_judge_prompts(bare, str(tmp_path), ["retrieval"]) == {"retrieval": "{anything}"}
