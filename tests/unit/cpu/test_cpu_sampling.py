"""Drawing tokens: the distribution, its filters, and a randomness that belongs to the request alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_agentic.cpu.sampling import BatchSampler, RowConstraint, TokenFilter, uniforms
from verl_agentic.cpu.sampling_params import SamplingParams

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
DRAWS = 20_000


def params(**raw):
    return SamplingParams.parse({"seed": 0, **raw})


def draw(logits, *requests, positions=None, constraints=None):
    positions = np.zeros(len(requests), dtype=np.uint64) if positions is None else positions
    return BatchSampler(list(requests)).draw(logits, positions, constraints or {})


def frequencies(**raw):
    """Share of each token in many draws of one request at many positions."""
    request = params(seed=7, **raw)
    tokens, _ = draw(
        LOGITS.repeat(DRAWS, 1), *[request] * DRAWS, positions=np.arange(DRAWS, dtype=np.uint64), constraints={}
    )
    return np.bincount(tokens, minlength=len(LOGITS)) / DRAWS


def chi_square(observed, expected):
    kept = expected > 0
    assert observed[~kept].sum() == 0
    return float(DRAWS * ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()), int(kept.sum()) - 1


# 99.99 % quantiles of the chi-square distribution; the seed is fixed, so the outcome is too.
QUANTILE = {0: 1e-9, 1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 5: 25.74}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature):
    statistic, freedom = chi_square(
        frequencies(temperature=temperature), torch.softmax(LOGITS / temperature, -1).numpy()
    )
    assert statistic < QUANTILE[freedom]


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_k": 1}, 1),
        ({"top_p": 0.5}, 1),  # probabilities .554 .204 .124 .075 .028 .004: the first alone exceeds .5
        ({"top_p": 0.6}, 2),
        ({"top_p": 0.9}, 4),
        ({"min_p": 0.2}, 3),
        ({"top_k": 4, "top_p": 0.9}, 3),  # top_p counts the mass that top_k left
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, 6),
    ],
)
def test_filters_keep_the_likeliest_and_renormalise(raw, kept):
    expected = torch.softmax(LOGITS, -1).numpy().copy()
    expected[kept:] = 0
    statistic, freedom = chi_square(frequencies(**raw), expected / expected.sum())
    assert statistic < QUANTILE[freedom]


@given(
    logits=st.lists(st.floats(-8, 8), min_size=2, max_size=12),
    top_k=st.integers(0, 13),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_filter_equals_a_naive_computation(logits, top_k, top_p, min_p):
    probs = torch.softmax(torch.tensor(logits, dtype=torch.float32), -1)
    filtered = TokenFilter([params(top_k=top_k, top_p=top_p, min_p=min_p)]).apply(probs[None])[0]
    order = sorted(range(len(logits)), key=lambda token: (-probs[token].item(), token))
    kept = [token for token in order if probs[token] >= torch.tensor(min_p) * probs.max()][: top_k or None]
    mass = sum(probs[token].double().item() for token in kept)
    before = 0.0
    for token in order:
        inside = token in kept and (before / mass < top_p or top_p == 1.0)
        assert abs(before / mass - top_p) < 1e-9 or (filtered[token] > 0) == (inside and probs[token] > 0)
        before += probs[token].double().item() if token in kept else 0.0


def test_greedy_takes_the_largest_logit_and_reports_temperature_one():
    tokens, log_probs = draw(LOGITS[None], params(temperature=0))
    assert tokens == [0]
    assert log_probs[0] == pytest.approx(torch.log_softmax(LOGITS, -1)[0].item())


def test_log_probs_are_those_training_recomputes_whatever_is_filtered():
    requests = [params(temperature=0.5, top_k=1), params(temperature=2.0, top_p=0.01), params(min_p=1.0)]
    tokens, log_probs = draw(LOGITS.repeat(3, 1), *requests)
    assert tokens == [0, 0, 0]
    wanted = [torch.log_softmax(LOGITS / t, -1)[0].item() for t in (0.5, 2.0, 1.0)]
    assert log_probs == pytest.approx(wanted, abs=1e-6)


def test_repetition_penalty_lowers_seen_tokens_of_either_sign():
    seen = torch.tensor([True, False, False, False, False, True])
    constraint = {0: RowConstraint(repetition_penalty=4.0, seen=seen)}
    tokens, log_probs = draw(LOGITS[None], params(temperature=0), constraints=constraint)
    assert tokens == [1]  # 2.0 / 4 falls under 1.0
    assert log_probs[0] == pytest.approx(torch.log_softmax(LOGITS, -1)[1].item())
    negative = torch.tensor([[-1.0, -1.5]])
    constraint = {0: RowConstraint(repetition_penalty=2.0, seen=torch.tensor([True, False]))}
    assert draw(negative, params(temperature=0), constraints=constraint)[0] == [1]


def test_forbidden_tokens_are_never_drawn():
    constraints = {row: RowConstraint(forbidden=(0, 1)) for row in range(500)}
    positions = np.arange(500, dtype=np.uint64)
    tokens, _ = draw(LOGITS.repeat(500, 1), *[params()] * 500, positions=positions, constraints=constraints)
    assert set(tokens) == {2, 3, 4, 5}


@pytest.mark.parametrize("raw", [{}, {"temperature": 0}, {"top_p": 0.5}])
def test_a_row_without_any_token_left_says_so_and_its_neighbour_draws(raw):
    tokens, log_probs = draw(
        LOGITS.repeat(2, 1), params(**raw), params(**raw), constraints={0: RowConstraint(forbidden=range(6))}
    )
    assert log_probs[0] == -math.inf
    alone = draw(LOGITS[None], params(**raw))
    assert (tokens[1], log_probs[1]) == (alone[0][0], pytest.approx(alone[1][0]))


def test_a_row_draws_the_same_alone_and_among_others():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(64, 50, generator=generator)
    requests = [params(seed=row, temperature=0.5 + row / 64, top_k=row % 7, top_p=1 - row / 100) for row in range(64)]
    positions = np.arange(64, dtype=np.uint64) * np.uint64(3)
    together, _ = draw(logits, *requests, positions=positions)
    alone = [draw(logits[[r]], requests[r], positions=positions[[r]])[0][0] for r in range(64)]
    assert together == alone
    assert len(set(together)) > 10


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_uniform_numbers_lie_below_one(seed, position):
    value = uniforms(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.uint64))[0]
    assert 0.0 <= value <= 1 - 2**-32


@settings(max_examples=20)
@given(st.integers(0, 2**64 - 2))
def test_neighbouring_seeds_and_positions_are_uncorrelated(seed):
    count = 4000
    positions = np.arange(count, dtype=np.uint64)
    first = uniforms(np.full(count, seed, dtype=np.uint64), positions)
    second = uniforms(np.full(count, seed + 1, dtype=np.uint64), positions)
    bound = 5 / math.sqrt(count)  # five standard deviations of a correlation of independent numbers
    assert abs(np.corrcoef(first, second)[0, 1]) < bound
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < bound
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < bound


def test_an_impossible_number_is_reported_as_nan():
    _, log_probs = draw(torch.full((1, 6), math.nan), params())
    assert math.isnan(log_probs[0])
