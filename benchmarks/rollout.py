"""Tokens a second of the embedded rollout engine against transformers, same model, same requests, one run.

    python benchmarks/rollout.py --output rollout.json
    python benchmarks/rollout.py --model path/to/model --requests 1 8 32 --continuous

Three ways to answer the same requests: the engine, plain batched `model.generate`, and with --continuous the continuous
batching of transformers itself. All draw at temperature 1 and never stop early, so each produces the same number of
tokens. The best of several repetitions counts: what else runs on the machine can only slow them down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

from verl_agentic.cpu.engine import Engine


def tiny_llama() -> Any:
    """A policy of the demo's size: 2 layers, width 128, 4 heads, tied embeddings, half a million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def best_rate(run: Callable[[], int], repetitions: int) -> float:
    """Tokens a second of the fastest repetition, after one that warms up."""
    run()
    rates = []
    for _ in range(repetitions):
        start = time.perf_counter()
        tokens = run()
        rates.append(tokens / (time.perf_counter() - start))
    return max(rates)


def with_engine(engine: Engine, prompts: list[list[int]], new_tokens: int) -> int:
    """Answer all requests with the engine; returns the number of new tokens."""
    params = {"temperature": 1.0, "max_tokens": new_tokens, "ignore_eos": True, "logprobs": True}

    async def together() -> int:
        outputs = await asyncio.gather(*[engine.generate(prompt, params) for prompt in prompts])
        return sum(len(output.token_ids) for output in outputs)

    return asyncio.run(together())


def with_generate(model: Any, prompts: list[list[int]], new_tokens: int) -> int:
    """Answer all requests with one call of `model.generate`; returns the number of new tokens."""
    ids = torch.tensor(prompts)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
    )
    return int(output[:, ids.shape[1] :].numel())


def with_continuous(model: Any, prompts: list[list[int]], new_tokens: int) -> int:
    """Answer all requests with transformers' continuous batching; returns the number of new tokens."""
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=new_tokens, eos_token_id=-1, pad_token_id=0)
    outputs = model.generate_batch(prompts, generation_config=config, progress_bar=False)
    return sum(len(output.generated_tokens) for output in outputs.values())


def measure(model: Any, options: argparse.Namespace) -> list[dict[str, float]]:
    """One row of tokens a second for every number of requests."""
    generator = torch.Generator().manual_seed(1)
    size = model.get_input_embeddings().weight.shape[0]
    engine = Engine(model, threads=options.threads)
    rows = []
    for count in options.requests:
        prompts = torch.randint(2, size, (count, options.prompt_tokens), generator=generator).tolist()
        ways = {
            "engine": lambda p=prompts: with_engine(engine, p, options.new_tokens),
            "generate": lambda p=prompts: with_generate(model, p, options.new_tokens),
        }
        if options.continuous:
            ways["continuous"] = lambda p=prompts: with_continuous(model, p, options.new_tokens)
        rows.append({"requests": count} | {name: best_rate(run, options.repetitions) for name, run in ways.items()})
    engine.close()
    return rows


def table(rows: list[dict[str, float]]) -> str:
    """The rows as aligned text, with the engine's gain over `generate`."""
    names = [name for name in rows[0] if name != "requests"]
    lines = ["requests " + " ".join(f"{name:>12}" for name in names) + "   engine/generate"]
    for row in rows:
        rates = " ".join(f"{row[name]:>12,.0f}" for name in names)
        lines.append(f"{row['requests']:>8} {rates}   {row['engine'] / row['generate']:>15.2f}")
    return "\n".join(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a model; a tiny llama is built where none is given")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--prompt-tokens", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--continuous", action="store_true", help="also transformers' own continuous batching")
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    torch.set_num_threads(chosen.threads)
    model = tiny_llama() if chosen.model is None else AutoModelForCausalLM.from_pretrained(chosen.model).eval()
    rows = measure(model, chosen)
    print(table(rows))
    if chosen.output is not None:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        about = {"parameters": model.num_parameters(), "machine": platform.machine(), "threads": chosen.threads}
        sizes = {"prompt_tokens": chosen.prompt_tokens, "new_tokens": chosen.new_tokens}
        figures = {"tokens_per_second": rows, **about, **sizes, **versions}
        chosen.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
