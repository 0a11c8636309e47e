"""Rows only append, and token truth catches every way in which they could lie."""

import dataclasses

import pytest

from verl_agentic.core.outcomes import FaultCode, ModelFault, Ok
from verl_agentic.core.rewards import on_last_trainable, outcome_rewards, total
from verl_agentic.core.trajectory import Episode, RowBuilder, TokenTruthError, Turn, check_episode


def one_row_episode():
    """Sampled 11 12 13 (13 dropped), observation 20 21, sampled 14."""
    builder = RowBuilder(prompt_ids=[1, 2])
    builder.turns.append(Turn(*builder.append_policy([11, 12], [-0.1, -0.2]), "t", None, FaultCode.NO_ACTION, 1))
    builder.append_environment([20, 21])
    builder.turns.append(Turn(*builder.append_policy([14], [-0.3]), "t", None, FaultCode.NO_ACTION, 0))
    return Episode("q", (builder.freeze(),), ModelFault(FaultCode.NO_ACTION), None)


SAMPLED = [11, 12, 13, 14]
REWARDS = [[0.0, 0.0, 0.0, 0.0, 1.0]]


def test_rows_hold_prompt_response_mask_and_log_probs():
    row = one_row_episode().rows[0]
    assert row.prompt_ids == (1, 2)
    assert row.response_ids == (11, 12, 20, 21, 14)
    assert row.response_mask == (1, 1, 0, 0, 1)
    assert row.log_probs == (-0.1, -0.2, 0.0, 0.0, -0.3)
    assert row.last_trainable == 4


def test_a_row_without_log_probs_has_none_at_all():
    builder = RowBuilder(prompt_ids=[])
    builder.append_policy([1], [-1.0])
    builder.append_policy([2], None)
    assert builder.freeze().log_probs is None


def test_token_truth_holds():
    check_episode(one_row_episode(), REWARDS, SAMPLED)


@pytest.mark.parametrize(
    ("change", "rewards", "sampled", "message"),
    [
        ({}, REWARDS, [11, 12, 13, 15], "not the 3 kept sampled ones"),
        ({}, REWARDS, [12, 11, 13, 14], "not the 3 kept sampled ones"),
        ({}, REWARDS, [11, 12, 13, 14, 15], "account for 4 sampled tokens, generation returned 5"),
        ({"response_mask": (1, 1, 1, 0, 1)}, REWARDS, SAMPLED, "not the 3 kept sampled ones"),
        ({"response_mask": (1, 1, 0, 0)}, REWARDS, SAMPLED, "5 response tokens and 4 mask entries"),
        ({"response_mask": (1, 1, 0, 2, 1)}, REWARDS, SAMPLED, "only 0 and 1"),
        ({"log_probs": (0.0,)}, REWARDS, SAMPLED, "5 response tokens and 1 log-prob"),
        ({"log_probs": (0.0, 0.0, 0.0, 0.0, float("nan"))}, REWARDS, SAMPLED, "not finite"),
        ({}, [[0.0, 0.0, 0.0, 0.0, float("inf")]], SAMPLED, "not finite"),
        ({}, [[0.0, 0.0, 0.0, 1.0, 0.0]], SAMPLED, "response token 3, which is not trained"),
        ({}, [[0.0]], SAMPLED, "5 response tokens and 1 rewards"),
        ({}, REWARDS * 2, SAMPLED, "1 rows and rewards for 2"),
    ],
)
def test_token_truth_catches(change, rewards, sampled, message):
    episode = one_row_episode()
    row = dataclasses.replace(episode.rows[0], **change)
    with pytest.raises(TokenTruthError, match=message):
        check_episode(dataclasses.replace(episode, rows=(row,)), rewards, sampled)


def test_p57_a_reward_goes_to_the_last_trainable_token_not_to_a_final_observation():
    builder = RowBuilder(prompt_ids=[1])
    builder.append_policy([5, 6], [0.0, 0.0])
    builder.append_environment([7, 8])
    assert on_last_trainable(builder.freeze(), 0.5) == [0.0, 0.5, 0.0, 0.0]


def test_p54_p63_a_row_without_a_policy_token_gets_no_reward():
    builder = RowBuilder(prompt_ids=[1])
    builder.append_environment([7, 8])
    assert on_last_trainable(builder.freeze(), 10.0) == [0.0, 0.0]
    assert on_last_trainable(RowBuilder(prompt_ids=[1]).freeze(), 10.0) == []


def test_the_outcome_is_counted_once_over_several_rows():
    first = one_row_episode().rows[0]
    episode = Episode("q", (first, first), Ok(), "a")
    rewards = outcome_rewards(episode, 1.0)
    assert rewards == [[0.0] * 5, [0.0, 0.0, 0.0, 0.0, 1.0]]
    assert total(rewards) == 1.0
