"""Commands: build an index from a corpus, serve it over HTTP; measure the server; inspect the index."""

from __future__ import annotations

import argparse
import logging
import sys

from retriever_server.commands import bench, build, inspect, serve, verify
from retriever_server.errors import RetrieverServerError

COMMANDS = {
    "build": (build, "build an index folder from a corpus"),
    "serve": (serve, "serve an index folder over HTTP"),
    "bench": (bench, "measure how many queries a second a server answers"),
    "verify": (verify, "check that an index folder is whole and finds what it should"),
    "inspect": (inspect, "print what an index folder was built from"),
}


def run(argv: list[str] | None = None) -> int:
    """Run a command; returns its status, or 2 after printing one sentence about what was wrong."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    try:
        return int(options.command(options))
    except RetrieverServerError as error:
        print(f"retriever: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="retriever_server", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        module.add_arguments(command)
        command.set_defaults(command=module.run)
    return parser
