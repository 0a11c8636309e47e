"""dep_search over a real retriever server: passages by BM25, vectors by /embed, as in a rollout."""

import asyncio
import random
from functools import partial

import pytest

from verl_agentic.bridge.agent_loop import Retrieval
from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.settings import default_environment
from verl_agentic.bridge.turn_engine import render_passages
from verl_agentic.clients.retriever import RetrieverClient
from verl_agentic.core.answers import exact_match
from verl_agentic.core.environment import Tools
from verl_agentic.core.outcomes import InfraFaultError
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.oracles import load_oracle
from verl_agentic.demo.questions import draw_question
from verl_agentic.demo.search import embed
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import MethodRunner, scripted_sampler
from verl_agentic.demo.world import generate_world
from verl_agentic.methods.dep_search import METHOD

WORLD = generate_world(0)
CODEC = WordCodec(build_tokenizer())
PACK = load_pack(METHOD.prompts, "demo")
TEXTS = ["spouse of Ada", "Łódź", "Ada spouse"]


def environment(retrieval):
    knobs = default_environment("dep_search")
    return METHOD.environment(Tools(retrieval, partial(render_passages, PACK), retrieval.embed, knobs))


@pytest.mark.parametrize("kind", ["2hop", "4hop", "comparison"])
def test_the_oracle_is_right_and_recalls_what_it_concluded(kind, retriever_url):
    rng = random.Random(kind)
    engine = MethodRunner("dep_search", CODEC).engine

    async def play():
        retrieval = Retrieval(RetrieverClient(retriever_url, topk=2))
        question = draw_question(WORLD, kind, rng)
        oracle = load_oracle("dep_search").make_oracle(question, WORLD.look_up)
        return question, await engine.run(question.text, scripted_sampler(CODEC, oracle), environment(retrieval))

    question, episode = asyncio.run(play())
    assert exact_match(episode.prediction, question.answers) == 1.0
    assert len(episode.passages) == len(question.searches)
    recalled = next(turn.effect.texts for turn in episode.turns if turn.action.tag.name == "Memory")
    last = question.searches[-1]
    assert f"{last.entity} {last.keyword} {last.answer} ." in recalled


@pytest.mark.parametrize("kind", ["query", "passage"])
def test_the_vectors_inside_the_process_are_the_servers(kind, retriever_url):
    async def both():
        return await Retrieval(RetrieverClient(retriever_url)).embed(TEXTS, kind), await embed(TEXTS, kind)

    served, local = asyncio.run(both())
    assert served == [pytest.approx(vector, abs=1e-6) for vector in local]


def test_a_server_that_is_away_is_a_fault_of_the_retriever():
    retrieval = Retrieval(RetrieverClient("http://127.0.0.1:9", deadline_s=1.0, retries=0))
    with pytest.raises(InfraFaultError, match="retriever"):
        asyncio.run(retrieval.embed(TEXTS, "query"))
