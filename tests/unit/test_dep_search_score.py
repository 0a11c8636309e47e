"""dep_search: the reward and its penalties, by hand."""

import pytest

from verl_agentic.core.environment import Observe, Reject
from verl_agentic.core.grammar import Action
from verl_agentic.core.outcomes import FaultCode, ModelFault, Ok
from verl_agentic.core.trajectory import Episode, Row, Turn
from verl_agentic.methods.dep_search.actions import CONCLUSION_TOKENS, GRAMMAR, STORED
from verl_agentic.methods.dep_search.score import calls, check_knobs, score

KNOBS = {"metric": "f1", "k1": 10, "k2": 8, "lambda_ret": 0.1, "lambda_dec": 0.05}
TAGS = {tag.name: tag for tag in GRAMMAR.actions}


def turn(text, **changes):
    parsed = GRAMMAR.parse(text)
    given = {"action": parsed.action, "fault": parsed.fault, "effect": None, **changes}
    return Turn(0, 1, text, dropped_tokens=0, **given)


def call(name):
    return turn(f"<{name}>x</{name}>", action=Action(TAGS[name], "x", 0, 1), effect=Observe(()))


def episode(turns, prediction="town year", outcome=None):
    row = Row((1,), (2, 3, 4), (1, 0, 1), None, tuple(turns))
    return Episode("Who?", (row,), outcome or Ok(), prediction)


def reward(*arguments, **knobs):
    scored = score(*arguments, {**KNOBS, **knobs})
    assert scored.rewards[0][:2] == [0.0, 0.0]
    return scored.rewards[0][2]


# N_ret -> R_ret with k1 10 and lambda 0.1; N_dec -> R_dec with k2 8 and lambda 0.05
RETRIEVAL = {**dict.fromkeys(range(11), 0.0), 11: 0.1, 12: 0.2, 13: 0.3}
DECOMPOSITION = {**dict.fromkeys(range(9), 0.0), 9: 0.05, 10: 0.1}


@pytest.mark.parametrize(
    ("metric", "gold", "answer"), [("f1", "year", 2 / 3), ("em", "year", 0.0), ("em", "town year", 1.0)]
)
@pytest.mark.parametrize("decompositions", DECOMPOSITION)
@pytest.mark.parametrize("searches", RETRIEVAL)
def test_the_table_of_penalties(searches, decompositions, metric, gold, answer):
    played = episode([call("Retrieve")] * searches + [call("Decompose")] * decompositions)
    expected = answer - RETRIEVAL[searches] - DECOMPOSITION[decompositions]
    assert reward(played, ["nothing", gold], metric=metric) == pytest.approx(expected)
    metrics = score(played, [gold], {**KNOBS, "metric": metric}).metrics
    assert (metrics["searches"], metrics["decompositions"]) == (searches, decompositions)
    assert metrics["penalty/retrieval"] == pytest.approx(RETRIEVAL[searches])
    assert metrics["penalty/decomposition"] == pytest.approx(DECOMPOSITION[decompositions])


def test_memory_and_conclusions_cost_nothing():
    assert reward(episode([call("Memory")] * 30 + [call("Conclusion")] * 30), ["town year"]) == 1.0


@pytest.mark.parametrize(
    "faulty",
    [
        turn("<Retrieve> </Retrieve>"),
        turn("<Retrieve>a <answer>b</answer></Retrieve>"),
        turn("<Retrieve>never closed"),
        turn("<information>a</information> <Retrieve>b</Retrieve>"),
        turn("<Retrieve>beyond the allowance</Retrieve>"),
        turn(
            "<Retrieve>r</Retrieve>", action=None, fault=FaultCode.INVALID_EDIT, effect=Reject(FaultCode.NO_ACTION, "")
        ),
    ],
)
def test_faulty_calls_count(faulty):
    played = episode([call("Retrieve")] * 10 + [faulty])
    assert calls(played, "Retrieve") == 11
    assert reward(played, ["town year"]) == pytest.approx(0.9)


def test_what_is_no_call_does_not_count():
    turns = [turn("nothing but text"), turn("<search>a</search>"), turn("</Retrieve>"), turn("<answer>a</answer>")]
    assert calls(episode(turns), "Retrieve") == 0


def test_a_session_without_an_answer_earns_nothing_and_pays():
    played = episode([call("Retrieve")] * 12, None, ModelFault(FaultCode.NO_ACTION))
    assert reward(played, ["town year"]) == pytest.approx(-0.2)
    assert score(played, ["town year"], KNOBS).metrics["acc"] == 0.0


def test_what_the_actions_noted_is_summed():
    def noted(*figures):
        return turn("<Conclusion></Conclusion>", effect=Observe((), figures=figures))

    metrics = score(
        episode([noted((CONCLUSION_TOKENS, 5.0), (STORED, 1.0)), noted((STORED, 2.0))]), [""], KNOBS
    ).metrics
    assert (metrics["conclusion/tokens"], metrics["memory/stored"], metrics["memory/reused"]) == (5.0, 3.0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "f2"}, r"agentic\.reward\.metric: unknown metric 'f2'.*\['em', 'f1'\]"),
        ({"k1": -1}, r"agentic\.reward\.k1 must be a number of at least 0, got -1"),
        ({"lambda_ret": -0.1}, r"agentic\.reward\.lambda_ret must be a number of at least 0, got -0\.1"),
        ({"lambda_dec": float("nan")}, r"agentic\.reward\.lambda_dec must be a number of at least 0, got nan"),
    ],
)
def test_senseless_knobs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        check_knobs({**KNOBS, **change})


def test_the_papers_knobs_are_sound():
    check_knobs(KNOBS)
