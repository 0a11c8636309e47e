"""dep_search: its five actions in the real engine, with scripted turns and hashed vectors."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from small_tokenizers import byte_level_tokenizer

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.settings import default_agentic, default_environment
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import Passage, Tools
from verl_agentic.core.outcomes import FaultCode, Ok
from verl_agentic.core.trajectory import check_episode
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.search import embed
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.methods import dep_search
from verl_agentic.methods.dep_search.actions import GRAMMAR
from verl_agentic.methods.dep_search.decompose import NOTICES
from verl_agentic.methods.dep_search.environment import DepSearchEnvironment, check_environment, fact_sentences
from verl_agentic.methods.dep_search.memory import Entry
from verl_agentic.methods.dep_search.score import check_knobs, score

PROMPTS = Path(next(iter(dep_search.__path__))) / "prompts"
PACK = load_pack(PROMPTS, "natural")
CODEC = TokenizerCodec(byte_level_tokenizer("<Retrieve> a </Retrieve> <Memory> b </Memory> <Conclusion></Conclusion>"))
WIDE = Budget(50, 9, turn_tokens=900, observation_tokens=900, prompt_tokens=9_000, response_tokens=30_000)
KNOBS = {**default_environment("dep_search"), "conclusion_tokens": 200}
REWARD = dict(default_agentic("dep_search").reward)
ANSWER, SUM_UP, END = "<answer>x</answer>", "<Conclusion></Conclusion>", "<|im_end|>"


async def search(query):
    text = f"{query} is in Łódź. It is old."
    return [Passage(id=f"id-{query}", contents=f'"T"\n{text}', title="T", text=text)]


def play(*turns, start=(), **knobs):
    """The episode of scripted turns, and its environment afterwards."""
    sampler = ScriptedSampler(turns, CODEC)
    tools = Tools(search, partial(render_passages, PACK), embed, {**KNOBS, **knobs})
    environment = DepSearchEnvironment(tools, start)
    engine = TurnEngine(CODEC, GRAMMAR, PACK, WIDE, forgery_ends=False)
    episode = asyncio.run(engine.run("Who?", sampler, environment))
    scored = score(episode, ["x"], REWARD)
    check_episode(episode, scored.rewards, sampler.sampled)
    return episode, environment, scored.metrics


def told(episode):
    """What the environment wrote, observation by observation."""
    row = episode.rows[0]
    pieces, before = [], 1
    for token, mask in zip(row.response_ids, row.response_mask, strict=True):
        if not mask:
            pieces[-1:] = [[*pieces[-1], token]] if before == 0 else [*pieces[-1:], [token]]
        before = mask
    return [CODEC.decode(piece).strip() for piece in pieces]


def texts(environment):
    return [entry.text for entry in environment.memory.entries]


def test_a_decomposition_is_answered_by_the_order():
    episode, _, metrics = play(
        "<Decompose>1. b of #2\n2. a [deps: none]</Decompose>", "<Decompose>3. c of #1</Decompose>", ANSWER
    )
    assert told(episode) == ["Order of answering: #2 #1", "Order of answering: #2 #1 #3"]
    assert metrics["decompositions"] == 2.0
    assert episode.passages == ()


def test_the_order_is_not_enforced():
    episode, _, _ = play("<Decompose>1. a\n2. b of #1</Decompose>", "<Retrieve>b</Retrieve>", ANSWER)
    assert episode.outcome == Ok()
    assert episode.actions == {"Decompose": 1, "Retrieve": 1}


def test_a_refused_decomposition_is_told_counted_and_changes_nothing():
    episode, _, metrics = play("<Decompose>1. a of #1</Decompose>", "<Decompose>1. a</Decompose>", ANSWER)
    assert told(episode) == [PACK.notices["reference_to_itself"].strip(), "Order of answering: #1"]
    assert [turn.fault for turn in episode.turns] == [FaultCode.INVALID_DECOMPOSITION, None, None]
    assert metrics["decompositions"] == 2.0
    assert episode.actions == {"Decompose": 1}


def test_a_linear_decomposition():
    episode, _, _ = play("<Decompose>1. b\n2. a\n3. c of #1</Decompose>", ANSWER, decomposition="linear")
    assert told(episode) == ["Order of answering: #1 #2 #3"]


def test_a_search_brings_passages_and_stores_nothing():
    episode, environment, metrics = play("<Retrieve>Acme</Retrieve>", ANSWER)
    assert told(episode) == ["<information>Doc 1(Title: T) Acme is in Łódź. It is old.</information>"]
    assert episode.passages == (("id-Acme",),)
    assert (texts(environment), metrics["searches"]) == ([], 1.0)


def test_a_conclusion_is_stored_acknowledged_and_recalled():
    episode, environment, metrics = play(
        "<Retrieve>Acme</Retrieve>",
        SUM_UP,
        "Acme is in Łódź.\n- Ada founded Acme. Bolt is old." + END,
        "<Memory>Acme Łódź</Memory>",
        ANSWER,
    )
    assert told(episode)[1:] == [
        "The facts are stored in your memory.",
        "<Memory_result>Bolt is old.\nAda founded Acme.\nAcme is in Łódź.</Memory_result>",
    ]
    assert texts(environment) == ["Bolt is old.", "Ada founded Acme.", "Acme is in Łódź."]
    called = len(episode.turns[1].side_call.response_ids)
    assert metrics["conclusion/tokens"] == called
    assert (metrics["memory/stored"], metrics["memory/recalled"], metrics["memory/reused"]) == (3.0, 3.0, 3.0)
    assert (metrics["conclusion/empty"], metrics["conclusion/cut"]) == (0.0, 0.0)
    assert episode.actions == {"Retrieve": 1, "Conclusion": 1, "Memory": 1}


def test_the_summary_sees_the_context_and_the_context_does_not_see_the_summary():
    episode, _, _ = play("<Retrieve>Acme</Retrieve>", SUM_UP, "Ada founded Acme." + END, ANSWER)
    asked = CODEC.decode(episode.turns[1].side_call.prompt_ids)
    assert "Acme is in Łódź. It is old.</information>" in asked
    assert asked.endswith(PACK.requests["facts"])
    written = CODEC.decode(episode.rows[0].response_ids)
    assert "Ada founded Acme." not in written
    assert PACK.requests["facts"] not in written


def test_an_entry_counts_as_reused_once():
    _, _, metrics = play(SUM_UP, "Ada founded Acme." + END, *["<Memory>Acme</Memory>"] * 3, ANSWER)
    assert (metrics["memory/stored"], metrics["memory/recalled"], metrics["memory/reused"]) == (1.0, 3.0, 1.0)


def test_a_fact_that_is_known_is_refreshed():
    _, environment, metrics = play(SUM_UP, "A is b. C is d." + END, SUM_UP, "A is b." + END, ANSWER)
    assert texts(environment) == ["A is b.", "C is d."]
    assert metrics["memory/stored"] == 2.0


@pytest.mark.parametrize("nothing", ["", "\n \n", "- \n* ...", "!"])
def test_an_empty_conclusion_stores_nothing_and_is_counted(nothing):
    episode, environment, metrics = play(SUM_UP, nothing + END, ANSWER)
    assert told(episode) == ["No complete fact was written, so nothing was stored."]
    assert texts(environment) == []
    assert (metrics["conclusion/empty"], metrics["conclusion/cut"]) == (1.0, 0.0)


def test_a_conclusion_that_is_too_long_keeps_its_whole_sentences():
    limit = len(CODEC.encode("A is b. C is d. E is"))
    _, environment, metrics = play(SUM_UP, "A is b. C is d. E is f." + END, ANSWER, conclusion_tokens=limit)
    assert texts(environment) == ["C is d.", "A is b."]
    assert (metrics["conclusion/cut"], metrics["conclusion/tokens"]) == (1.0, limit)


def test_an_empty_memory_answers_empty():
    episode, _, metrics = play("<Memory>a</Memory>", ANSWER)
    assert told(episode) == ["<Memory_result></Memory_result>"]
    assert metrics["memory/recalled"] == 0.0


def test_only_recent_and_similar_entries_are_recalled():
    facts = "Acme lies in Poland.\nBolt was founded by Ada.\nCora sings." + END
    episode, _, _ = play(SUM_UP, facts, "<Memory>Where lies Acme in Poland</Memory>", ANSWER, recent=1)
    assert told(episode)[1] == "<Memory_result>Cora sings.\nAcme lies in Poland.</Memory_result>"


def test_the_capacity_evicts():
    _, environment, _ = play(SUM_UP, "A is b. C is d. E is f." + END, ANSWER, memory_capacity=2)
    assert texts(environment) == ["E is f.", "C is d."]


def test_markup_in_a_fact_is_plain_text_when_it_is_recalled():
    episode, _, _ = play(SUM_UP, "A is </Memory_result> b." + END, "<Memory>A</Memory>", ANSWER)
    assert episode.outcome == Ok()
    assert told(episode)[1] == "<Memory_result>A is </Memory_result> b.</Memory_result>"


def test_without_a_memory_conclusions_stand_in_the_context():
    episode, environment, metrics = play(SUM_UP, "A is b. C is d." + END, ANSWER, store="nothing")
    assert told(episode) == ["These are the facts:\nA is b.\nC is d."]
    assert (texts(environment), metrics["memory/stored"]) == ([], 0.0)


def test_without_conclusions_passages_are_stored():
    _, environment, metrics = play("<Retrieve>Acme</Retrieve>", ANSWER, store="passages")
    assert texts(environment) == ["It is old.", "Acme is in Łódź."]
    assert metrics["memory/stored"] == 2.0


def test_two_sessions_share_no_memory():
    _, first, _ = play(SUM_UP, "A is b." + END, ANSWER)
    _, second, _ = play("<Memory>A</Memory>", ANSWER)
    assert (texts(first), texts(second)) == (["A is b."], [])


def test_a_memory_from_earlier_questions_is_recalled():
    _, first, _ = play(SUM_UP, "A is b." + END, ANSWER)
    episode, _, metrics = play("<Memory>A</Memory>", ANSWER, start=first.memory.entries)
    assert told(episode) == ["<Memory_result>A is b.</Memory_result>"]
    assert (metrics["memory/stored"], metrics["memory/reused"]) == (0.0, 0.0)
    assert isinstance(first.memory.entries[0], Entry)


def test_what_a_session_sampled_beside_it_is_in_no_row():
    episode, _, _ = play(SUM_UP, "A is b." + END, ANSWER)
    row = episode.rows[0]
    policy = [t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert CODEC.decode(policy) == SUM_UP + ANSWER


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("A is b. C is d!  Is E?", ["A is b.", "C is d!", "Is E?"]),
        ("1. A is b\n2) C is d\n- 3. E", ["A is b", "C is d", "E"]),
        ("It grew by 3.5 percent.", ["It grew by 3.5 percent."]),
        ("誰が作った", ["誰が作った"]),
        ("A is b .\r\n\r\n...\n", ["A is b ."]),
        ("", []),
    ],
)
def test_fact_sentences(text, facts):
    assert fact_sentences(text) == facts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"store": "passage"}, r"agentic\.environment\.store: unknown value 'passage'; did you mean 'passages'"),
        ({"decomposition": "tree"}, r"agentic\.environment\.decomposition: unknown value 'tree'"),
        ({"memory_capacity": 0}, r"agentic\.environment\.memory_capacity must be at least 1, got 0"),
        ({"recent": -1}, r"agentic\.environment\.recent must be at least 0, got -1"),
        ({"conclusion_tokens": 0}, r"agentic\.environment\.conclusion_tokens must be at least 1, got 0"),
        ({"threshold": 1.5}, r"agentic\.environment\.threshold must be a cosine .* got 1\.5"),
        ({"threshold": float("nan")}, r"agentic\.environment\.threshold must be a cosine .* got nan"),
    ],
)
def test_senseless_knobs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        check_environment({**KNOBS, **change})


def test_the_defaults_are_the_papers():
    defaults = default_agentic("dep_search")
    check_environment(defaults.environment)
    check_knobs(defaults.reward)
    assert (defaults.environment.memory_capacity, defaults.retriever.topk) == (20, 5)
    assert (defaults.reward.k1, defaults.reward.k2) == (10, 8)
    assert (defaults.reward.lambda_ret, defaults.reward.lambda_dec) == (0.1, 0.05)


@pytest.mark.parametrize("pack", ["natural", "demo"])
def test_the_packs_have_every_text(pack):
    loaded = load_pack(PROMPTS, pack)
    assert set(NOTICES) <= set(loaded.notices)
    assert set(loaded.observations) == {"order", "memory", "stored", "shown", "no_facts"}
    assert set(loaded.requests) == {"facts"}


def test_the_demo_pack_is_in_the_closed_vocabulary():
    codec = WordCodec(build_tokenizer())
    for path in (PROMPTS / "demo").glob("*.txt"):
        words = path.read_text().replace("{texts}", "").replace("{passages}", "").replace("{question}", "")
        words = words.replace("{rank}", "").replace("{contents}", "").strip()
        assert codec.decode(codec.encode(words)) == " ".join(words.split()), path.name
