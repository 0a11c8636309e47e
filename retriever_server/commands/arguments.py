"""Kinds of command-line values that several commands take."""

from __future__ import annotations

import argparse

LARGEST = 1e9  # seconds, milliseconds or MiB; waits of more than 292 years are none of threading's


def positive(text: str) -> int:
    """Return `text` as a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def at_least_zero(text: str) -> float:
    """Return `text` as a number from 0 to LARGEST."""
    value = float(text)
    if not 0 <= value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {LARGEST:g}")
    return value


def positive_number(text: str) -> float:
    """Return `text` as a number above 0, at most LARGEST."""
    value = at_least_zero(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is not above 0")
    return value
