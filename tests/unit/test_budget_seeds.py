"""Budgets refuse what cannot work; request seeds depend on what is asked and on nothing else."""

import pytest

from verl_agentic.core.budget import Budget
from verl_agentic.core.seeds import request_seed
from verl_agentic.core.suggest import did_you_mean

GOOD = {
    "max_actions": 2,
    "max_corrections": 1,
    "turn_tokens": 10,
    "observation_tokens": 20,
    "prompt_tokens": 50,
    "response_tokens": 40,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_tokens": 39}, "need 40 tokens, response_tokens is 39"),
        ({"turn_tokens": 0}, "agentic.budget.turn_tokens must be a whole number of at least 1, got 0"),
        ({"max_actions": -1}, "agentic.budget.max_actions must be a whole number of at least 0, got -1"),
        ({"prompt_tokens": "50"}, "agentic.budget.prompt_tokens must be a whole number"),
        ({"observation_tokens": True}, "agentic.budget.observation_tokens must be a whole number"),
    ],
)
def test_a_budget_that_cannot_work_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Budget(**{**GOOD, **change})


def test_without_actions_one_turn_is_enough():
    Budget(**{**GOOD, "max_actions": 0, "response_tokens": 10})


def test_a_request_seed_repeats_and_is_in_range():
    assert request_seed(1, 2, "3 why", 4, 5) == request_seed(1, 2, "3 why", 4, 5)
    assert 0 <= request_seed(1, 2, "3 why", 4, 5) < 2**63


def test_a_request_seed_changes_with_each_of_its_parts():
    base = (1, 2, "3 why", 4, 5)
    seeds = {request_seed(*base), request_seed(*base, split="test")}
    for changed in [
        (9, 2, "3 why", 4, 5),
        (1, 9, "3 why", 4, 5),
        (1, 2, "3 how", 4, 5),
        (1, 2, "3 why", 9, 5),
        (1, 2, "3 why", 4, 9),
    ]:
        seeds.add(request_seed(*changed))
    assert len(seeds) == 7


def test_parts_do_not_run_into_each_other():
    assert request_seed(1, 12, "3", 0, 0) != request_seed(1, 1, "23", 0, 0)


def test_did_you_mean():
    assert did_you_mean("serch_r1", ["search_r1", "m_ask"]) == "; did you mean 'search_r1'?"
    assert did_you_mean("zzz", ["search_r1"]) == ""
