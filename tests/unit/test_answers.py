"""Answer metrics, against values worked by hand and naive rewrites."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_agentic.core.answers import cover_match, exact_match, f1_score, normalize_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("U.S.", "us"),
        ("an apple, a pear", "apple pear"),
        ("Theodore", "theodore"),
        ("A", "a"),
        ("an a", "an a"),
        ("  ", ""),
        ("...", ""),
        ("İstanbul", "i̇stanbul"),
    ],
)
def test_normal_form(text, normal):
    assert normalize_answer(text) == normal


def test_p50_an_answer_that_is_an_article_is_not_stripped_to_nothing():
    assert exact_match("A", ["A"]) == 1.0
    assert exact_match("B", ["A"]) == 0.0
    assert exact_match("The", ["The"]) == 1.0
    assert exact_match("an a", ["an a"]) == 1.0
    assert exact_match("", ["The"]) == 0.0


def test_an_answer_of_punctuation_only_matches_nothing():
    assert exact_match("...", ["!!!"]) == 0.0
    assert f1_score("...", ["!!!"]) == 0.0
    assert cover_match("...", ["!!!"]) == 0.0


def test_f1_by_hand():
    # prediction {big, red, house} (articles gone), gold {red, house, street}: 2 common, P = R = 2/3
    assert f1_score("the big red house", ["a red house street"]) == pytest.approx(2 / 3)
    # prediction 1 of 1 in a gold of 4: P = 1, R = 1/4, F1 = 2 * .25 / 1.25 = .4
    assert f1_score("john", ["john jacob jingle schmidt"]) == pytest.approx(0.4)
    # repeated tokens count as often as they occur in both: common 2, P = 2/3, R = 1 -> .8
    assert f1_score("bora bora bora", ["bora bora"]) == pytest.approx(0.8)


def test_p51_yes_no_rule_of_hotpotqa():
    assert f1_score("Yes, both are rivers.", ["yes"]) == 0.0
    assert f1_score("yes", ["Yes"]) == 1.0
    assert f1_score("no", ["yes"]) == 0.0


def test_p51_without_the_rule_tokens_count_as_musique_counts_them():
    # {yes, both, are, rivers} against {yes}: P = 1/4, R = 1 -> 2 * .25 / 1.25 = .4
    assert f1_score("Yes, both are rivers.", ["yes"], yes_no_rule=False) == pytest.approx(0.4)
    assert f1_score("no", ["yes"], yes_no_rule=False) == 0.0


def test_the_best_gold_counts():
    assert exact_match("NYC", ["New York", "nyc"]) == 1.0
    assert f1_score("new york city", ["nyc", "New York"]) == pytest.approx(0.8)


def test_cover_match_wants_whole_tokens():
    assert cover_match("It is in Paris, France", ["Paris"]) == 1.0
    assert cover_match("parish", ["Paris"]) == 0.0


def test_a_single_string_is_one_gold_not_its_letters():
    assert exact_match("Oslo", "oslo") == 1.0
    assert exact_match("o", "oslo") == 0.0


def test_no_gold_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one gold"):
        exact_match("a", [])


WORDS = st.lists(st.sampled_from(["a", "the", "red", "house", "no", "Oslo", "."]), max_size=6).map(" ".join)


def naive_f1(prediction, gold):
    p, g = normalize_answer(prediction).split(), normalize_answer(gold).split()
    if {" ".join(p), " ".join(g)} & {"yes", "no", "noanswer"} and p != g:
        return 0.0
    same, left = 0, list(g)
    for token in p:
        if token in left:
            left.remove(token)
            same += 1
    return 0.0 if not same else 2 * (same / len(p)) * (same / len(g)) / (same / len(p) + same / len(g))


@given(WORDS, WORDS)
def test_f1_equals_the_naive_loop_and_is_symmetric(prediction, gold):
    assert f1_score(prediction, [gold]) == pytest.approx(naive_f1(prediction, gold))
    assert f1_score(prediction, [gold]) == pytest.approx(f1_score(gold, [prediction]))


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_exact_match_implies_f1_and_cover(prediction, golds):
    assert 0.0 <= f1_score(prediction, golds) <= 1.0
    if exact_match(prediction, golds):
        assert f1_score(prediction, golds) == 1.0
        assert cover_match(prediction, golds) == 1.0


def test_search_r1_scored_predictions(shared_data):
    """Exact match as others computed it on 125 real predictions."""
    path = shared_data / "scored_predictions" / "search_r1_3b_base_bamboogle_v1.intermediate_data.json"
    items = json.loads(path.read_text())
    assert len(items) > 100
    differing = [
        item["id"]
        for item in items
        if exact_match(item["output"]["pred"], item["golden_answers"]) != item["output"]["metric_score"]["em"]
    ]
    assert differing == []
    assert Counter(exact_match(i["output"]["pred"], i["golden_answers"]) for i in items)[1.0] > 0
