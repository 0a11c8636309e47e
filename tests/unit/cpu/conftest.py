"""Tiny real models and a byte-level tokenizer, shared by the tests of the embedded engine."""

import asyncio
import threading

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from verl_agentic.cpu.engine import Engine

VOCABULARY = 320
# A large initial spread: with the usual one an untrained model's logits nearly tie, and greedy would test rounding.
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def build(kind):
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).eval()
    return Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def llama():
    return build("llama")


@pytest.fixture
def qwen2():
    return build("qwen2")


@pytest.fixture(params=["llama", "qwen2"])
def model(request):
    return build(request.param)


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level BPE, in which a closing tag is often joined with what follows it."""
    text = [
        "<search> where is Oslo? </search>\n",
        "<answer> ... Oslo ... </answer>\n",
        "wait... what?",
        "größer 東京",
    ] * 20
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>"]
    raw.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>")


@pytest.fixture
def engines():
    """Builds engines and closes them after the test."""
    opened = []

    def start(model, tokenizer=None, **settings):
        opened.append(Engine(model, tokenizer, **settings))
        return opened[-1]

    yield start
    for engine in opened:
        engine.close()


class Hold:
    """Stops a model's forward passes from the n-th on until `release`."""

    def __init__(self, model, at):
        self._at, self.passes = at, 0
        self._reached, self._released = threading.Event(), threading.Event()
        model.register_forward_pre_hook(self._wait)

    def _wait(self, *_):
        self.passes += 1
        if self.passes >= self._at:
            self._reached.set()
            assert self._released.wait(60)

    async def reached(self):
        assert await asyncio.to_thread(self._reached.wait, 60)

    def release(self):
        self._released.set()


@pytest.fixture
def hold(engines):
    """Builds `Hold`s, which let go before the engines are closed."""
    made = []

    def start(model, at=3):
        made.append(Hold(model, at))
        return made[-1]

    yield start
    for held in made:
        held.release()


@pytest.fixture
def generate():
    """Runs requests together: `generate(engine, (prompt, params), ...)` -> outputs or exceptions, in order."""

    def run(engine, *requests):
        async def together():
            calls = [engine.generate(prompt, params) for prompt, params in requests]
            return await asyncio.gather(*calls, return_exceptions=True)

        return asyncio.run(together())

    return run
