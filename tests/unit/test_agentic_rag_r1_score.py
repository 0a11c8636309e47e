"""The score of agentic_rag_r1 and what its judge is asked; the real engine runs the sessions in the demo's words."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.settings import default_agentic
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import Passage, Tools
from verl_agentic.core.judging import Ask, Missing, Verdict
from verl_agentic.core.outcomes import FaultCode, ModelFault
from verl_agentic.core.replay import episode_from_response
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.methods.agentic_rag_r1 import METHOD
from verl_agentic.methods.agentic_rag_r1.score import process_rewards

CODEC = WordCodec(build_tokenizer())
PACK = load_pack(METHOD.prompts, "demo")
BUDGET = Budget(12, 3, turn_tokens=32, observation_tokens=48, prompt_tokens=600, response_tokens=900)
KNOBS = {
    "metric": "f1",
    "fault": -0.5,
    "process": ["format", "retrieval", "memory"],
    "cap": 100.0,
    "coefficient": 0.5,
    "memory_view": "after",
}
SEARCH, SUMMARY, END = (
    "<search> find town </search>",
    "<summary> 1 | town found </summary>",
    "<conclusion> town year </conclusion>",
)


async def search(query):
    return [Passage(id="a", contents="known fact"), Passage(id="b", contents="next fact")]


def run(*turns, budget=BUDGET):
    engine = TurnEngine(CODEC, METHOD.grammar, PACK, budget, forgery_ends=False)
    environment = METHOD.environment(Tools(search, lambda passages: render_passages(PACK, passages)))
    return asyncio.run(engine.run("Where ?", ScriptedSampler(turns, CODEC), environment))


def values(episode, judgements=(), **knobs):
    return [(s.kind, s.value) for s in process_rewards(episode, ["x"], {**KNOBS, **knobs}, judgements)]


def total(score):
    return sum(map(sum, score.rewards))


@pytest.mark.parametrize(("metric", "outcome"), [("f1", 2 / 3), ("em", 0.0), ("cover", 1.0)])
def test_the_outcome_is_the_metric_over_the_best_alias(metric, outcome):
    score = METHOD.score(run(END), ["nothing", "year"], {**KNOBS, "metric": metric, "process": []})
    assert score.outcome == pytest.approx(outcome)
    assert score.metrics["acc"] == pytest.approx(outcome)
    assert total(score) == pytest.approx(outcome)
    assert score.rewards[0] == pytest.approx([outcome / 4] * 4)
    assert score.metrics["f1"] == pytest.approx(2 / 3)
    assert score.metrics["em"] == 0.0


def test_a_session_without_a_conclusion_gets_the_reward_of_a_fault_whatever_it_says():
    episode = run(*["year <|im_end|>"] * 4)
    assert episode.outcome == ModelFault(FaultCode.NO_ACTION)
    score = METHOD.score(episode, ["year"], {**KNOBS, "process": []})
    assert score.outcome == -0.5
    assert score.metrics["acc"] == 0.0
    assert score.metrics["format"] == 0.0
    assert total(score) == pytest.approx(-0.5)


def test_format_is_1_for_a_conclusion_half_for_another_action_0_for_none():
    turns = ["<plan> find </plan>", "<summary> 9 | town </summary>", "<plan> <search> </plan>", SEARCH, SUMMARY, END]
    episode = run(*turns)
    assert values(episode, process=["format"]) == [
        ("format", 0.5),
        ("format", 0.0),  # refused: more than the stack holds
        ("format", 0.0),  # nested tags
        ("format", 0.5),
        ("format", 0.5),
        ("format", 1.0),
    ]
    assert METHOD.score(episode, ["x"], KNOBS).metrics["invalid_edits"] == 1.0
    assert METHOD.score(episode, ["x"], KNOBS).metrics["corrections"] == 1.0


def test_an_action_beyond_the_allowance_is_no_action():
    budget = Budget(1, 3, turn_tokens=32, observation_tokens=48, prompt_tokens=600, response_tokens=900)
    episode = run("<plan> find </plan>", "<plan> find </plan>", budget=budget)
    assert episode.outcome == ModelFault(FaultCode.LIMIT_EXCEEDED)
    assert values(episode, process=["format"]) == [("format", 0.5), ("format", 0.0)]


def test_a_conclusion_of_verls_own_single_turn_loop_is_one_too():
    """The reward manager reads a response that no environment has seen; there a search leads nowhere."""
    for text, value in ((END, 1.0), (SEARCH, 0.0), ("year", 0.0)):
        episode = episode_from_response("Where ?", text, CODEC.encode(text), METHOD.grammar)
        assert values(episode, process=["format"]) == [("format", value)]
        assert METHOD.asks(episode, ["x"], KNOBS) == []


def test_verdicts_go_to_the_actions_that_they_judge():
    episode = run(SEARCH, "<plan> find </plan>", SEARCH, SUMMARY, END)
    judgements = [Verdict(0.1), Verdict(0.2), Verdict(0.3)]
    assert values(episode, judgements, process=["retrieval", "memory"]) == [
        ("retrieval", 0.1),
        ("retrieval", 0.2),
        ("memory", 0.3),
    ]
    spans = process_rewards(episode, ["x"], {**KNOBS, "process": ["retrieval", "memory"]}, judgements)
    turns = episode.turns
    assert [(s.start, s.end) for s in spans] == [turns[i].span for i in (0, 2, 3)]


def test_a_missing_verdict_is_no_reward_of_0():
    episode = run(SEARCH, SEARCH, END)
    assert values(episode, [Missing("timeout"), Verdict(0.0)], process=["retrieval"]) == [("retrieval", 0.0)]
    assert values(episode, [Missing("timeout"), Missing("timeout")], process=["retrieval"]) == []
    assert values(episode, (), process=["retrieval"]) == []


def test_verdicts_that_do_not_match_the_asks_are_refused():
    with pytest.raises(ValueError, match="argument"):
        values(run(SEARCH, SEARCH, END), [Verdict(1.0)], process=["retrieval"])


@pytest.mark.parametrize(
    ("process", "kinds", "view"),
    [
        (["format", "retrieval", "memory"], ["retrieval", "memory"], "after"),
        (["format", "retrieval", "memory"], ["retrieval", "memory_change"], "before_and_after"),
        (["format"], [], "after"),
        (["memory"], ["memory"], "after"),
        (["format", "retrieval"], ["retrieval"], "before_and_after"),
    ],
)
def test_only_what_is_rewarded_is_asked(process, kinds, view):
    knobs = {**KNOBS, "process": process, "memory_view": view}
    assert list(METHOD.judged_kinds(knobs)) == kinds
    asked = METHOD.asks(run(SEARCH, SUMMARY, "<summary> 9 | town </summary>", END), ["x"], knobs)
    assert [ask.kind for ask in asked] == kinds


def test_the_judge_reads_query_and_documents_and_the_stack_after_an_edit():
    episode = run("<plan> find town </plan>", SEARCH, SUMMARY, END)
    documents = "( 1 ) known fact\n( 2 ) next fact"
    assert METHOD.asks(episode, ["x"], KNOBS) == [
        Ask("retrieval", 1, (("question", "Where ?"), ("query", "find town"), ("documents", documents))),
        Ask(
            "memory",
            2,
            (
                ("question", "Where ?"),
                ("action", "summary"),
                ("text", "town found"),
                ("stack", "1. plan: find town\n2. summary: town found"),
            ),
        ),
    ]
    before = "1. plan: find town\n2. search: find town\n   ( 1 ) known fact\n   ( 2 ) next fact"
    change = METHOD.asks(episode, ["x"], {**KNOBS, "memory_view": "before_and_after"})[1]
    assert dict(change.fields)["before"] == before


def test_gold_answers_are_never_shown_to_the_judge():
    episode = run(SEARCH, SUMMARY, END)
    assert METHOD.asks(episode, ["golden"], KNOBS) == METHOD.asks(episode, ["another"], KNOBS)


def test_each_kind_of_ask_has_a_prompt_with_its_fields():
    import string

    folder = METHOD.prompts.parent / "judge_prompts"
    episode = run(SEARCH, SUMMARY, END)
    for view in ("after", "before_and_after"):
        for ask in METHOD.asks(episode, ["x"], {**KNOBS, "memory_view": view}):
            text = (folder / f"{ask.kind}.txt").read_text()
            used = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            assert used == set(dict(ask.fields))


ACTIONS = st.lists(
    st.sampled_from([SEARCH, SUMMARY, "<plan> find </plan>", "<backtrack> 1 | wrong </backtrack>"]), max_size=6
)


@settings(max_examples=60)
@given(ACTIONS, ACTIONS, st.floats(0, 1))
def test_actions_after_the_cap_add_nothing(before, after, verdict):
    """Of two sessions with the same answer one goes on acting after its cap: the process rewards are the same."""

    cap = 0.5 * len(before)

    def scored(turns):
        episode = run(*turns, END)
        asks = METHOD.asks(episode, ["town year"], KNOBS)
        return METHOD.score(episode, ["town year"], {**KNOBS, "cap": cap}, [Verdict(verdict)] * len(asks))

    short, long = scored(before), scored([*before, *after])
    assert sum(s.value for s in long.spans) <= cap + 1e-9
    if reached(short, cap):
        assert long.spans == short.spans
        assert total(long) == pytest.approx(total(short))


def reached(score, cap):
    """Whether the cap was reached before the conclusion, whose format would be credited else."""
    last = score.spans[-1] if score.spans else None
    conclusion = (len(score.rewards) - 1, len(score.rewards[-1]))
    return sum(s.value for s in score.spans) >= cap - 1e-9 and (last is None or (last.row, last.end) != conclusion)


@settings(max_examples=60)
@given(ACTIONS, st.floats(0, 20), st.floats(0, 3), st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_the_reward_of_a_session_is_its_outcome_and_the_capped_scaled_mass(turns, cap, coefficient, verdicts):
    episode = run(*turns, END)
    asks = METHOD.asks(episode, ["x"], KNOBS)
    judgements = [Verdict(v) for v, _ in zip(verdicts, asks, strict=False)]
    knobs = {**KNOBS, "cap": cap, "coefficient": coefficient}
    score = METHOD.score(episode, ["town"], knobs, judgements)
    everything = sum(s.value for s in process_rewards(episode, ["town"], knobs, judgements))
    assert total(score) == pytest.approx(2 / 3 + coefficient * min(cap, everything), abs=1e-7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "bleu"}, r"agentic\.reward\.metric: unknown value 'bleu'.*\['cover', 'em', 'f1'\]"),
        (
            {"process": ["format", "retrieva"]},
            r"agentic\.reward\.process: unknown value 'retrieva'; did you mean 'retrieval'",
        ),
        ({"process": "format"}, r"agentic\.reward\.process must be a list, such as \[format\], got 'format'"),
        ({"memory_view": "before"}, r"agentic\.reward\.memory_view: unknown value 'before'"),
        ({"cap": -1.0}, r"agentic\.reward\.cap must be a number of at least 0, got -1\.0"),
        ({"coefficient": float("nan")}, r"agentic\.reward\.coefficient must be a number of at least 0, got nan"),
        ({"fault": 0.1}, r"agentic\.reward\.fault=0\.1 must not exceed"),
    ],
)
def test_senseless_knobs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        METHOD.check_knobs({**KNOBS, **change})


def test_the_defaults_are_sound():
    defaults = default_agentic("agentic_rag_r1")
    METHOD.check_knobs(defaults.reward)
    assert defaults.reward.metric == "f1"
    assert defaults.reward.coefficient == defaults.credit.process_coefficient
    assert defaults.selection.rule == "information"
    assert defaults.selection.fraction == 0.7
    assert not defaults.selection.drop_zero_variance
    assert defaults.budget.max_actions == 10
