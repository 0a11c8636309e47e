"""Which sessions are kept: scores worked by hand, exact shares, ties, zero variance, and counters over a run."""

import re
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_agentic.core.selection import (
    SelectionRule,
    SelectionState,
    information_scores,
    keep_top,
    mean_and_variance,
    quantile,
    released_score,
    select,
    selection_metrics,
    session_variances,
)


def test_information_scores_by_hand():
    # outcomes 1 1 0 0: mean 1/2, population variance 1/4, squared 1/16
    assert information_scores([1.0, 1.0, 0.0, 0.0]) == [0.5625, 0.5625, 0.5, 0.5]
    # outcomes 1 0 0 0: mean 1/4, variance (9/16 + 3/16) / 4 = 3/16, squared 9/256
    assert information_scores([1.0, 0.0, 0.0, 0.0]) == [0.28515625, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_equal_outcomes_have_variance_0_exactly_and_the_mean_as_score(value):
    """In floating point the mean of three times 0.1 is not 0.1."""
    assert mean_and_variance([value] * 3) == (value, 0.0)
    assert information_scores([value] * 3) == [value] * 3


def test_the_released_score_by_hand():
    # outcomes 1 1 0 0: mean 1/2, population deviation 1/2
    assert released_score([1.0, 1.0, 0.0, 0.0], k=2.0) == 1.5
    # outcomes 1 0 0 0: 1/4 + sqrt(3/16)
    assert released_score([1.0, 0.0, 0.0, 0.0], k=1.0) == pytest.approx(0.25 + sqrt(3) / 4)


def test_the_top_is_exact_and_the_earlier_of_equals_is_kept():
    assert keep_top([0.1, 0.9, 0.5, 0.9], 0.5) == [1, 3]
    assert keep_top([1.0, 1.0, 1.0, 1.0], 0.5) == [0, 1]
    # 0.7 of 10 is 7, although 0.7 * 10 is 7.000000000000001 in some orders of rounding; 0.7 of 5 is 3.5: 4
    assert len(keep_top(list(range(10)), 0.7)) == 7
    assert len(keep_top(list(range(5)), 0.7)) == 4
    assert keep_top([3.0], 0.01) == [0]


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        keep_top([1.0], fraction)


# Questions a (1 1 0 0), b (1 0 0 0) and c (all 0), four sessions each, in turn.
GROUPS = list("abc" * 4)
OUTCOMES = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def kept(**values):
    return select(SelectionRule(**values), GROUPS, OUTCOMES)


def test_all_keeps_all():
    assert kept(rule="all") == list(range(12))
    assert kept(rule="all", drop_zero_variance=True) == [0, 1, 3, 4, 6, 7, 9, 10]


def test_information_ranks_over_all_questions():
    # scores: a 0.5625 (sessions 0, 3) and 0.5 (6, 9); b 0.285 (1) and 0.25 (4, 7, 10); c 0
    assert kept(rule="information", fraction=0.25) == [0, 3, 6]
    assert kept(rule="information", fraction=0.5) == [0, 1, 3, 4, 6, 9]  # 4 is the first of three equals
    assert kept(rule="information", fraction=1.0) == list(range(12))


def test_zero_variance_is_left_out_before_the_share_is_taken():
    # without c eight sessions are left: half of them is four
    assert kept(rule="information", fraction=0.5, drop_zero_variance=True) == [0, 3, 6, 9]


def test_quantile_keeps_whole_questions_at_or_above_the_threshold():
    # scores with k 1: a 1.0, b 0.25 + 0.43301 = 0.68301, c 0
    assert kept(rule="quantile", k=1.0, quantile=0.0) == list(range(12))
    assert kept(rule="quantile", k=1.0, quantile=0.5) == [0, 1, 3, 4, 6, 7, 9, 10]  # b is the threshold itself
    # halfway between b and a, 0.8415
    assert kept(rule="quantile", k=1.0, quantile=0.75) == [0, 3, 6, 9]
    assert kept(rule="quantile", k=1.0, quantile=1.0) == [0, 3, 6, 9]


@pytest.mark.parametrize("rule", ["all", "information", "quantile"])
def test_where_nothing_varies_nothing_is_left_out_for_it(rule):
    assert select(SelectionRule(rule, drop_zero_variance=True), ["a", "a", "b"], [1.0, 1.0, 1.0]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rule": "informaton"}, "rule: unknown rule 'informaton'; did you mean 'information'?"),
        ({"fraction": 0.0}, "fraction must be above 0 and at most 1, got 0.0"),
        ({"fraction": 1.5}, "fraction must be above 0 and at most 1, got 1.5"),
        ({"quantile": -0.1}, "quantile must be from 0 to 1, got -0.1"),
    ],
)
def test_a_senseless_rule_is_refused(values, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        SelectionRule(**values)


groups = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.1, 0.5, 1.0])), min_size=1, max_size=24)


