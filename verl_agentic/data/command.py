"""Command line of the data tools: ``verl-agentic data filter``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from verl_agentic.clients.chat import ChatError
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.data.closed_book import Attempts
from verl_agentic.data.filter import NONE, FilterSettings, Pace, filter_file


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 on success, 2 with one sentence on stderr when an option, a file or a server does not fit."""
    options = build_parser().parse_args(arguments)
    try:
        options.run(options)
    except (RetrieverError, ChatError) as error:
        print(f"verl-agentic data: {error}; the same command goes on where it stopped.", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"verl-agentic data: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options of every command."""
    parser = argparse.ArgumentParser(prog="verl-agentic data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("filter", help="drop items that need no retrieval or one trivial search")
    command.add_argument("--data", type=Path, required=True, help="parquet file of rows")
    command.add_argument("--out", type=Path, required=True, help="parquet file for the rows that are kept")
    command.add_argument("--retriever", nargs="+", default=[], metavar="URL", help="equal retriever servers")
    command.add_argument("--topk", type=int, default=3, help="passages asked for; 3")
    command.add_argument("--trivial-search", choices=("on", "off"), default="on", help="the rule of one search; on")
    command.add_argument("--closed-book", default=NONE, metavar="none|PATH|URL", help="a model")
    command.add_argument("--model", default="", metavar="NAME", help="its name where --closed-book is an endpoint")
    command.add_argument("--api-key-variable", default=Pace.api_key_variable, help=Pace.api_key_variable)
    command.add_argument("--attempts", type=int, default=4, help="closed-book attempts an item; 4")
    command.add_argument("--share", type=float, default=0.5, help="share of right attempts that drops an item; 0.5")
    command.add_argument("--temperature", type=float, default=0.7, help="of the closed-book attempts; 0.7")
    command.add_argument("--max-tokens", type=int, default=32, help="longest closed-book reply; 32")
    command.add_argument("--seed", type=int, default=0, help="seed of a local model's sampling")
    command.add_argument("--limit", type=int, help="only the first items of the file")
    command.add_argument("--batch", type=int, default=Pace.batch, help=f"items a request; {Pace.batch}")
    command.add_argument("--concurrency", type=int, default=Pace.concurrency, help="requests at a time; 4")
    command.set_defaults(run=_filter)
    return parser


def _filter(options: argparse.Namespace) -> None:
    settings = FilterSettings(
        retriever=tuple(options.retriever),
        topk=options.topk,
        trivial_search=options.trivial_search == "on",
        closed_book=options.closed_book,
        attempts=Attempts(options.attempts, options.temperature, options.max_tokens, options.seed),
        share=options.share,
        limit=options.limit,
        model=options.model,
    )
    pace = Pace(options.batch, options.concurrency, options.api_key_variable)
    line = partial(print, flush=True)
    report = filter_file(options.data, options.out, settings, pace, line)
    counts = report["counts"]
    line(f"{counts['kept']} of {report['rows']} rows kept in {options.out}; report: {options.out}.report.json")
