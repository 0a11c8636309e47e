"""The turn engine by hand: a scripted model, two passages, and every token with its mask.

    python examples/01_turn_engine_by_hand.py

Nothing of verl, ray or a server is started: the engine that runs under verl's trainer is an ordinary coroutine.
"""

import asyncio
from functools import partial

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.clients.scripted import ScriptedSampler
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import Passage, Tools
from verl_agentic.core.trajectory import check_episode
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.world import WorldSizes, generate_world
from verl_agentic.methods import load_method


def main() -> None:
    world = generate_world(0, WorldSizes())
    person = world.passages[0]
    town = world.facts[person.title, "birthplace"]

    async def search(query: str) -> list[Passage]:
        """Stands for the retriever server."""
        return [Passage(person.id, person.contents)]

    method = load_method("search_r1")
    codec, pack = TokenizerCodec(build_tokenizer()), load_pack(method.prompts, "demo")
    budget = Budget(4, 1, turn_tokens=32, observation_tokens=48, prompt_tokens=64, response_tokens=256)
    model = ScriptedSampler(
        [f"<think> find born </think> <search> {person.title} born </search>", f"<answer> {town} </answer>"], codec
    )
    engine = TurnEngine(codec, method.grammar, pack, budget)
    environment = method.environment(Tools(search, partial(render_passages, pack)))
    episode = asyncio.run(engine.run(f"Where was {person.title} born ?", model, environment))

    score = method.score(episode, [town], {"metric": "em", "fault": 0.0, "forgery": -0.1})
    check_episode(episode, score.rewards, model.sampled)
    row = episode.rows[0]
    print("prompt:", codec.decode(list(row.prompt_ids)))
    print(f"{'token':>14s}  mask  reward")
    for token, mask, reward in zip(row.response_ids, row.response_mask, score.rewards[0], strict=True):
        print(f"{codec.decode([token]):>14s}  {mask:4d}  {reward or '':>6}")
    print("outcome:", episode.outcome.kind, "| prediction:", episode.prediction, "| metrics:", score.metrics)


if __name__ == "__main__":
    main()
