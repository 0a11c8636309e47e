"""The entry point of the commands, which says so when a package they need is not installed."""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run a command (see retriever_server.commands); returns its status, 2 after one sentence about what was wrong."""
    try:
        from retriever_server.commands import run

        status = run(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # whoever read the output has seen enough; without this the flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        print(
            f"retriever: the package '{error.name}' is not installed; run `pip install 'verl-agentic[retriever]'`, "
            "and for transformer encoders `pip install torch transformers`.",
            file=sys.stderr,
        )
        return 2
