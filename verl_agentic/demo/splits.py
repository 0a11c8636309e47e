"""Train, validation and test questions of a world, with held-out combinations of start entity and relation path.

Combinations are held out, not single facts: most facts that a test question needs are asked for in training too, on
their own or within another path. A comparison carries its two candidates in the question, so a guess is right about
half of the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from verl_agentic.core.question import Question
from verl_agentic.demo.questions import (
    HEADLINE_MIX,
    SHARED,
    SHARED_PATHS,
    chain_questions,
    draw_comparison,
    shared_question,
)
from verl_agentic.demo.world import World

SPLITS = ("train", "val", "test", "train_3hop", "test_3hop", "train_4hop", "test_4hop", "train_shared", "test_shared")


@dataclass(frozen=True)
class SplitSizes:
    """Questions a split. train, val and test hold the headline mix; the other kinds have files of their own."""

    train: int = 1200
    val: int = 100
    test: int = 300
    long_train: int = 200
    long_test: int = 100
    shared_train: int = 140
    shared_test: int = 100


def combination(question: Question) -> tuple[frozenset[str], tuple[str, ...]]:
    """What is held out: the start entities and the relations followed (the same for earlier and later)."""
    path = tuple(step.relation for step in question.searches)
    return frozenset(question.start) - {""}, path


def split_questions(world: World, sizes: SplitSizes | None = None) -> dict[str, tuple[Question, ...]]:
    """Splits by name, those of SPLITS.

    No combination, hence no text, occurs in two splits. Raises ValueError when the world is too small for the sizes.
    """
    sizes = sizes or SplitSizes()
    rng = random.Random(f"splits {world.seed}")
    splits: dict[str, list[Question]] = {"test": [], "val": [], "train": []}
    wanted = {name: _mix_counts(getattr(sizes, name)) for name in splits}
    for kind in HEADLINE_MIX:
        pool = _pool(world, kind, sum(counts[kind] for counts in wanted.values()), rng)
        for name, counts in wanted.items():
            splits[name] += [pool.pop() for _ in range(counts[kind])]
    for kind in ("3hop", "4hop"):
        pool = _pool(world, kind, sizes.long_train + sizes.long_test, rng)
        splits[f"test_{kind}"] = pool[: sizes.long_test]
        splits[f"train_{kind}"] = pool[sizes.long_test : sizes.long_test + sizes.long_train]
    for questions in splits.values():
        rng.shuffle(questions)
    # Drawn apart, so that the other files do not depend on these.
    pool = _shared_pool(world, sizes.shared_train + sizes.shared_test, random.Random(f"shared {world.seed}"))
    splits["test_shared"] = pool[: sizes.shared_test]
    splits["train_shared"] = pool[sizes.shared_test : sizes.shared_test + sizes.shared_train]
    return {name: tuple(questions) for name, questions in splits.items()}


def _mix_counts(total: int) -> dict[str, int]:
    """Questions of each kind in the headline mix; rounding goes to the first kind."""
    counts = {kind: round(share * total) for kind, share in HEADLINE_MIX.items()}
    counts["1hop"] += total - sum(counts.values())
    return counts


def _pool(world: World, kind: str, count: int, rng: random.Random) -> list[Question]:
    """At least `count` questions with different combinations, in random order."""
    if kind == "comparison":
        return _comparison_pool(world, count, rng)
    return _shuffled(list(chain_questions(world, kind)), kind, count, rng)


def _shared_pool(world: World, count: int, rng: random.Random) -> list[Question]:
    """At least `count` questions of the kind "shared", one a start entity, in random order."""
    starts = [entity for name in SHARED_PATHS for entity in world.entities[name]]
    drawn = (shared_question(world, start, rng.choice(["earlier", "later"])) for start in starts)
    return _shuffled([question for question in drawn if question is not None], SHARED, count, rng)


def _shuffled(pool: list[Question], kind: str, count: int, rng: random.Random) -> list[Question]:
    if len(pool) < count:
        raise ValueError(
            f"the world has {len(pool)} questions of kind {kind} but the splits ask for {count}: "
            "choose a larger world or smaller splits."
        )
    rng.shuffle(pool)
    return pool


def _comparison_pool(world: World, count: int, rng: random.Random) -> list[Question]:
    made: dict[object, Question] = {}
    for _ in range(20 * count):
        question = draw_comparison(world, rng)
        made.setdefault(combination(question), question)
    if len(made) < count:
        raise ValueError(
            f"the world has {len(made)} pairs for {count} comparisons: choose a larger world or smaller splits."
        )
    return list(made.values())
