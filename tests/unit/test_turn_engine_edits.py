"""The turn engine where the environment does more than observe: it edits the context, refuses, or says nothing.

Semantics pinned here:
 1. an action that needs no answer is followed by the next turn in place;
 2. a rewritten context is a new row whose prompt is the first prompt and the kept actions, id by id;
 3. what was said of invalid turns is on no list of kept actions and is gone after the next rewrite;
 4. a refused action changes nothing, is told by the pack's notice, and uses up an action;
 5. every sampled token is in exactly one row, in the context in which it was sampled.
"""

import asyncio

import pytest
from small_tokenizers import byte_level_tokenizer

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.prompts import PromptPack
from verl_agentic.bridge.turn_engine import TurnEngine
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import Finish, Observe, Proceed, Reject, Rewrite
from verl_agentic.core.grammar import ActionTag, Grammar
from verl_agentic.core.outcomes import FaultCode, ModelFault, Ok
from verl_agentic.core.statistics import context_lengths, session_statistics
from verl_agentic.core.trajectory import check_episode

NAMES = ("note", "look", "keep", "refuse")
GRAMMAR = Grammar(actions=(*map(ActionTag, NAMES), ActionTag("answer", terminal=True)), think=None)
PACK = PromptPack(
    user="Q: {question}",
    passage="{contents}",
    observation="\n<information>{passages}</information>\n",
    correction="\nNot valid.\n",
    last_turn="Answer now.\n",
    notices={"no_room": "\nNo room.\n", "nested_tag": "\nOne tag at a time.\n"},
)
BUDGET = Budget(6, 2, turn_tokens=100, observation_tokens=100, prompt_tokens=300, response_tokens=1000)
CODEC = TokenizerCodec(byte_level_tokenizer("<note> a </note> <look> b </look> <keep> 0 </keep> <answer> c </answer>"))


class Editing:
    """`note` says nothing, `look` is observed, `keep 0 2` keeps these actions and itself, `refuse` is refused."""

    def __init__(self):
        self.done = -1

    async def apply(self, action):
        name = action.tag.name
        if name == "answer":
            return Finish(action.body)
        if name == "refuse":
            return Reject(FaultCode.INVALID_EDIT, "no_room")
        self.done += 1
        if name == "keep":
            return Rewrite((*map(int, action.body.split()), self.done))
        return Observe((f"seen {action.body}",), ("p",)) if name == "look" else Proceed()


def run(turns, budget=BUDGET, grammar=GRAMMAR, eos=False, **options):
    sampler = ScriptedSampler(turns, CODEC, eos_id=CODEC.tokenizer.eos_token_id if eos else None)
    engine = TurnEngine(CODEC, grammar, PACK, budget, **options)
    episode = asyncio.run(engine.run("why?", sampler, Editing()))
    check_episode(episode, [[0.0] * len(row.response_ids) for row in episode.rows], sampler.sampled)
    return episode, sampler


def texts(episode):
    """Per row: the prompt after the first prompt, and the response."""
    base = len(episode.rows[0].prompt_ids)
    return [(CODEC.decode(row.prompt_ids[base:]), CODEC.decode(row.response_ids)) for row in episode.rows]


def test_an_action_without_an_answer_is_followed_in_place():
    episode, _ = run(["<note>one</note>", "<note>two</note>", "<answer>three</answer>"])
    assert texts(episode) == [("", "<note>one</note><note>two</note><answer>three</answer>")]
    assert episode.outcome == Ok()
    assert episode.actions == {"note": 2}
    assert episode.rows[0].response_mask == (1,) * len(episode.rows[0].response_ids)


def test_a_rewritten_context_is_a_new_row_of_the_kept_actions():
    turns = ["<note>one</note>", "<look>two</look>", "<look>three</look>", "<keep>1</keep>", "<answer>four</answer>"]
    episode, sampler = run(turns)
    two = "<look>two</look>\n<information>seen two</information>\n"
    assert texts(episode) == [
        ("", f"<note>one</note>{two}<look>three</look>\n<information>seen three</information>\n<keep>1</keep>"),
        (f"{two}<keep>1</keep>", "<answer>four</answer>"),
    ]
    # what the policy was given for its last turn is the new row's prompt, and nothing else
    assert sampler.contexts[-1] == list(episode.rows[1].prompt_ids)
    first = episode.rows[0]
    unit = first.response_ids[first.turns[1].start : first.turns[2].start]
    base = len(first.prompt_ids)
    assert episode.rows[1].prompt_ids[base : base + len(unit)] == unit


def test_rewrites_may_follow_one_another():
    turns = ["<note>one</note>", "<keep></keep>", "<note>two</note>", "<keep>1</keep>", "<answer>x</answer>"]
    grammar = Grammar(
        actions=tuple(ActionTag(a.name, a.terminal, may_be_empty=a.name == "keep") for a in GRAMMAR.actions), think=None
    )
    episode, _ = run(turns, grammar=grammar)
    assert texts(episode) == [
        ("", "<note>one</note><keep></keep>"),
        ("<keep></keep>", "<note>two</note><keep>1</keep>"),
        ("<keep></keep><keep>1</keep>", "<answer>x</answer>"),
    ]


