"""394 real multi-hop questions over 4,810 real passages: server process, HTTP, parser, masks and scoring end to end.

The policy is scripted: it searches the title of each gold passage and then gives the gold answer, so that everything
but the policy's skill is real.
"""

import asyncio
import gzip
import json
from functools import partial

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from retriever_server.process import start_server
from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.retriever import RetrieverClient
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import Tools
from verl_agentic.core.outcomes import Ok
from verl_agentic.core.trajectory import check_episode
from verl_agentic.methods.search_r1 import METHOD

KNOBS = {"metric": "em", "fault": 0.0, "forgery": -0.1}
BUDGET = Budget(
    max_actions=6, max_corrections=1, turn_tokens=400, observation_tokens=700, prompt_tokens=1500, response_tokens=9000
)


@pytest.fixture(scope="module")
def questions(shared_data):
    with gzip.open(shared_data / "multihop" / "questions.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def titles(shared_data):
    with gzip.open(shared_data / "multihop" / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        return {row["id"]: row["title"] for row in map(json.loads, file)}


@pytest.fixture(scope="module")
def server(shared_data, tmp_path_factory):
    from retriever_server.cli import main

    index = tmp_path_factory.mktemp("real") / "index"
    corpus = shared_data / "multihop" / "corpus.jsonl.gz"
    assert main(["build", "--corpus", str(corpus), "--encoder", "bm25", "--out", str(index)]) == 0
    with start_server(index) as running:
        yield running


@pytest.fixture(scope="module")
def codec():
    """A byte-level tokenizer of the kind that real models use."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, initial_alphabet=alphabet)
    bpe.train_from_iterator(["<search> who wrote the book </search> <answer> the author </answer>"] * 50, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{m['role']}}\n{{m['content']}}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return TokenizerCodec(tokenizer)


async def answer_all(questions, titles, url, codec):
    pack = load_pack(METHOD.prompts, "natural")
    engine, client = TurnEngine(codec, METHOD.grammar, pack, BUDGET), RetrieverClient([url], topk=3)

    async def search(query):
        return (await client.retrieve([query]))[0]

    async def one(item):
        searches = [f"<think>look up</think><search>{titles[i]}</search>" for i in item["gold_passage_ids"]]
        sampler = ScriptedSampler([*searches, f"<answer>{item['golden_answers'][0]}</answer>"], codec)
        episode = await engine.run(
            item["question"], sampler, METHOD.environment(Tools(search, partial(render_passages, pack)))
        )
        return episode, sampler

    done = await asyncio.gather(*map(one, questions))
    await client.aclose()
    return done


def test_the_oracle_answers_every_real_question(questions, titles, server, codec):
    done = asyncio.run(answer_all(questions, titles, server.url, codec))
    assert len(done) == 394
    scores = []
    for item, (episode, sampler) in zip(questions, done, strict=True):
        score = METHOD.score(episode, item["golden_answers"], KNOBS)
        check_episode(episode, score.rewards, sampler.sampled)
        assert episode.outcome == Ok()
        assert episode.actions == {"search": len(item["gold_passage_ids"])}
        text = codec.decode(list(episode.rows[0].response_ids))
        assert text.count("<information>") == len(item["gold_passage_ids"])
        scores.append(score.metrics["em"])
    assert sum(scores) / len(scores) == 1.0
    gold = [set(item["gold_passage_ids"]) for item in questions]
    found = [
        wanted & {i for ids in episode.passages for i in ids} for wanted, (episode, _) in zip(gold, done, strict=True)
    ]
    # a title finds its own passage among 4,810 more often than not; measured .96
    assert sum(map(len, found)) / sum(map(len, gold)) > 0.9
