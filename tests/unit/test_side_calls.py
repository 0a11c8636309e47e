"""Actions that need a generation beside the session, and observations with templates of their own."""

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from small_tokenizers import byte_level_tokenizer

from verl_agentic.bridge.agent_loop import Generation
from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.output import row_outputs
from verl_agentic.bridge.prompts import PromptPack, load_pack
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import Completion, Finish, Generate, Observe, Tools, no_vectors
from verl_agentic.core.generation import Sample
from verl_agentic.core.grammar import ActionTag, Grammar
from verl_agentic.core.method import Score
from verl_agentic.core.outcomes import InfraFaultError, Ok
from verl_agentic.core.rewards import outcome_rewards
from verl_agentic.core.trajectory import check_episode
from verl_agentic.methods.search_r1 import METHOD

CODEC = TokenizerCodec(byte_level_tokenizer("<note> a </note> <answer> b </answer> facts"))
EOS = CODEC.encode("<|im_end|>")[0]
GRAMMAR = Grammar(actions=(ActionTag("note", may_be_empty=True), ActionTag("answer", terminal=True)))
PACK = PromptPack(
    user="{question}",
    passage="{contents}",
    observation="[{passages}]",
    correction="wrong",
    last_turn=" last",
    observations={"noted": " (noted {texts}) ", "done": " (done) "},
    requests={"facts": "\nfacts:"},
)
WIDE = Budget(9, 1, turn_tokens=60, observation_tokens=60, prompt_tokens=400, response_tokens=400)


class Notes:
    """Writes down what the policy says when it is asked for facts."""

    def __init__(self, max_tokens=20):
        self.max_tokens, self.completions = max_tokens, []

    async def apply(self, action):
        return Finish(action.body) if action.tag.terminal else Generate("facts", self.max_tokens, self._write)

    async def _write(self, completion):
        self.completions.append(completion)
        return Observe((completion.text,), template="noted", figures=(("tokens", float(completion.tokens)),))


def run(sampler, notes, budget=WIDE, pack=PACK):
    return asyncio.run(TurnEngine(CODEC, GRAMMAR, pack, budget).run("Who?", sampler, notes))


