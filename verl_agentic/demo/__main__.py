"""Command line of the demo: ``python -m verl_agentic.demo run|prepare|cold-start|evaluate``."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from retriever_server.errors import RetrieverServerError
from verl_agentic.data.rows import read_rows
from verl_agentic.demo.cold_start import ColdStartConfig, train_cold_start
from verl_agentic.demo.evaluate import asked_from_rows, evaluate
from verl_agentic.demo.prepare import PrepareConfig, prepare
from verl_agentic.demo.run import RECIPE, RunConfig
from verl_agentic.demo.run import run as run_demo
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.splits import SplitSizes
from verl_agentic.demo.world import WorldSizes


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 on success, 2 with one sentence on stderr when an option, a file or a part does not fit."""
    options = _parser().parse_args(arguments)
    line = partial(print, flush=True)
    try:
        options.run(options, line)
    except (ValueError, RuntimeError, OSError, RetrieverServerError) as error:
        print(f"verl_agentic.demo: {_sentence(error)}", file=sys.stderr)
        return 2
    return 0


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}; check the path and its permissions."
    return " ".join(str(error).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verl_agentic.demo", description=__doc__)
    commands = parser.add_subparsers(required=True)
    whole = commands.add_parser("run", help="everything, reinforcement learning by verl's own trainer included")
    _add_preparation(whole)
    whole.add_argument("--recipe", default=RECIPE, help=f"a recipe for the CPU; {RECIPE}")
    whole.add_argument("--steps", type=int, default=30, help="RL steps of 16 prompts x 8 rollouts")
    whole.add_argument("--rl-seed", type=int, default=1, help="seed of the data order and of the rollouts")
    whole.add_argument("--started", type=float, default=time.time(), help="start of the clock, seconds since the epoch")
    whole.add_argument("overrides", nargs="*", help="further Hydra overrides for the trainer")
    whole.set_defaults(run=_run, method=PrepareConfig.method, actions_off=())  # the recipe names the cold start
    files = commands.add_parser(
        "prepare", help="make world, corpus, questions and cold start; unchanged parts are kept"
    )
    _add_preparation(files)
    files.add_argument("--method", default=PrepareConfig.method)
    _add_actions_off(files)
    files.set_defaults(run=lambda options, line: prepare(_preparation(options), line))
    start = commands.add_parser("cold-start", help="train the cold start of a method into a folder")
    start.add_argument("--out", type=Path, required=True)
    start.add_argument("--method", default="search_r1")
    _add_actions_off(start)
    start.add_argument("--seed", type=int, default=ColdStartConfig.seed)
    start.add_argument("--steps", type=int, default=ColdStartConfig.steps)
    start.add_argument("--batch", type=int, default=ColdStartConfig.batch, help="sessions a step")
    start.set_defaults(run=_cold_start)
    score = commands.add_parser(
        "evaluate", help="exact match, F1, format and searches of a checkpoint, without a trainer"
    )
    score.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face folder of the policy")
    score.add_argument("--data", type=Path, default=Path("runs/demo"), help="folder that prepare wrote")
    score.add_argument("--splits", nargs="+", default=["test", "test_3hop", "test_4hop"])
    score.add_argument("--method", default="search_r1")
    _add_actions_off(score)
    score.add_argument("--temperature", type=float, default=0.0)
    score.add_argument("--seed", type=int, default=0)
    score.add_argument(
        "--environment", action="append", default=[], metavar="KEY=VALUE", help="a knob of agentic.environment"
    )
    score.add_argument(
        "--memory",
        type=Path,
        help="file with the memory that is carried from question to question; it is made where there is none",
    )
    score.set_defaults(run=_evaluate)
    return parser


def _add_actions_off(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--actions-off", action="append", default=[], help="an action that the policy lacks; may be repeated"
    )


def _add_preparation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder to write to")
    parser.add_argument("--seed", type=int, default=0, help="seed of the world")
    parser.add_argument("--cold-start", choices=("build", "packaged"), default="build")
    parser.add_argument("--cold-start-steps", type=int, default=ColdStartConfig.steps)
    _add_sizes(parser, WorldSizes)
    _add_sizes(parser, SplitSizes)


def _add_sizes(parser: argparse.ArgumentParser, sizes: type) -> None:
    for item in fields(sizes):
        kind = type(item.default)
        parser.add_argument(f"--{item.name.replace('_', '-')}", type=kind, default=item.default, help=f"{item.default}")


def _sizes(options: argparse.Namespace, sizes: type) -> Any:
    return sizes(**{item.name: getattr(options, item.name) for item in fields(sizes)})


def _preparation(options: argparse.Namespace) -> PrepareConfig:
    return PrepareConfig(
        out=options.out,
        method=options.method,
        actions_off=tuple(options.actions_off),
        seed=options.seed,
        world=_sizes(options, WorldSizes),
        splits=_sizes(options, SplitSizes),
        cold_start=options.cold_start,
        cold_start_steps=options.cold_start_steps,
    )


def _run(options: argparse.Namespace, line: Any) -> None:
    overrides = tuple(options.overrides)
    told = (_preparation(options), options.steps, options.rl_seed, options.started, overrides, options.recipe)
    run_demo(RunConfig(*told), line)


def _cold_start(options: argparse.Namespace, line: Any) -> None:
    off = tuple(options.actions_off)
    told = {"method": options.method, "seed": options.seed, "steps": options.steps, "batch": options.batch}
    config = ColdStartConfig(**told, actions_off=off)
    train_cold_start(config, options.out, line)


def _evaluate(options: argparse.Namespace, line: Any) -> None:
    rows = [row for split in options.splits for row in read_rows(options.data / f"{split}.parquet")]
    search = CorpusSearch.from_file(options.data / "corpus.jsonl")
    asked = asked_from_rows(rows)
    told = (options.method, options.temperature, options.seed, options.actions_off)
    environment = OmegaConf.to_container(OmegaConf.from_dotlist(options.environment))
    found = evaluate(options.checkpoint, asked, search, *told, environment, options.memory)
    line(f"{'kind':12s} {'count':>6s} {'EM':>6s} {'F1':>6s} {'format':>6s} {'searches':>8s}")
    for kind, f in found.items():
        line(f"{kind:12s} {f.count:6d} {f.em:6.3f} {f.f1:6.3f} {f.format:6.3f} {f.searches:8.2f}")


if __name__ == "__main__":
    sys.exit(main())
