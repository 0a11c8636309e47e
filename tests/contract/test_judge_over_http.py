"""The judge against a chat endpoint of another make: `transformers serve` as a process of its own, with tiny models.

One model has random weights and so writes no verdict. The weights of the other are set by hand: what follows each word
is a table.
"""

import asyncio
import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import httpx
import pytest
from http_servers import await_that
from small_models import save_qwen3, torch, transformers

from verl_agentic.clients.chat import ChatClient
from verl_agentic.clients.errors import ChatError
from verl_agentic.clients.judge import JudgeClient
from verl_agentic.clients.judge_check import check_judge_endpoint
from verl_agentic.core.judging import Ask, Missing, Verdict

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("openai", "fastapi", "uvicorn"))),
    reason="transformers serve needs openai, fastapi, uvicorn",
)
WORDS = ["[PAD]", "[UNK]", "<end>", "user", "assistant", "judge", "this", "hard", "0.25", "good"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ' ' + message.content + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)
# the word after each: the reply to everything is 0.25
NEXT = {"assistant": "0.25", "0.25": "<end>"}


def save_tables(folder, followers):
    """A model without thoughts: its layers add nothing, so that a word's own vector decides the next word."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(len(WORDS), model.config.hidden_size))
        model.lm_head.weight.zero_()
        for word, follower in followers.items():
            model.lm_head.weight[WORDS.index(follower), WORDS.index(word)] = 1.0
    model.save_pretrained(folder)


def save_model(folder, followers=None):
    folder.mkdir()
    ends = {"eos_token_id": WORDS.index("<end>"), "pad_token_id": 0, "tie_word_embeddings": False}
    save_qwen3(folder, "Qwen3ForCausalLM", WORDS, seed=1, pad="[PAD]", **ends)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    if followers:
        save_tables(folder, followers)
    return str(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of the server, which loads whatever folder a request names as its model."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"], stdout=out, stderr=subprocess.STDOUT, env=environment
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await_server(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def await_server(url, process, log):
    def answers():
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/health").status_code == 200
        except httpx.TransportError:
            return False

    await_that(answers, f"the server answers; it said {log.read_text()[-2000:]}", within_s=180)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tables", NEXT)


@pytest.fixture(scope="module")
def chance(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "chance")


def judge(url, model, max_tokens=4):
    chat = ChatClient([f"{url}/v1"], model, timeout_s=120.0, deadline_s=240.0, retries=0, concurrency=4)
    return JudgeClient(
        chat,
        {"memory": "judge this {stack}"},
        cache_size=10,
        field_chars=40,
        temperature=0.0,
        top_p=1.0,
        max_tokens=max_tokens,
    )


def ask(asked, *stacks):
    async def once():
        try:
            return await asked([Ask("memory", 0, (("stack", stack),)) for stack in stacks])
        finally:
            await asked.aclose()

    return asyncio.run(once())


def test_a_model_that_writes_a_number_gives_verdicts(server, tables):
    asked = judge(server, tables)
    assert ask(asked, "good", "hard", "good") == [Verdict(0.25)] * 3
    assert (asked.counters.requests, asked.counters.shared) == (2, 1)
    assert ask(asked, "hard") == [Verdict(0.25)]
    assert asked.counters.cached == 1


def test_a_reply_that_is_cut_off_is_missing(server, tables):
    assert ask(judge(server, tables, max_tokens=1), "good") == [Missing("truncated")]


def test_a_model_of_random_weights_gives_no_verdict(server, chance):
    (judgement,) = ask(judge(server, chance), "good")
    assert isinstance(judgement, Missing)
    assert judgement.reason in ("truncated", "no_number", "several_numbers", "empty")


def test_the_check_before_a_run_passes_and_fails(server, tables, chance):
    asyncio.run(check_judge_endpoint(judge(server, tables)))
    with pytest.raises(ChatError, match=r"chat endpoint at http://127.0.0.1:\d+ gives "):
        asyncio.run(check_judge_endpoint(judge(server, chance)))


def test_a_model_that_the_server_does_not_have_is_missing(server):
    assert ask(judge(server, "nobody/no-such-model"), "good") == [Missing("status")]
