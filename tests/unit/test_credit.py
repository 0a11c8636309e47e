"""Advantages of whole sessions: values worked by hand, equality with verl's GRPO, and what must not change them."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_agentic.core.credit import CreditedSession, hierarchical, outcome_advantages, z_scores
from verl_agentic.core.spans import SpanReward, capped


def session(outcome, *masks, group="q", spans=()):
    return CreditedSession(group, outcome, tuple(map(tuple, masks)), tuple(spans))


def test_z_scores_by_hand():
    # mean 2, squares 1 + 0 + 1, sample variance 2 / 2 = 1
    assert z_scores([1.0, 2.0, 3.0]) == pytest.approx([-1.0, 0.0, 1.0], abs=2e-6)
    # epsilon stands beside the deviation: 1 / (1 + 1) without rounding
    assert z_scores([1.0, 2.0, 3.0], epsilon=1.0) == [-0.5, 0.0, 0.5]


@pytest.mark.parametrize("values", [[], [0.7], [0.1, 0.1, 0.1], [0.0] * 5])
def test_nothing_to_compare_is_exactly_0(values):
    assert z_scores(values) == [0.0] * len(values)


def test_a_lone_session_has_its_outcome_as_in_verl():
    assert outcome_advantages([0.5]) == pytest.approx([0.5], abs=1e-6)
    assert outcome_advantages([0.0]) == [0.0]


def test_a_group_by_hand():
    """Outcomes 1 and 0; three credited spans 1.0, 0.5 and 0.0; coefficient 0.3."""
    first = session(
        1.0,
        [1, 1, 0, 1],
        [1, 1],
        spans=[SpanReward(0, 0, 2, 1.0, "retrieval"), SpanReward(1, 0, 1, 0.5, "memory")],
    )
    # its span ends with an observation, which gets nothing
    second = session(0.0, [1, 0], spans=[SpanReward(0, 0, 2, 0.0, "format")])
    # outcomes: mean 1/2, sample variance (1/4 + 1/4) / 1 = 1/2; z = +-(1/2) / sqrt(1/2) = +-0.70711
    # spans: mean 1/2, sample variance (1/4 + 0 + 1/4) / 2 = 1/4; z = 1, 0, -1; times 0.3: 0.3, 0, -0.3
    ours = hierarchical([first, second], 0.3)
    z = sqrt(0.5)
    assert ours[0][0] == pytest.approx([z + 0.3, z + 0.3, 0.0, z], abs=1e-5)
    assert ours[0][1] == pytest.approx([z, z], abs=1e-5)
    assert ours[1][0] == pytest.approx([-z - 0.3, 0.0], abs=1e-5)


def test_a_session_counts_once_however_many_rows_it_has():
    # over sessions: outcomes 1, 0, 0: mean 1/3, sample variance (4/9 + 1/9 + 1/9) / 2 = 1/3
    # z of the first (2/3) / sqrt(1/3) = 1.1547; over rows (1, 1, 1, 0, 0) it would be 0.73
    ours = hierarchical([session(1.0, [1], [1], [1]), session(0.0, [1]), session(0.0, [1])], 0.0)
    assert [token for row in ours[0] for token in row] == pytest.approx([1.1547] * 3, abs=1e-4)


def test_groups_do_not_mix_and_keep_their_places():
    a, b = session(1.0, [1], group="a"), session(0.0, [1], group="a")
    c, d = session(5.0, [1], group="b"), session(3.0, [1], group="b")
    z = sqrt(0.5)
    found = [rows[0][0] for rows in hierarchical([c, a, b, d], 0.0)]
    assert found == pytest.approx([z, z, -z, -z], abs=1e-5)


def test_equal_outcomes_leave_only_the_process():
    spans = [SpanReward(0, 0, 1, 1.0, "format")]
    ours = hierarchical([session(0.1, [1, 1], spans=spans)] + [session(0.1, [1])] * 2, 1.0)
    # one span in the group: nothing to compare it with
    assert ours == [[[0.0, 0.0]], [[0.0]], [[0.0]]]


def test_overlapping_spans_add():
    spans = [SpanReward(0, 0, 2, 1.0, "format"), SpanReward(0, 1, 3, 0.0, "memory")]
    # values 1 and 0: z = +-0.70711
    found = hierarchical([session(0.0, [1, 1, 1], spans=spans), session(0.0, [1])], 1.0)[0][0]
    assert found == pytest.approx([sqrt(0.5), 0.0, -sqrt(0.5)], abs=1e-5)


@pytest.mark.parametrize("where", [(0, 0, 3), (1, 0, 1)])
def test_a_span_outside_its_row_is_refused(where):
    with pytest.raises(ValueError, match="a format reward lies outside its row"):
        hierarchical([session(0.0, [1, 1], spans=[SpanReward(*where, 1.0, "format")])], 1.0)


masks = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=3)
outcomes = st.floats(-1, 1, allow_nan=False)


@st.composite
def steps(draw, spans=True):
    """Sessions of up to three questions, each with rows, masks and spans of its own."""
    found = []
    for group in "abc"[: draw(st.integers(1, 3))]:
        for _ in range(draw(st.integers(1, 5))):
            rows = draw(masks)
            judged = draw(st.lists(st.sampled_from(range(len(rows))), max_size=3)) if spans else []
            placed = [SpanReward(r, 0, len(rows[r]), draw(st.floats(0, 1)), "format") for r in judged]
            found.append(session(draw(outcomes), *rows, group=group, spans=placed))
    return draw(st.permutations(found))


@given(steps(spans=False))
def test_without_process_and_edits_it_is_verls_own_grpo(step):
    """One row a session; groups of one and equal outcomes included."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    step = [session(s.outcome, s.masks[0], group=s.group) for s in step]
    width = max(len(s.masks[0]) for s in step)
    mask = torch.zeros(len(step), width, dtype=torch.float64)
    rewards = torch.zeros(len(step), width, dtype=torch.float64)
    for i, s in enumerate(step):
        mask[i, : len(s.masks[0])] = torch.tensor(s.masks[0])
        rewards[i, len(s.masks[0]) - 1] = s.outcome
    theirs, _ = compute_grpo_outcome_advantage(rewards, mask, np.array([s.group for s in step]))
    for i, (own,) in enumerate(hierarchical(step, 0.0)):
        assert own == pytest.approx(theirs[i, : len(own)].tolist(), abs=1e-6)


