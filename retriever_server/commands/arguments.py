"""Kinds of command-line values that several commands take."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Return `text` as a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def at_least_zero(text: str) -> float:
    """Return `text` as a number of at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def positive_number(text: str) -> float:
    """Return `text` as a number above 0."""
    value = at_least_zero(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is not above 0")
    return value
