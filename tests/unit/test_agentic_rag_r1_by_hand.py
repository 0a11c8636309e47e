"""One session of seven actions with a backtrack and a summary, worked by hand.

In the demo's vocabulary every word is a token, so spans can be counted:

row 0   [0, 4)   <plan> find founder </plan>
        [4, 8)   <search> wrong question </search>              [8, 15)  observation of 7 tokens
        [15, 21) <backtrack> 1 | wrong passage </backtrack>     pops the search
row 1   [0, 4)   <search> find founder </search>                [4, 11)  observation of 7 tokens
        [11, 16) <reasoning> founder is known </reasoning>
        [16, 23) <summary> 2 | founder is known </summary>      pops reasoning and search
row 2   [0, 3)   <conclusion> known </conclusion>

The policy wrote 14 + 16 + 3 = 33 tokens.
"""

import asyncio

import pytest

from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.credit import CreditedSession, hierarchical
from verl_agentic.core.environment import Passage, Tools
from verl_agentic.core.judging import Verdict
from verl_agentic.core.spans import SpanReward
from verl_agentic.core.statistics import session_statistics
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.methods.agentic_rag_r1 import METHOD
from verl_agentic.methods.agentic_rag_r1.memory import Entry, as_text, memories

TURNS = [
    "<plan> find founder </plan>",
    "<search> wrong question </search>",
    "<backtrack> 1 | wrong passage </backtrack>",
    "<search> find founder </search>",
    "<reasoning> founder is known </reasoning>",
    "<summary> 2 | founder is known </summary>",
    "<conclusion> known </conclusion>",
]
PASSAGES = {"wrong question": "wrong fact", "find founder": "founder known"}
KNOBS = {
    "metric": "f1",
    "fault": 0.0,
    "process": ["format", "retrieval", "memory"],
    "cap": 5.25,
    "coefficient": 0.2,
    "memory_view": "after",
}
# of the two searches and the two edits, in time order
VERDICTS = [Verdict(0.25), Verdict(1.0), Verdict(0.75), Verdict(0.5)]


@pytest.fixture(scope="module")
def codec():
    return WordCodec(build_tokenizer())


@pytest.fixture(scope="module")
def episode(codec):
    async def search(query):
        return [Passage(id=query, contents=PASSAGES[query])]

    pack = load_pack(METHOD.prompts, "demo")
    budget = Budget(10, 3, turn_tokens=32, observation_tokens=48, prompt_tokens=320, response_tokens=384)
    engine = TurnEngine(codec, METHOD.grammar, pack, budget, forgery_ends=False)
    environment = METHOD.environment(Tools(search, lambda passages: render_passages(pack, passages)))
    return asyncio.run(engine.run("Who is the founder ?", ScriptedSampler(TURNS, codec), environment))


PLAN = Entry(0, "plan", "find founder", 0, 0, (0, 4))
WRONG = Entry(1, "search", "wrong question", 1, 0, (4, 8), ("( 1 ) wrong fact",))
BACK = Entry(2, "backtrack", "wrong passage", 2, 0, (15, 21))
RIGHT = Entry(3, "search", "find founder", 3, 1, (0, 4), ("( 1 ) founder known",))
THOUGHT = Entry(4, "reasoning", "founder is known", 4, 1, (11, 16))
SUMMARY = Entry(5, "summary", "founder is known", 5, 1, (16, 23))


def test_the_stack_after_each_turn(episode):
    assert memories(episode) == [
        (PLAN,),
        (PLAN, WRONG),
        (PLAN, BACK),
        (PLAN, BACK, RIGHT),
        (PLAN, BACK, RIGHT, THOUGHT),
        (PLAN, BACK, SUMMARY),
        (PLAN, BACK, SUMMARY),
    ]


def test_the_rows_as_the_policy_saw_them(episode, codec):
    base = len(episode.rows[0].prompt_ids)
    wrong = "<information> ( 1 ) wrong fact </information>"
    right = "<information> ( 1 ) founder known </information>"
    assert [(codec.decode(row.prompt_ids[base:]), codec.decode(row.response_ids)) for row in episode.rows] == [
        ("", f"{TURNS[0]} {TURNS[1]} {wrong} {TURNS[2]}"),
        (f"{TURNS[0]} {TURNS[2]}", f"{TURNS[3]} {right} {TURNS[4]} {TURNS[5]}"),
        (f"{TURNS[0]} {TURNS[2]} {TURNS[5]}", TURNS[6]),
    ]
    assert [sum(row.response_mask) for row in episode.rows] == [14, 16, 3]


def test_the_stack_as_a_judge_reads_it():
    assert as_text((PLAN, BACK, RIGHT)) == (
        "1. plan: find founder\n2. backtrack: wrong passage\n3. search: find founder\n   ( 1 ) founder known"
    )
    assert as_text(()) == "(empty)"