@given(steps(), st.floats(0, 1))
def test_it_equals_a_naive_loop_over_every_token(step, coefficient):
    def z(values, x):
        if len(values) < 2 or len(set(values)) == 1:
            return 0.0
        return (x - np.mean(values)) / (np.std(values, ddof=1) + 1e-6)

    for own, advantages in zip(step, hierarchical(step, coefficient), strict=True):
        group = [s for s in step if s.group == own.group]
        outcome = z([s.outcome for s in group], own.outcome) if len(group) > 1 else own.outcome / (1 + 1e-6)
        judged = [span.value for s in group for span in s.spans]
        for r, mask in enumerate(own.masks):
            for t, policy in enumerate(mask):
                process = sum(z(judged, s.value) for s in own.spans if s.row == r and s.start <= t < s.end)
                expected = (outcome + coefficient * process) * policy
                assert advantages[r][t] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(steps(), st.data())
def test_an_observation_changes_no_advantage_of_the_policy(step, data):
    """Observation tokens (mask 0) put anywhere between the others, the spans moved along."""
    which = data.draw(st.integers(0, len(step) - 1))
    row = data.draw(st.integers(0, len(step[which].masks) - 1))
    place = data.draw(st.integers(0, len(step[which].masks[row])))
    length = data.draw(st.integers(1, 4))
    changed = list(step)
    changed[which] = _with_observation(step[which], row, place, length)
    assert _policy_tokens(step, hierarchical(step, 0.5)) == _policy_tokens(changed, hierarchical(changed, 0.5))


def _with_observation(own, row, place, length):
    rows = [list(mask) for mask in own.masks]
    rows[row][place:place] = [0] * length

    def moved(span):
        if span.row != row:
            return span
        start = span.start + length * (place <= span.start)
        return SpanReward(row, start, span.end + length * (place < span.end), span.value, span.kind)

    return session(own.outcome, *rows, group=own.group, spans=map(moved, own.spans))


def _policy_tokens(step, advantages):
    return [
        [a for mask, values in zip(s.masks, rows, strict=True) for m, a in zip(mask, values, strict=True) if m]
        for s, rows in zip(step, advantages, strict=True)
    ]


quarters = st.integers(0, 4).map(lambda n: n / 4)


@given(st.lists(quarters, min_size=1, max_size=6), st.lists(quarters, min_size=1, max_size=6), st.floats(0, 1))
def test_with_the_outcome_fixed_actions_after_the_cap_add_0(before, after, coefficient):
    """Three tokens an action; the first actions fill the cap, the others come on top of it."""
    cap = sum(before)

    def acting(rewards):
        spans = [SpanReward(0, 3 * i, 3 * i + 3, value, "format") for i, value in enumerate(rewards)]
        return session(1.0, [1] * (3 * len(rewards)), spans=capped(spans, cap))

    other = session(0.0, [1, 1], spans=[SpanReward(0, 0, 1, 0.5, "format")])
    short = hierarchical([acting(before), other], coefficient)
    long = hierarchical([acting(before + after), other], coefficient)
    assert long[0][0][: 3 * len(before)] == short[0][0]
    assert long[1] == short[1]
    # what lies on the further tokens is the outcome's advantage and nothing else: z of 1 against 0
    assert long[0][0][3 * len(before) :] == pytest.approx([sqrt(0.5)] * (3 * len(after)), abs=1e-5)
