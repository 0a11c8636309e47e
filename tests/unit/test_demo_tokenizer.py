import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from verl_agentic.bridge.codec import TokenizerCodec, check_append_only
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.policy import PolicyShape, build_policy, parameter_count
from verl_agentic.demo.questions import KINDS, draw_question
from verl_agentic.demo.tokenizer import build_tokenizer, check_round_trip, save_tokenizer, vocabulary
from verl_agentic.demo.world import generate_world

TOKENIZER = build_tokenizer()


def test_every_word_is_one_token_with_its_own_id():
    words = vocabulary()
    assert len(words) == len(set(words)) == len(TOKENIZER)
    assert all(TOKENIZER.convert_tokens_to_ids(word) == number for number, word in enumerate(words))


@pytest.mark.parametrize(
    "tag",
    "<think> </search> <information> <plan> <reasoning> <backtrack> <summary> </conclusion> <Decompose> <Retrieve> "
    "<Memory> </Memory_result> <Conclusion> <q1> </q5> <a1> <t3> <predicted_answer> <evidence> <Update> <Add> "
    "<end>".split(),
)
def test_tags_of_all_methods_are_single_tokens_even_without_spaces(tag):
    assert len(TOKENIZER.encode(tag)) == 1
    assert TOKENIZER.decode(TOKENIZER.encode(f"find{tag}born")) == f"find {tag} born"


@settings(max_examples=10)
@given(st.integers(min_value=0, max_value=2**40))
def test_every_passage_question_and_step_round_trips(seed):
    world, rng = generate_world(seed), random.Random(seed)
    questions = [draw_question(world, kind, rng) for kind in KINDS for _ in range(20)]
    steps = [step.text for question in questions for step in question.steps]
    check_round_trip(TOKENIZER, [p.contents for p in world.passages] + [q.text for q in questions] + steps)


def test_unknown_word_is_named():
    with pytest.raises(ValueError, match=r"'Where was Paris'.*'Where was <unk>'"):
        check_round_trip(TOKENIZER, ["Where was Paris"])


def test_newline_is_one_token_and_comes_back():
    ids = TOKENIZER.encode("1. find \n 2. find")
    assert len(ids) == 5
    assert TOKENIZER.decode(ids) == "1. find \n 2. find"


def test_chat_template_only_appends():
    check_append_only(TokenizerCodec(TOKENIZER))
    text = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Where"}], add_generation_prompt=True, tokenize=False
    )
    assert text.split() == ["<|im_start|>", "user", "Where", "<|im_end|>", "<|im_start|>", "assistant"]


def test_template_that_changes_earlier_text_is_refused():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages | length }} {% for m in messages %}{{ m['content'] }} {% endfor %}"
    with pytest.raises(ValueError, match="not append-only"):
        check_append_only(TokenizerCodec(tokenizer))


def test_saved_tokenizer_loads_beside_the_policy_with_the_same_ids(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_policy(save_tokenizer(tmp_path)).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == TOKENIZER.get_vocab()
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<pad>")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.model_type == "llama"
    assert 450_000 < parameter_count(model) < 600_000


def test_policy_weights_follow_the_seed_and_leave_the_global_generator_alone():
    import torch

    state = torch.get_rng_state()
    one, same, other = (build_policy(TOKENIZER, seed=seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_small_heads_are_refused():
    with pytest.raises(ValueError, match="at least 32"):
        PolicyShape(width=64, heads=4)


def test_word_codec_equals_the_tokenizer():
    fast, slow = WordCodec(TOKENIZER), TokenizerCodec(TOKENIZER)
    world = generate_world(5)
    texts = [p.contents for p in world.passages[:50]] + ["<think> find born </think> \n <end>", ""]
    assert [fast.encode(text) for text in texts] == [slow.encode(text) for text in texts]
    assert [fast.decode(fast.encode(text)) for text in texts] == texts
    messages = [{"role": "user", "content": "Where was #1 born ?"}]
    assert fast.chat(messages) == slow.chat(messages)
    longer = [*messages, {"role": "assistant", "content": "unknown"}]
    assert fast.chat(longer) == slow.chat(longer)
    with pytest.raises(KeyError):
        fast.encode("Paris")
