"""Command line of the warm start: ``verl-agentic sft``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from verl_agentic.warm_start.fine_tuning import DEVICES, FineTuning, fine_tune


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 on success, 2 with one sentence on stderr when an option, a file or a server does not fit."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"verl-agentic {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-agentic", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
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
