"""Replies of judges read as verdicts (P59: a list, prose, a score out of range)."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl_agentic.core.judging import Missing, Verdict
from verl_agentic.core.verdicts import parse_verdict

NO_NUMBER, OUT_OF_RANGE, SEVERAL = Missing("no_number"), Missing("out_of_range"), Missing("several_numbers")


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ('{"score": 0.5}', Verdict(0.5)),
        ('{"score": 0}', Verdict(0.0)),
        ('{"score": 1}', Verdict(1.0)),
        ('\n  {"score":0.25}\n', Verdict(0.25)),
        ('```json\n{"score": 0.75}\n```', Verdict(0.75)),
        ('The passages help in part. {"score": 0.5}', Verdict(0.5)),
        ('{"score": 0.5}. That is my view of all 3 passages.', Verdict(0.5)),
        ('First I said {"score": 0.1}, now {"score": 0.9}', Verdict(0.9)),
        ('{"why": "it holds {braces}", "score": 0.5}', Verdict(0.5)),
        ('{"verdict": {"score": 0.5}}', Verdict(0.5)),
        ('{"score": 0.5, "detail": {"score": 0.9}}', Verdict(0.5)),
        ('{{"score": 0.5}}', Verdict(0.5)),
        ('{"score": 5e-1}', Verdict(0.5)),
        ('<think>{"score": 0.1} seems low</think>{"score": 0.9}', Verdict(0.9)),
        ('{"score": 0.1} seems low\n</think>\n\n{"score": 0.9}', Verdict(0.9)),
        ('{"score": 0.5}<think>or not', Verdict(0.5)),
        ("<think>2 of 3 passages\n0.1\n</think>\n0.9", Verdict(0.9)),
    ],
)
def test_the_last_object_with_a_score_counts(reply, verdict):
    assert parse_verdict(reply) == verdict


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("0.5", Verdict(0.5)),
        ("1", Verdict(1.0)),
        ("1.", Verdict(1.0)),
        (".5", Verdict(0.5)),
        ("0.5.", Verdict(0.5)),
        ("  0.5\n", Verdict(0.5)),
        ("**0.5**", Verdict(0.5)),
        ("```\n0.5\n```", Verdict(0.5)),
        ("Score: 0.5", Verdict(0.5)),
        ("**Score:** 0.5", Verdict(0.5)),
        ("Final score = 0.5", Verdict(0.5)),
        ("All 3 passages help.\n\n0.5", Verdict(0.5)),
    ],
)
def test_without_an_object_a_number_on_a_line_of_its_own_counts(reply, verdict):
    assert parse_verdict(reply) == verdict


@pytest.mark.parametrize(
    ("reply", "missing"),
    [
        ("", NO_NUMBER),
        ("good", NO_NUMBER),
        ('{"scores": []}', NO_NUMBER),
        ('{"score": 11}', OUT_OF_RANGE),
        ("The query found 1 passage.", NO_NUMBER),
        ("Passages: 1", NO_NUMBER),
        ("7/10", NO_NUMBER),
        ("50%", NO_NUMBER),
        ("nan", NO_NUMBER),
        ('{"score": true}', NO_NUMBER),
        ('{"score": null}', NO_NUMBER),
        ('{"score": "0.5"}', NO_NUMBER),
        ('{"score": [0.5]}', NO_NUMBER),
        ('{"score": {"value": 0.5}}', NO_NUMBER),
        ('{"score": NaN}', NO_NUMBER),
        ('{"score": 0.5} or rather {"score": "high"}', NO_NUMBER),
        ('{"rating": 0.5}', NO_NUMBER),
        ('{"score": 0.5', NO_NUMBER),
        ("<think>{" + '"score": 0.5}', NO_NUMBER),
        ('{"score": 1.01}', OUT_OF_RANGE),
        ('{"score": -0.1}', OUT_OF_RANGE),
        ('{"score": Infinity}', OUT_OF_RANGE),
        ('{"score": 1e999}', OUT_OF_RANGE),
        ('{"score": ' + "9" * 10_000 + "}", OUT_OF_RANGE),
        ("9" * 10_000, OUT_OF_RANGE),
        ("8", OUT_OF_RANGE),
        ("0.5\n0.7", SEVERAL),
        ("Score: 0.5\nScore: 0.5", SEVERAL),
    ],
)
def test_what_is_no_verdict_says_why(reply, missing):
    assert parse_verdict(reply) == missing


@pytest.mark.parametrize("reply", ["{" * 200_000, '{"a":' * 200_000, '{"score":' * 200_000, "score " * 100_000])
def test_a_monstrous_reply_is_no_verdict(reply):
    assert parse_verdict(reply) == NO_NUMBER


def test_a_verdict_at_the_end_of_a_monstrous_reply_is_found():
    assert parse_verdict("{" * 200_000 + '{"score": 0.5}') == Verdict(0.5)


PROSE = st.text(st.characters(exclude_characters="{}<>", exclude_categories=["Cs"]), max_size=200)


@given(st.floats(0.0, 1.0), PROSE, PROSE)
def test_every_score_in_range_comes_back_whatever_stands_around_it(score, before, after):
    assert parse_verdict(before + json.dumps({"score": score}) + after) == Verdict(score)


@given(st.floats(allow_nan=False).filter(lambda score: not 0.0 <= score <= 1.0), PROSE)
def test_no_score_out_of_range_becomes_a_verdict(score, before):
    assert parse_verdict(before + json.dumps({"score": score})) == OUT_OF_RANGE


@given(st.text())
@example("\x85")
@example("{}")
@example('{"score"}')
def test_any_text_is_read_without_an_error(reply):
    judgement = parse_verdict(reply)
    if isinstance(judgement, Missing):
        assert judgement.reason in ("no_number", "out_of_range", "several_numbers")


@given(PROSE, st.floats(0.0, 1.0))
def test_a_thought_changes_nothing(thought, score):
    reply = json.dumps({"score": score})
    assert parse_verdict(f'<think>{thought} {{"score": 0.123}}</think>{reply}') == Verdict(score)
