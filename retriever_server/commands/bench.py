"""`bench`: how many queries a second a server answers, and how late."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from retriever_server.canaries import first_words
from retriever_server.commands.arguments import positive, positive_number
from retriever_server.errors import RetrieverServerError
from retriever_server.load import LoadReport, run_load
from retriever_server.passages import PassageStore
from retriever_server.process import start_server

SAMPLE = 5000
HEADER = f"{'clients':>7} {'queries/s':>10} {'p50 ms':>9} {'p99 ms':>9} {'cached':>7} {'errors':>7} {'own CPU':>8}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench`."""
    parser.add_argument("--url", help="the server to measure; without it one is started for --index")
    parser.add_argument("--index", type=Path, help="an index folder, whose passages' first words are the queries")
    parser.add_argument("--queries", type=Path, help="a file of queries instead, one a line")
    parser.add_argument("--clients", type=positive, nargs="+", default=[1, 8, 64], help="how many ask at once")
    parser.add_argument("--seconds", type=positive_number, default=5.0, help="time for each number of clients")
    parser.add_argument("--topk", type=positive, default=3)
    parser.add_argument("--unrepeated", action="store_true", help="end with the queries instead of beginning again")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table; returns 0, or 1 when any answer was wrong or missing."""
    if not options.index and not (options.url and options.queries):
        raise RetrieverServerError("bench needs --index DIR, or --url URL with --queries FILE.")
    queries = _queries(options)
    stream = iter(queries) if options.unrepeated else itertools.cycle(queries)
    with ExitStack() as ending:
        url = options.url or ending.enter_context(start_server(options.index)).url
        print(HEADER, flush=True)
        reports = [_measure(url, stream, clients, options) for clients in options.clients]
    if options.json:
        options.json.write_text(json.dumps([report.to_dict() for report in reports], indent=2) + "\n")
    return int(any(report.errors for report in reports))


def _measure(url: str, stream: Iterator[str], clients: int, options: argparse.Namespace) -> LoadReport:
    report = run_load(url, stream, clients, topk=options.topk, seconds=options.seconds)
    print(
        f"{clients:>7} {report.rate:>10.1f} {report.percentile_ms(0.5):>9.1f} {report.percentile_ms(0.99):>9.1f} "
        f"{report.cache_hits:>7} {report.errors.total():>7} {report.cpu_share:>8.1%}",
        flush=True,
    )
    for kind, count in report.errors.most_common(5):
        print(f"        {count} x {kind}", flush=True)
    return report


def _queries(options: argparse.Namespace) -> list[str]:
    if options.queries:
        try:
            lines = options.queries.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise RetrieverServerError(f"The queries {options.queries} cannot be read ({error}).") from error
        queries = [line.strip() for line in lines if line.strip()]
    else:
        queries = _first_words(options.index)
    if not queries:
        raise RetrieverServerError(f"{options.queries or options.index} holds no queries.")
    return queries


def _first_words(folder: Path) -> list[str]:
    try:
        passages = PassageStore(folder)
    except (OSError, ValueError) as error:
        raise RetrieverServerError(f"{folder} holds no index whose passages can be read ({error}).") from error
    rows = random.Random(0).sample(range(len(passages)), min(SAMPLE, len(passages)))
    return [first_words(passages[row].contents) for row in rows]
