"""Rewards of spans: which are credited under a cap, and on which tokens they lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_agentic.core.outcomes import Ok
from verl_agentic.core.spans import SpanReward, add, capped, place, spread
from verl_agentic.core.trajectory import Episode, Row


def spans(*values):
    return [SpanReward(0, i, i + 1, value, "format") for i, value in enumerate(values)]


def values(found):
    return [span.value for span in found]


def row(*mask):
    return Row((1,), tuple(range(len(mask))), mask, None, ())


def episode(*rows):
    return Episode("q", rows, Ok(), None)


# Row 0: policy 0 1, observation 2, policy 3. Row 1: policy 0 1.
TWO_ROWS = episode(row(1, 1, 0, 1), row(1, 1))


def test_rewards_are_credited_in_time_order_until_the_cap():
    # cap 2: 1 + 0.5 leave 0.5; the third, 1, is cut to 0.5; the fourth and the fifth are beyond
    assert values(capped(spans(1.0, 0.5, 1.0, 0.5, 0.0), 2.0)) == [1.0, 0.5, 0.5]


def test_a_reward_that_reaches_the_cap_exactly_is_whole_and_the_next_is_out():
    assert values(capped(spans(1.0, 1.0, 0.25), 2.0)) == [1.0, 1.0]


def test_rounding_leaves_nothing_of_a_cap():
    # 1 less ten times 0.1 is 1.4e-16 in floating point, not 0: the eleventh is beyond all the same
    assert values(capped(spans(*[0.1] * 10, 0.5), 1.0)) == [0.1] * 10


def test_penalties_are_credited_in_full_wherever_they_stand_and_use_up_nothing():
    assert values(capped(spans(-0.5, 1.0, -0.25, 0.5, -2.0), 1.0)) == [-0.5, 1.0, -0.25, -2.0]


def test_a_reward_of_0_counts_before_the_cap_and_not_beyond():
    assert values(capped(spans(0.0, 1.0, 0.0), 1.0)) == [0.0, 1.0]
    assert values(capped(spans(0.0, 0.5, -1.0), 0.0)) == [-1.0]


def test_a_negative_cap_is_refused():
    with pytest.raises(ValueError, match=r"must be 0 or more, got -0.1"):
        capped([], -0.1)


halves = st.integers(-4, 8).map(lambda n: n / 4)


@given(st.lists(halves, max_size=12), st.integers(0, 12).map(lambda n: n / 4))
def test_the_credited_mass_is_the_smaller_of_all_and_the_cap(rewards, cap):
    found = capped(spans(*rewards), cap)
    positive = sum(v for v in rewards if v > 0)
    assert sum(v for v in values(found) if v > 0) == min(positive, cap)
    assert [s for s in found if s.value < 0] == [s for s in spans(*rewards) if s.value < 0]


@given(st.lists(halves, max_size=8), st.lists(st.integers(0, 8).map(lambda n: n / 4), max_size=8))
def test_what_comes_after_the_cap_changes_nothing(before, after):
    cap = sum(v for v in before if v > 0)
    credited = capped(spans(*before), cap)
    assert capped(spans(*before, *after), cap)[: len(credited)] == credited
    assert all(span.start < len(before) for span in capped(spans(*before, *after), cap))


@given(st.lists(halves, max_size=8), st.integers(0, 12).map(lambda n: n / 4))
def test_the_cap_equals_a_naive_running_sum(rewards, cap):
    """Each positive reward earns what the capped running sum gains by it."""
    expected, before = [], 0.0
    for value in rewards:
        if value < 0:
            expected.append(value)
        elif before < cap:
            expected.append(min(before + value, cap) - before)
            before += value
    assert values(capped(spans(*rewards), cap)) == expected


def test_spread_lies_in_equal_parts_on_all_policy_tokens_of_all_rows():
    # five policy tokens, 2 / 5 each
    assert spread(TWO_ROWS, 2.0) == [[0.4, 0.4, 0.0, 0.4], [0.4, 0.4]]


def test_nothing_is_spread_over_nothing():
    with pytest.raises(ValueError, match="the policy wrote nothing"):
        spread(episode(row(0, 0)), 1.0)


def test_place_puts_a_span_on_its_policy_tokens_and_overlaps_add():
    found = place(TWO_ROWS, [SpanReward(0, 1, 4, 1.0, "retrieval"), SpanReward(0, 0, 2, 0.5, "format")])
    # retrieval: tokens 1 and 3, 0.5 each (2 is an observation); format: tokens 0 and 1, 0.25 each
    assert found == [[0.25, 0.75, 0.0, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("where", [(0, 0, 5), (2, 0, 1), (1, 2, 3)])
def test_a_span_outside_its_row_is_refused(where):
    with pytest.raises(ValueError, match="outside its row"):
        place(TWO_ROWS, [SpanReward(*where, 1.0, "format")])


def test_a_span_without_a_policy_token_is_refused():
    with pytest.raises(ValueError, match="on no token of the policy"):
        place(TWO_ROWS, [SpanReward(0, 2, 3, 1.0, "format")])


@pytest.mark.parametrize("where", [(-1, 0, 1), (0, 1, 1), (0, -1, 1)])
def test_an_impossible_span_is_refused(where):
    with pytest.raises(ValueError, match="a memory reward lies on row"):
        SpanReward(*where, 1.0, "memory")


def test_rewards_add_token_by_token():
    assert add([[1.0, 2.0], [0.5]], [[0.25, 0.0], [1.0]]) == [[1.25, 2.0], [1.5]]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=4), st.integers(-8, 8))
def test_spreading_and_placing_lose_nothing(masks, reward):
    session = episode(*(row(*mask) for mask in masks))
    placed = [SpanReward(i, 0, len(mask), reward, "format") for i, mask in enumerate(masks) if any(mask)]
    if placed:
        assert sum(map(sum, spread(session, reward))) == pytest.approx(reward)
        assert sum(map(sum, place(session, placed))) == pytest.approx(reward * len(placed))
    for rewards, mask in zip(place(session, placed), masks, strict=True):
        assert not any(value for value, policy in zip(rewards, mask, strict=True) if not policy)