def test_the_call_is_no_part_of_the_row_and_the_context_stays():
    sampler, notes = ScriptedSampler(["<note></note>", "a b<|im_end|>", "<answer>c</answer>"], CODEC), Notes()
    episode = run(sampler, notes)
    assert episode.outcome == Ok()
    row = episode.rows[0]
    assert CODEC.decode(row.response_ids) == "<note></note> (noted a b) <answer>c</answer>"
    assert (notes.completions[0].text, notes.completions[0].cut) == ("a b", False)
    prompt, written = episode.turns[0].side_call.prompt_ids, episode.turns[0].side_call.response_ids
    assert CODEC.decode(prompt).endswith("<note></note>\nfacts:")
    assert CODEC.decode(written) == "a b<|im_end|>"
    assert notes.completions[0].tokens == len(written)
    assert list(prompt) == sampler.contexts[1]
    policy = [t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert CODEC.decode(policy) == "<note></note><answer>c</answer>"


def test_the_call_asks_for_its_own_limit_and_stops_at_the_end_of_turn_only():
    sampler = ScriptedSampler(["<note></note>", "a<|im_end|>", "<answer>c</answer>"], CODEC)
    run(sampler, Notes(max_tokens=7))
    assert sampler.params[1] == {
        "stop_token_ids": sorted(CODEC.eos_ids),
        "stop": [],
        "include_stop_str_in_output": True,
        "max_tokens": 7,
    }


def test_token_truth_holds_with_the_call_in_what_was_sampled():
    sampler = ScriptedSampler(["<note></note>", "a b<|im_end|>", "<answer>c</answer>"], CODEC)
    episode = run(sampler, Notes())
    rewards = outcome_rewards(episode, 1.0)
    check_episode(episode, rewards, sampler.sampled)
    (output,) = row_outputs(episode, Score(rewards, {"acc": 1.0}), {}, {}, {})
    called = len(episode.turns[0].side_call.response_ids)
    assert [dropped for _, dropped in output.extra_fields["turn_lengths"]] == [called, 0]
    assert episode.dropped_tokens == 0


def test_the_call_is_a_row_for_supervised_training():
    episode = run(ScriptedSampler(["<note></note>", "a b<|im_end|>", "<answer>c</answer>"], CODEC), Notes())
    (row,) = episode.side_rows
    assert CODEC.decode(row.prompt_ids).endswith("<note></note>\nfacts:")
    assert CODEC.decode(row.response_ids) == "a b<|im_end|>"
    assert set(row.response_mask) == {1}
    assert len(episode.rows) == 1


def test_a_cut_call_says_so():
    notes = Notes(max_tokens=3)
    run(ScriptedSampler(["<note></note>", "a b c d e f g<|im_end|>", "<answer>c</answer>"], CODEC), notes)
    assert (notes.completions[0].tokens, notes.completions[0].cut) == (3, True)


def test_a_call_without_room_is_not_made():
    sampler, notes = ScriptedSampler(["<note></note>", *["<answer>c</answer>"] * 4], CODEC), Notes()
    prompt = len(CODEC.chat([{"role": "user", "content": "Who?"}]))
    pack = replace(PACK, requests={"facts": "facts of all that was said before"})
    note, request = (len(CODEC.encode(text)) for text in ("<note></note>", pack.requests["facts"]))
    budget = Budget(9, 1, note, observation_tokens=1, prompt_tokens=prompt, response_tokens=note + request)
    episode = run(sampler, notes, budget, pack)
    assert notes.completions == [Completion("", tokens=0, cut=True)]
    assert episode.turns[0].side_call.response_ids == ()
    assert len(sampler.contexts) == len(episode.turns)


@pytest.mark.parametrize(
    ("part", "message"),
    [(Sample([5], None, "abort"), "a generation request was aborted"), (Sample([], None, "stop"), "returned no token")],
)
def test_a_call_that_fails_is_a_fault_of_the_rollout(part, message):
    script = ScriptedSampler(["<note></note>"], CODEC)

    async def sample(context, params):
        return part if script.contexts else await script(context, params)

    with pytest.raises(InfraFaultError, match=message):
        run(sample, Notes())


def test_a_call_that_the_rollout_never_answers_is_its_fault():
    """verl's client raises where its server does not answer in time."""
    script = ScriptedSampler(["<note></note>"], CODEC)

    class Server:
        async def generate(self, request_id, prompt_ids, sampling_params):
            if script.contexts:
                raise TimeoutError("no answer in 600 s")
            part = await script(prompt_ids, sampling_params)
            return SimpleNamespace(
                token_ids=part.token_ids, log_probs=part.log_probs, stop_reason="completed", extra_fields={}
            )

    with pytest.raises(InfraFaultError, match="TimeoutError: no answer in 600 s") as fault:
        run(Generation(Server(), {}, lambda call: call), Notes())
    assert fault.value.outcome.boundary == "rollout"


def test_an_empty_text_is_an_end_of_turn_alone():
    notes = Notes()
    run(ScriptedSampler(["<note></note>", "<|im_end|>", "<answer>c</answer>"], CODEC), notes)
    assert notes.completions == [Completion("", tokens=1, cut=False)]


def test_a_template_may_have_no_place_for_texts():
    class Silent(Notes):
        async def _write(self, completion):
            return Observe((), template="done")

    episode = run(ScriptedSampler(["<note></note>", "a<|im_end|>", "<answer>c</answer>"], CODEC), Silent())
    assert CODEC.decode(episode.rows[0].response_ids) == "<note></note> (done) <answer>c</answer>"


def test_only_retrievals_bring_passages():
    episode = run(ScriptedSampler(["<note></note>", "a<|im_end|>", "<answer>c</answer>"], CODEC), Notes())
    assert episode.passages == ()
    assert episode.actions == {"note": 1}


def test_a_pack_reads_its_files_by_name(tmp_path):
    for name in ("user", "passage", "correction", "last_turn"):
        (tmp_path / f"{name}.txt").write_text("{question}" if name == "user" else name)
    (tmp_path / "observation.txt").write_text("<{passages}>\n")
    (tmp_path / "observation.memory.txt").write_text("<m>{texts}</m>\n")
    (tmp_path / "request.facts.txt").write_text("facts:\n")
    pack = load_pack(tmp_path, str(tmp_path))
    assert pack.observation_parts() == ("<", ">")
    assert pack.observation_parts("memory") == ("<m>", "</m>")
    assert pack.requests == {"facts": "facts:"}
    (tmp_path / "observation.memory.txt").write_text("{texts}{texts}")
    with pytest.raises(ValueError, match=r"observation\.memory\.txt: the placeholder \{texts\} may occur once at most"):
        load_pack(tmp_path, str(tmp_path))


def test_a_method_without_vectors_that_asks_for_some_is_told():
    tools = Tools(search=None, render=partial(render_passages, PACK))
    assert tools.embed is no_vectors
    assert tools.knobs == {}
    assert METHOD.check_environment({}) is None
    with pytest.raises(InfraFaultError, match="nothing here turns texts into vectors"):
        asyncio.run(tools.embed(["a"], "query"))