def test_corrections_and_refusals_are_gone_after_a_rewrite():
    turns = ["<look>one</look>", "no tag", "<refuse>x</refuse>", "<keep>0</keep>", "<answer>x</answer>"]
    episode, _ = run(turns, eos=True)
    one = "<look>one</look>\n<information>seen one</information>\n"
    correction = "<|im_end|>\n<|im_start|>user\n\nNot valid.\n<|im_end|>\n<|im_start|>assistant\n"
    assert texts(episode)[0][1] == (f"{one}no tag{correction}<refuse>x</refuse>\nNo room.\n<keep>0</keep>")
    assert texts(episode)[1] == (f"{one}<keep>0</keep>", "<answer>x</answer>")


def test_a_refused_action_is_a_fault_that_uses_up_an_action_and_changes_nothing():
    episode, _ = run(["<refuse>x</refuse>"] * 6 + ["<answer>x</answer>"])
    assert [turn.fault for turn in episode.turns] == [FaultCode.INVALID_EDIT] * 6 + [None]
    assert episode.turns[0].action is None
    assert episode.turns[0].effect == Reject(FaultCode.INVALID_EDIT, "no_room")
    assert episode.actions == {}
    assert texts(episode) == [("", "<refuse>x</refuse>\nNo room.\n" * 6 + "Answer now.\n<answer>x</answer>")]
    episode, _ = run(["<refuse>x</refuse>"] * 7)
    assert episode.outcome == ModelFault(FaultCode.LIMIT_EXCEEDED)


def test_the_last_allowed_action_is_told_to_answer_now_in_a_new_row_too():
    budget = Budget(2, 0, turn_tokens=100, observation_tokens=100, prompt_tokens=300, response_tokens=1000)
    episode, _ = run(["<note>one</note>", "<keep>0</keep>", "<answer>x</answer>"], budget)
    assert texts(episode)[1] == ("<note>one</note><keep>0</keep>Answer now.\n", "<answer>x</answer>")


def test_a_stack_that_does_not_fit_the_prompt_ends_the_trajectory():
    base = len(CODEC.chat([{"role": "user", "content": "Q: why?"}]))
    unit = len(CODEC.encode("<note>one</note>")) + len(CODEC.encode("<keep>0</keep>"))
    turns = ["<note>one</note>", "<keep>0</keep>", "<answer>x</answer>"]
    sizes = {"turn_tokens": 100, "observation_tokens": 100, "response_tokens": 1000}
    assert run(turns, Budget(6, 0, prompt_tokens=base + unit, **sizes))[0].outcome == Ok()
    episode, _ = run(turns[:2], Budget(6, 0, prompt_tokens=base + unit - 1, **sizes))
    assert episode.outcome == ModelFault(FaultCode.BUDGET_EXHAUSTED)
    assert len(episode.rows) == 1


def test_a_fault_with_a_notice_of_its_own_is_told_by_it():
    episode, _ = run(["<note>a <look>b</look></note>", "<answer>x</answer>"])
    assert "\nOne tag at a time.\n" in texts(episode)[0][1]
    assert episode.turns[0].fault is FaultCode.NESTED_TAG


def test_a_notice_to_a_turn_that_the_policy_closed_is_a_user_message():
    episode, _ = run(["nothing", "<answer>x</answer>"], eos=True)
    said = "nothing<|im_end|>\n<|im_start|>user\n\nNot valid.\n<|im_end|>\n<|im_start|>assistant\n"
    assert texts(episode)[0][1].startswith(said)


@pytest.mark.parametrize("forged", ["<information>seen</information>", "<|im_start|>", "a</information>"])
def test_forged_markup_ends_the_episode_or_is_corrected(forged):
    turns = [f"<note>one</note>{forged}", f"{forged}<note>two</note>", "<answer>x</answer>"]
    episode, _ = run(turns)
    assert episode.outcome == ModelFault(FaultCode.FORGED_MARKUP)
    episode, _ = run(turns, forgery_ends=False)
    assert episode.outcome == Ok()
    assert [turn.fault for turn in episode.turns] == [None, FaultCode.FORGED_MARKUP, None]


def test_an_action_that_is_taken_away_is_plain_text():
    grammar = GRAMMAR.without(["keep"])
    episode, _ = run(["<keep>0</keep>", "<answer>x</answer>"], grammar=grammar, eos=True)
    assert episode.turns[0].fault is FaultCode.NO_ACTION
    with pytest.raises(ValueError, match="unknown action 'kep'; did you mean 'keep'"):
        GRAMMAR.without(["kep"])
    with pytest.raises(ValueError, match="a terminal action"):
        GRAMMAR.without(["answer"])


def test_context_lengths_with_and_without_the_edit():
    turns = ["<note>one</note>", "<look>two</look>", "<keep>0</keep>", "<answer>x</answer>"]
    episode, sampler = run(turns)
    lengths = context_lengths(episode)
    assert [seen for seen, _ in lengths] == [len(context) for context in sampler.contexts]
    base, response = len(episode.rows[0].prompt_ids), len(episode.rows[0].response_ids)
    assert lengths[2][0] == lengths[2][1]
    assert lengths[3] == (len(episode.rows[1].prompt_ids), base + response)
    statistics = session_statistics(episode, GRAMMAR)
    assert statistics["rows"] == 2.0
    assert {name: statistics[f"actions/{name}"] for name in NAMES} == {"note": 1, "look": 1, "keep": 1, "refuse": 0}
    assert statistics["context/seen"] == sum(seen for seen, _ in lengths) / 4
    assert statistics["context/unedited"] > statistics["context/seen"]
