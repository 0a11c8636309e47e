"""Advantages of agentic_rag_r1: verl's GRPO where nothing of the method is on, and what observations do to them."""

import asyncio
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.credit import CreditedSession, hierarchical
from verl_agentic.core.environment import Passage, Tools
from verl_agentic.core.judging import Verdict
from verl_agentic.core.selection import SelectionRule, select
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.methods.agentic_rag_r1 import METHOD

CODEC = WordCodec(build_tokenizer())
PACK = load_pack(METHOD.prompts, "demo")
BUDGET = Budget(20, 3, turn_tokens=32, observation_tokens=48, prompt_tokens=900, response_tokens=900)
OFF = {"metric": "f1", "fault": 0.0, "process": [], "cap": 8.0, "coefficient": 0.0, "memory_view": "after"}
ON = {**OFF, "process": ["format", "retrieval", "memory"], "coefficient": 0.2}
NO_EDITS = ["<plan> find town </plan>", "<search> find year </search>", "<reasoning> year found </reasoning>"]
EDITS = ["<summary> 1 | town </summary>", "<backtrack> 2 | wrong </backtrack>"]


def run(turns, passages=1):
    async def search(query):
        return [Passage(id=str(i), contents="known fact") for i in range(passages)]

    engine = TurnEngine(CODEC, METHOD.grammar.without(()), PACK, BUDGET, forgery_ends=False)
    environment = METHOD.environment(Tools(search, lambda found: render_passages(PACK, found)))
    return asyncio.run(engine.run("Where ?", ScriptedSampler(turns, CODEC), environment))


def credited(group, episode, gold, knobs):
    asks = METHOD.asks(episode, [gold], knobs)
    score = METHOD.score(episode, [gold], knobs, [Verdict(0.5 + 0.1 * (i % 3)) for i in range(len(asks))])
    return CreditedSession(group, score.outcome, tuple(row.response_mask for row in episode.rows), score.spans)


def test_without_process_rewards_rejection_and_edits_advantages_are_verls_grpo():
    rng = random.Random(0)
    episodes = [
        (f"q{q}", run([*rng.choices(NO_EDITS, k=rng.randint(0, 5)), f"<conclusion> {answer} </conclusion>"]))
        for q in range(5)
        for answer in rng.choices(["town", "year", "town year", "unknown"], k=6)
    ]
    sessions = [credited(group, episode, "town year", OFF) for group, episode in episodes]
    groups, outcomes = [s.group for s in sessions], [s.outcome for s in sessions]
    assert {round(outcome, 3) for outcome in outcomes} == {0.0, 0.667, 1.0}
    assert select(SelectionRule("all"), groups, outcomes) == list(range(30))
    assert all(len(session.masks) == 1 and session.spans == () for session in sessions)

    width = max(len(session.masks[0]) for session in sessions)
    mask, rewards = torch.zeros(30, width), torch.zeros(30, width, dtype=torch.float64)
    for i, (session, (_, episode)) in enumerate(zip(sessions, episodes, strict=True)):
        length = len(session.masks[0])
        mask[i, :length] = torch.tensor(session.masks[0], dtype=torch.float)
        rewards[i, :length] = torch.tensor(METHOD.score(episode, ["town year"], OFF).rewards[0], dtype=torch.float64)
    verls, _ = compute_grpo_outcome_advantage(rewards, mask, np.array(groups))
    ours = torch.zeros_like(verls)
    for i, (own,) in enumerate(hierarchical(sessions, 0.0)):
        ours[i, : len(own)] = torch.tensor(own)
    assert float((ours - verls).abs().max()) < 1e-6
    assert float(verls.abs().max()) > 0.5


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*NO_EDITS, *EDITS]), min_size=1, max_size=6), st.integers(0, 3))
def test_an_observation_changes_no_advantage_of_the_policys_tokens(turns, passages):
    """The same actions with observations of another length: the policy's tokens have the same advantages."""

    def policy(count):
        own = run([*turns, "<conclusion> town </conclusion>"], count)
        other = run(["<conclusion> year </conclusion>"])
        both = [credited("q", own, "town", ON), credited("q", other, "town", ON)]
        advantages, _ = hierarchical(both, 0.2)
        masked = [
            (a, m) for row, mask in zip(advantages, both[0].masks, strict=True) for a, m in zip(row, mask, strict=True)
        ]
        assert all(a == 0.0 for a, m in masked if not m)
        return [a for a, m in masked if m]

    assert policy(passages) == policy(4)


def test_all_rows_of_a_session_have_its_one_outcome_advantage():
    """Two rows against one: the group has two outcomes, not three."""
    edited = credited("q", run(["<plan> find town </plan>", EDITS[0], "<conclusion> town </conclusion>"]), "town", OFF)
    plain = credited("q", run(["<conclusion> year </conclusion>"]), "town", OFF)
    own, other = hierarchical([edited, plain], 0.0)
    value = 0.5 / (0.5**0.5 + 1e-6)
    assert [len(row) for row in own] == [4 + 5, 3]
    assert own == [pytest.approx([value] * 9), pytest.approx([value] * 3)]
    assert other == [pytest.approx([-value] * 3)]
