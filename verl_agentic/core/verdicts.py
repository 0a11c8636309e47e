"""A judge's reply read as a verdict: a score in a JSON object, or a number on a line of its own."""

from __future__ import annotations

import json
import re
from typing import Any

from verl_agentic.core.judging import Judgement, Missing, Verdict

NO_NUMBER, OUT_OF_RANGE, SEVERAL_NUMBERS = "no_number", "out_of_range", "several_numbers"
THOUGHT, THOUGHT_END = "<think>", "</think>"
LONGEST = 20_000  # characters from the end that are read: the verdict stands there
# Whole numbers are read as floats too: Python refuses those of thousands of digits.
DECODER = json.JSONDecoder(parse_int=float)
LINE = re.compile(
    r"(?:[A-Za-z ]*score *[:=])?[ *`]*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)\.?", re.IGNORECASE
)


def parse_verdict(reply: str) -> Judgement:
    """The verdict of `reply`, which what a model thinks before it (`<think>...</think>`) is no part of.

    The last JSON object with the key `score` counts, wherever it stands; without one, the only line that holds a number
    and nothing else, or `score: ` and a number. A number in the midst of prose is none: it may count passages.

    Returns:
        A Verdict, or Missing with the reason `no_number` (none there, or the score is something else), `out_of_range`
        (not in [0, 1]) or `several_numbers` (several such lines).
    """
    said = _without_thought(reply)[-LONGEST:]
    scores = _scores(said)
    if scores:
        return _verdict(scores[-1])
    numbers = [found[1] for line in said.splitlines() if (found := LINE.fullmatch(line.strip(" \t`*")))]
    if len(numbers) > 1:
        return Missing(SEVERAL_NUMBERS)
    return _verdict(float(numbers[0])) if numbers else Missing(NO_NUMBER)


def _without_thought(reply: str) -> str:
    """What follows the last thought; nothing of a thought that never ends."""
    return reply.rpartition(THOUGHT_END)[2].partition(THOUGHT)[0]


def _scores(text: str) -> list[Any]:
    """The values of `score` in the JSON objects of `text`, in order; what stands inside such an object is detail."""
    scores, start = [], text.find("{")
    while start >= 0:
        found, end = _object(text, start)
        if "score" in found:
            scores.append(found["score"])
        start = text.find("{", end if "score" in found else start + 1)
    return scores


def _object(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The JSON object that begins at `start` and its end; an empty one where there is none."""
    try:
        return DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return {}, start


def _verdict(score: Any) -> Judgement:
    # a bool is an int to Python; NaN equals nothing, not even itself
    if isinstance(score, bool) or not isinstance(score, float) or score != score:
        return Missing(NO_NUMBER)
    return Verdict(score) if 0.0 <= score <= 1.0 else Missing(OUT_OF_RANGE)
