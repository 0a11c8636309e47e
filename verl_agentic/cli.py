"""The console command `verl-agentic`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; the exit status is its own."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "demo":
        from verl_agentic.demo.__main__ import main as demo

        return demo(arguments[1:])
    if arguments and arguments[0] == "data":
        from verl_agentic.data.command import main as data

        return data(arguments[1:])
    if arguments and arguments[0] in ("traces", "sft"):
        from verl_agentic.warm_start.command import main as warm_start

        return warm_start(arguments)
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-agentic", description="Agentic search reinforcement learning on verl.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("demo", help="the embedded demo: run, prepare, cold-start, evaluate", add_help=False)
    commands.add_parser("data", help="data sets: filter", add_help=False)
    commands.add_parser("traces", help="write sessions of a teacher or of an oracle", add_help=False)
    commands.add_parser("sft", help="train a policy on traces", add_help=False)
    recipes = commands.add_parser("recipes", help="list the recipes for python -m verl.trainer.main_ppo +recipe=NAME")
    recipes.set_defaults(run=_recipes)
    return parser


def _recipes(_: argparse.Namespace) -> int:
    for name, summary in recipe_summaries():
        print(f"{name:20s} {summary}")
    return 0


def recipe_summaries() -> list[tuple[str, str]]:
    """Each shipped recipe with the first comment line of its file."""
    import recipes

    folder = Path(recipes.__path__[0]) / "recipe"
    return [(file.stem, _summary(file)) for file in sorted(folder.glob("*.yaml"))]


def _summary(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ") and "@package" not in line), "")


if __name__ == "__main__":
    sys.exit(main())
