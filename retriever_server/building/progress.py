"""Progress of a long build on standard error: how far, how fast, how long still."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from retriever_server.units import duration

INTERVAL_S = 5.0


def say(text: str) -> None:
    """Print one line on standard error."""
    print(f"retriever build: {text}", file=sys.stderr, flush=True)


class Progress:
    """Lines about one step, at most one each INTERVAL_S seconds and one at its end."""

    def __init__(self, step: str, total: int, unit: str, line: Callable[[str], None] = say) -> None:
        self._step, self._total, self._unit, self._line = step, total, unit, line
        self._began = self._told = time.monotonic()

    def __call__(self, done: int, made: int | None = None) -> None:
        """Tell that `done` of the total are there, of which `made` (default: all) since this step began."""
        now = time.monotonic()
        if done < self._total and now - self._told < INTERVAL_S:
            return
        self._told = now
        made = done if made is None else made
        rate = made / max(now - self._began, 1e-9)
        text = f"{self._step} {done:,} of {self._total:,} {self._unit}"
        if made:
            text += f", {rate:,.0f} {self._unit}/s"
        if made and done < self._total:
            text += f", {duration((self._total - done) / rate)} to go"
        self._line(text)
