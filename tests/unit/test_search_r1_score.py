"""The reward of search_r1 on episodes worked by hand, and episodes read back from finished responses."""

import pytest

from verl_agentic.core.outcomes import FaultCode, ModelFault, Ok
from verl_agentic.core.replay import episode_from_response
from verl_agentic.core.trajectory import Episode, Row
from verl_agentic.methods.search_r1 import METHOD

KNOBS = {"metric": "em", "fault": 0.0, "forgery": -0.1}
# prompt, then: two policy tokens, two observation tokens, three policy tokens
ROW = Row((1, 2), (5, 6, 7, 8, 9, 10, 11), (1, 1, 0, 0, 1, 1, 1), None, ())
ENDS_WITH_OBSERVATION = Row((1,), (5, 6, 7), (1, 1, 0), None, ())


def episode(prediction, outcome, row=ROW):
    return Episode("q", (row,), outcome, prediction, actions={"search": 1})


def test_a_right_answer_is_rewarded_on_the_last_token_of_the_policy():
    score = METHOD.score(episode("the Oslo", Ok()), ["oslo"], KNOBS)
    assert score.rewards == [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]]
    assert score.metrics == {
        "acc": 1.0, "em": 1.0, "f1": 1.0, "format": 1.0, "searches": 1.0, "corrections": 0.0, "dropped_tokens": 0.0,
    }  # fmt: skip


def test_a_wrong_answer_gets_nothing_and_keeps_its_f1():
    score = METHOD.score(episode("new oslo", Ok()), ["oslo"], KNOBS)
    # prediction {new, oslo}, gold {oslo}: P = 1/2, R = 1 -> 2/3
    assert sum(score.rewards[0]) == 0.0
    assert score.metrics["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("metric", "reward"), [("em", 0.0), ("f1", 2 / 3), ("cover", 1.0)])
def test_the_rewarded_metric_is_a_knob(metric, reward):
    score = METHOD.score(episode("new oslo", Ok()), ["oslo"], {**KNOBS, "metric": metric})
    assert score.rewards[0][-1] == pytest.approx(reward)
    assert score.metrics["acc"] == pytest.approx(reward)


def test_p10_forgery_ranks_below_every_valid_trajectory():
    forged = METHOD.score(episode(None, ModelFault(FaultCode.FORGED_MARKUP)), ["oslo"], KNOBS)
    wrong = METHOD.score(episode("x", Ok()), ["oslo"], KNOBS)
    fault = METHOD.score(episode(None, ModelFault(FaultCode.NO_ACTION)), ["oslo"], KNOBS)
    assert [sum(s.rewards[0]) for s in (forged, wrong, fault)] == [-0.1, 0.0, 0.0]
    assert forged.metrics["format"] == 0.0


def test_p57_a_trajectory_that_ends_with_an_observation_is_rewarded_before_it():
    score = METHOD.score(episode(None, ModelFault(FaultCode.FORGED_MARKUP), ENDS_WITH_OBSERVATION), ["a"], KNOBS)
    assert score.rewards == [[0.0, -0.1, 0.0]]


def test_p52_p53_every_sample_has_the_same_scalar_keys_and_none_is_called_reward():
    scores = [
        METHOD.score(episode("x", Ok()), ["oslo"], KNOBS),
        METHOD.score(episode(None, ModelFault(FaultCode.TRUNCATED)), ["oslo", "b"], KNOBS),
    ]
    assert scores[0].metrics.keys() == scores[1].metrics.keys()
    assert all(isinstance(v, float) for s in scores for v in s.metrics.values())
    with pytest.raises(ValueError, match="must not hold the key 'reward'"):
        type(scores[0])([[0.0]], {"reward": 1.0})


def read_back(text):
    return episode_from_response("q", text, [5, 6, 7], METHOD.grammar)


def test_p49_one_answer_tag_in_the_generated_part_is_enough():
    found = read_back("<think>x</think> <answer> Oslo </answer>")
    assert (found.prediction, found.outcome) == ("Oslo", Ok())
    assert METHOD.score(found, ["oslo"], KNOBS).rewards == [[0.0, 0.0, 1.0]]


def test_p10_an_observation_in_a_single_turn_response_is_the_policys_own_forgery():
    found = read_back("<think>x</think><information>Oslo</information><answer>Oslo</answer>")
    assert found.outcome == ModelFault(FaultCode.FORGED_MARKUP)
    assert METHOD.score(found, ["oslo"], KNOBS).rewards == [[0.0, 0.0, -0.1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "EM"}, "unknown metric 'EM'"),
        ({"metric": "covr"}, "unknown metric 'covr'; did you mean 'cover'"),
        ({"fault": -1.0}, "else forging an observation would pay"),
        ({"forgery": 0.5}, "agentic.reward.forgery=0.5"),
    ],
)
def test_knobs_that_make_no_sense_are_refused(change, message):
    METHOD.check_knobs(KNOBS)
    with pytest.raises(ValueError, match=message):
        METHOD.check_knobs({**KNOBS, **change})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("just text", FaultCode.NO_ACTION),
        ("<search>a</search>", FaultCode.TURNS_EXHAUSTED),
        ("<answer>a", FaultCode.ACTION_UNCLOSED),
        ("", FaultCode.NO_ACTION),
    ],
)
def test_a_transcript_without_an_answer_is_a_model_fault(text, code):
    found = read_back(text)
    assert found.outcome == ModelFault(code)
    assert found.prediction is None