def test_the_credited_spans(episode):
    """In time order .5, .5 + .25, .5 + 1, .5 + .75, .5, .5 make 5.0; of the last .5 of the judge .25 is left."""
    assert METHOD.score(episode, ["known"], KNOBS, VERDICTS).spans == (
        SpanReward(0, 0, 4, 0.5, "format"),
        SpanReward(0, 4, 8, 0.5, "format"),
        SpanReward(0, 4, 8, 0.25, "retrieval"),
        SpanReward(0, 15, 21, 0.5, "format"),
        SpanReward(0, 15, 21, 1.0, "memory"),
        SpanReward(1, 0, 4, 0.5, "format"),
        SpanReward(1, 0, 4, 0.75, "retrieval"),
        SpanReward(1, 11, 16, 0.5, "format"),
        SpanReward(1, 16, 23, 0.5, "format"),
        SpanReward(1, 16, 23, 0.25, "memory"),
    )


def test_rewards_per_token(episode):
    """1/33 of the outcome on each of the policy's tokens, and .2 x the process reward of a span over its tokens."""
    score = METHOD.score(episode, ["known"], KNOBS, VERDICTS)
    share = 1 / 33
    assert score.rewards[0] == pytest.approx(
        [share + 0.2 * 0.5 / 4] * 4 + [share + 0.2 * 0.75 / 4] * 4 + [0.0] * 7 + [share + 0.2 * 1.5 / 6] * 6
    )
    assert score.rewards[1] == pytest.approx(
        [share + 0.2 * 1.25 / 4] * 4 + [0.0] * 7 + [share + 0.2 * 0.5 / 5] * 5 + [share + 0.2 * 0.75 / 7] * 7
    )
    assert score.rewards[2] == pytest.approx([share] * 3)
    assert sum(map(sum, score.rewards)) == pytest.approx(1.0 + 0.2 * 5.25)


def test_the_scalars_of_the_session(episode):
    score = METHOD.score(episode, ["known"], KNOBS, VERDICTS)
    assert score.outcome == 1.0
    assert score.metrics == pytest.approx(
        {
            "acc": 1.0,
            "em": 1.0,
            "f1": 1.0,
            "format": 1.0,
            "searches": 2.0,
            "corrections": 0.0,
            "invalid_edits": 0.0,
            "dropped_tokens": 0.0,
            "process/format": 3.0,
            "process/retrieval": 1.0,
            "process/memory": 1.25,
            "process/beyond_cap": 1.25,
        }
    )


def test_context_lengths_seen_and_unedited(episode):
    """The prompt has 10 tokens. Before each turn: 10, 14, 25 | 20, 31, 36 | 27; unedited 10, 14, 25, 31, 42, 47, 54."""
    assert len(episode.rows[0].prompt_ids) == 10
    found = session_statistics(episode, METHOD.grammar)
    assert found["context/seen"] == pytest.approx((10 + 14 + 25 + 20 + 31 + 36 + 27) / 7)
    assert found["context/unedited"] == pytest.approx((10 + 14 + 25 + 31 + 42 + 47 + 54) / 7)
    assert {name: found[name] for name in found if name.startswith("actions/")} == {
        "actions/plan": 1.0,
        "actions/reasoning": 1.0,
        "actions/search": 2.0,
        "actions/backtrack": 1.0,
        "actions/summary": 1.0,
    }
    assert found["rows"] == 3.0


def test_advantages_per_token_against_a_failed_session(episode):
    """Two sessions of one question: this one, outcome 1, and one with outcome 0 whose only action has format .5.

    Outcomes 1 and 0: mean .5, sample std sqrt(.5). Span rewards: seven .5, and .25, 1, .75, .25 and the other's .5.
    """
    score = METHOD.score(episode, ["known"], KNOBS, VERDICTS)
    masks = tuple(row.response_mask for row in episode.rows)
    failed = CreditedSession("q", 0.0, ((1, 1, 0),), (SpanReward(0, 0, 2, 0.5, "format"),))
    own, other = hierarchical([CreditedSession("q", 1.0, masks, score.spans), failed], 0.2)
    outcome = 0.5 / (0.5**0.5 + 1e-6)
    values = [0.5, 0.5, 0.25, 0.5, 1.0, 0.5, 0.75, 0.5, 0.5, 0.25, 0.5]
    mean = sum(values) / 11
    std = (sum((value - mean) ** 2 for value in values) / 10) ** 0.5

    def process(*rewards):
        return 0.2 * sum((reward - mean) / (std + 1e-6) for reward in rewards)

    assert own[0] == pytest.approx(
        [outcome + process(0.5)] * 4
        + [outcome + process(0.5, 0.25)] * 4
        + [0.0] * 7
        + [outcome + process(0.5, 1.0)] * 6
    )
    assert own[2] == pytest.approx([outcome] * 3)
    assert other[0] == pytest.approx([-outcome + process(0.5)] * 2 + [0.0])
