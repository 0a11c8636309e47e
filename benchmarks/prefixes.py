"""What keeping the keys and values of earlier turns saves: sessions of several turns with and without, in one run.

128 questions of the demo are asked of the packaged cold start of dep_search, some eight turns a session, one after the
other: nothing kept, then as the embedded rollout does by default. Prints seconds, their ratio, and how many answers are
the same.
"""

from __future__ import annotations

import asyncio
import json
import time

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.core.generation import Sample
from verl_agentic.cpu.engine import Engine
from verl_agentic.demo.prepare import packaged_cold_start
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.splits import split_questions
from verl_agentic.demo.traces import MethodRunner
from verl_agentic.demo.world import generate_world

METHOD, QUESTIONS, KEPT = "dep_search", 128, (0, 65_536)


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = packaged_cold_start(METHOD)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    runner, world = MethodRunner(METHOD, TokenizerCodec(tokenizer)), generate_world(0)
    search, questions = CorpusSearch(world.passages), split_questions(world)["test"][:QUESTIONS]
    seconds, answers = [], []
    for kept in KEPT:
        engine = Engine(model, tokenizer, max_kept_tokens=kept)
        started = time.monotonic()
        answers.append(asyncio.run(_ask(engine, runner, search, questions)))
        seconds.append(time.monotonic() - started)
        engine.close()
    same = sum(a == b for a, b in zip(*answers, strict=True))
    found = {"seconds": [round(s, 2) for s in seconds], "ratio": round(seconds[0] / seconds[1], 2)}
    print(json.dumps({"sessions": QUESTIONS, **found, "same_answers": same}))


async def _ask(engine, runner, search, questions) -> list[str | None]:
    async def sample(prompt_ids, params):
        out = await engine.generate(prompt_ids, {**params, "temperature": 0.0})
        return Sample(out.token_ids, out.log_probs, out.finish_reason)

    runs = (runner.engine.run(question.text, sample, runner.environment(search)) for question in questions)
    return [episode.prediction for episode in await asyncio.gather(*runs)]


if __name__ == "__main__":
    main()
