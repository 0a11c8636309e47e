"""Traces of the demo's oracle: good sessions over fresh random worlds, in the recipe's prompts and budget."""

from __future__ import annotations

from pathlib import Path

from verl_agentic.demo.cold_start import kinds_of
from verl_agentic.demo.oracles import load_oracle
from verl_agentic.demo.traces import HabitMix, TraceSource
from verl_agentic.demo.world import WorldSizes
from verl_agentic.warm_start.collecting import Collection, Line, Standard
from verl_agentic.warm_start.workplace import Workplace

SESSIONS_PER_WORLD = 96
SOURCE = "oracle"
GOOD_ONLY: HabitMix = {}  # an oracle shows a kind of question that has no habits listed well


def collect_from_oracle(
    place: Workplace,
    recipe: str,
    out: Path,
    count: int,
    seed: int = 0,
    standard: Standard | None = None,
    line: Line = print,
) -> dict[str, int]:
    """Write `count` sessions of the method's oracle, less those that do not end well; returns the counts by reason.

    Raises:
        ValueError: the method has no oracle, or the record beside `out` is of other settings.
    """
    oracle = load_oracle(place.settings.method)
    source = TraceSource(place, oracle, kinds_of(place.settings.method), WorldSizes(), GOOD_ONLY)
    told = {**place.told, "recipe": recipe, "source": SOURCE, "seed": seed}
    collection = Collection(out, count, standard or Standard(), told, line)
    left = set(collection.left)
    for first in range(0, count, SESSIONS_PER_WORLD):
        numbers = range(first, min(first + SESSIONS_PER_WORLD, count))
        if left.isdisjoint(numbers):
            continue
        sessions = source.sessions(f"sft {seed} {first}", len(numbers))
        ended = [(n, episode, question.answers) for n, (question, episode) in zip(numbers, sessions, strict=True)]
        collection.add([session for session in ended if session[0] in left])
    return collection.write()
