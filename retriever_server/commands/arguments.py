"""Kinds of command-line values that several commands take."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Return `text` as a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
