"""Command line of the warm start: ``verl-agentic traces|sft``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

from verl_agentic.demo.recipe import compose_recipe
from verl_agentic.warm_start.collecting import METRICS, Standard
from verl_agentic.warm_start.fine_tuning import DEVICES, FineTuning, fine_tune
from verl_agentic.warm_start.oracle_traces import collect_from_oracle
from verl_agentic.warm_start.teacher_traces import Teacher, collect_from_teacher
from verl_agentic.warm_start.workplace import make_workplace


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 on success, 2 with one sentence on stderr when an option, a file or a server does not fit."""
    options = build_parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"verl-agentic {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options of every command."""
    parser = argparse.ArgumentParser(prog="verl-agentic", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_traces(commands.add_parser("traces", help="write sessions of a teacher or of an oracle"))
    sft = commands.add_parser("sft", help="train a policy on traces")
    sft.add_argument("--traces", type=Path, required=True, help="file that `verl-agentic traces` wrote")
    sft.add_argument("--model", required=True, help="Hugging Face folder or name of the policy to start from")
    sft.add_argument("--out", type=Path, required=True, help="folder for the trained policy")
    sft.add_argument("--epochs", type=float, default=FineTuning.epochs, help=f"{FineTuning.epochs:g}")
    sft.add_argument(
        "--learning-rate", type=float, default=FineTuning.learning_rate, help=f"{FineTuning.learning_rate:g}"
    )
    sft.add_argument("--batch", type=int, default=FineTuning.batch, help=f"rows an optimizer step; {FineTuning.batch}")
    sft.add_argument("--micro-batch", type=int, help="rows at a time on the device; the batch")
    sft.add_argument("--max-length", type=int, help="leave longer rows out; none is")
    sft.add_argument("--seed", type=int, default=FineTuning.seed, help="seed of the order of rows; 0")
    sft.add_argument("--device", choices=DEVICES, default=FineTuning.device, help="auto takes a GPU where there is one")
    sft.set_defaults(run=_sft)
    return parser


def _add_traces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", required=True, help="the recipe whose method, prompts and budget are used")
    parser.add_argument("--out", type=Path, required=True, help="file for the traces")
    parser.add_argument("--source", choices=("oracle", "teacher"), required=True)
    parser.add_argument("--count", type=int, required=True, help="sessions that are run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the questions; 0")
    parser.add_argument("--tokenizer", help="folder or name of the student's tokenizer; the recipe's model")
    parser.add_argument("--metric", choices=tuple(METRICS), default=Standard.metric, help=Standard.metric)
    parser.add_argument(
        "--threshold", type=float, default=Standard.threshold, help="of the metric for a right answer; 1"
    )
    parser.add_argument(
        "--data", type=Path, action="append", help="parquet file of the teacher's questions; the recipe's"
    )
    parser.add_argument(
        "--teacher", action="append", default=[], metavar="URL", help="an OpenAI-compatible endpoint; may be repeated"
    )
    parser.add_argument("--teacher-model", default="", metavar="NAME", help="the model's name there")
    for name in ("temperature", "top_p", "concurrency", "timeout_s", "deadline_s", "retries", "api_key_variable"):
        default = getattr(Teacher, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{default}")
    parser.add_argument("overrides", nargs="*", help="further Hydra overrides for the recipe")
    parser.set_defaults(run=_traces)


def _traces(options: argparse.Namespace) -> None:
    config = compose_recipe(options.recipe, options.overrides)
    place = make_workplace(config, options.tokenizer)
    standard, line = Standard(options.metric, options.threshold), partial(print, flush=True)
    if options.source == "oracle":
        collect_from_oracle(place, options.recipe, options.out, options.count, options.seed, standard, line)
        return
    own = {field.name: getattr(options, field.name) for field in fields(Teacher) if hasattr(options, field.name)}
    teacher = Teacher(urls=tuple(options.teacher), model=options.teacher_model, **own)
    files = config.data.train_files
    data = options.data or [Path(file) for file in ([files] if isinstance(files, str) else files)]
    collect_from_teacher(place, options.recipe, data, options.out, options.count, teacher, options.seed, standard, line)


def _sft(options: argparse.Namespace) -> None:
    settings = FineTuning(
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        batch=options.batch,
        micro_batch=options.micro_batch,
        max_length=options.max_length,
        seed=options.seed,
        device=options.device,
    )
    fine_tune(options.traces, options.model, options.out, settings, partial(print, flush=True))