@given(groups, st.floats(0.01, 1), st.booleans())
def test_information_keeps_exactly_the_top_fraction(step, fraction, drop):
    """Against a naive loop: take the best of what is left, the earliest of equals, until there are enough."""
    names, outcomes = [g for g, _ in step], [r for _, r in step]
    score, varies = {}, {}
    for i, (group, r) in enumerate(step):
        own = [x for g, x in step if g == group]
        mean = own[0] if len(set(own)) == 1 else sum(own) / len(own)
        variance = 0.0 if len(set(own)) == 1 else sum((x - mean) ** 2 for x in own) / len(own)
        score[i], varies[i] = variance * variance * r + mean, variance > 0
    left = [i for i in score if varies[i] or not drop] or list(score)
    wanted = ceil(round(fraction * len(left), 9))
    expected = []
    while len(expected) < wanted:
        best = left[0]
        for i in left:
            if score[i] > score[best]:
                best = i
        left.remove(best)
        expected.append(best)
    rule = SelectionRule("information", fraction=fraction, drop_zero_variance=drop)
    assert select(rule, names, outcomes) == sorted(expected)


@given(groups, st.floats(0, 1), st.floats(0, 2))
def test_quantile_equals_numpys(step, q, k):
    names, outcomes = [g for g, _ in step], [r for _, r in step]
    scores = {g: np.mean(own) + k * np.std(own) for g in set(names) for own in [[r for h, r in step if h == g]]}
    threshold = np.quantile(list(scores.values()), q)
    found = select(SelectionRule("quantile", k=k, quantile=q), names, outcomes)
    above = {i for i, g in enumerate(names) if scores[g] > threshold + 1e-9}
    near = {i for i, g in enumerate(names) if abs(scores[g] - threshold) <= 1e-9}
    assert above <= set(found) <= above | near
    assert found  # the best question is always at or above a quantile
    assert all((i in found) == (j in found) for i, g in enumerate(names) for j, h in enumerate(names) if g == h)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.floats(0, 1))
def test_quantiles_are_numpys_default(values, q):
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), abs=1e-9)


def test_the_figures_of_a_step_by_hand():
    found = selection_metrics(GROUPS, OUTCOMES, [0, 2, 3, 5])
    assert session_variances(GROUPS, OUTCOMES)[:3] == [0.25, 0.1875, 0.0]
    assert found["kept_fraction"] == pytest.approx(4 / 12)
    assert found["zero_variance"] == pytest.approx(4 / 12)  # the sessions of c
    assert found["kept_zero_variance"] == pytest.approx(2 / 4)  # 2 and 5
    # twelve variances: four times 0, 0.1875 and 0.25; the middle lies between two of 0.1875
    assert [found[f"variance/q{n}"] for n in (10, 50, 90)] == [0.0, 0.1875, 0.25]
    # nine times 0, three times 1: place 0.9 * 11 = 9.9 is among the ones
    assert [found[f"outcome/q{n}"] for n in (10, 50, 90)] == [0.0, 0.0, 1.0]


def test_the_counters_of_a_run_add_up_and_survive_a_round_trip():
    state = SelectionState().after(GROUPS, OUTCOMES, [0, 2, 3, 5]).after(["a", "a"], [1.0, 0.0], [0, 1])
    assert state == SelectionState(steps=2, seen=14, kept=6, kept_zero_variance=2)
    assert state.shares() == {
        "run/sessions": 14.0,
        "run/kept_fraction": 6 / 14,
        "run/kept_zero_variance": 2 / 6,
    }
    assert SelectionState.from_dict(state.to_dict()) == state
    assert SelectionState().shares() == {"run/sessions": 0.0, "run/kept_fraction": 0.0, "run/kept_zero_variance": 0.0}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"steps": 1, "seen": 2, "kept": 1},
        {"steps": 1, "seen": 2, "kept": 1, "kept_zero_variance": -1},
        {"steps": 1, "seen": 2, "kept": 1.5, "kept_zero_variance": 0},
        {"steps": 1, "seen": 2, "kept": 1, "kept_zero_variance": 0, "threshold": 0},
    ],
)
def test_other_counters_are_refused(values):
    with pytest.raises(ValueError, match="counters of selection must be"):
        SelectionState.from_dict(values)
