"""Questions about a demo world with their gold decompositions: chains of 1 to 4 hops, and comparisons."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator

from verl_agentic.core.question import Question, Step
from verl_agentic.demo.world import World

# relation -> (word of the passage that states it, question about it)
RELATIONS = {
    "birthplace": ("born", "Where was {x} born ?"),
    "birthyear": ("born", "When was {x} born ?"),
    "spouse": ("spouse", "Who is the spouse of {x} ?"),
    "country": ("town", "In which country is {x} ?"),
    "capital": ("capital", "What is the capital of {x} ?"),
    "founder": ("founder", "Who is the founder of {x} ?"),
    "seat": ("seat", "Where is the seat of {x} ?"),
    "director": ("director", "Who is the director of {x} ?"),
    "release": ("released", "When was {x} released ?"),
}

MAKERS = (("company", "founder"), ("film", "director"))

# kind -> (class of the start entity, relations followed)
PATHS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "1hop": tuple(
        (start, (relation,))
        for start, relations in (
            ("person", ("birthplace", "birthyear", "spouse")),
            ("town", ("country",)),
            ("country", ("capital",)),
            ("company", ("founder", "seat")),
            ("film", ("director", "release")),
        )
        for relation in relations
    ),
    "2hop": (
        *((start, (maker, relation)) for start, maker in MAKERS for relation in ("birthplace", "birthyear", "spouse")),
        ("company", ("seat", "country")),
        ("person", ("birthplace", "country")),
        ("person", ("spouse", "birthplace")),
        ("person", ("spouse", "birthyear")),
        ("town", ("country", "capital")),
    ),
    "3hop": (
        *((start, (maker, "birthplace", "country")) for start, maker in MAKERS),
        *((start, (maker, "spouse", last)) for start, maker in MAKERS for last in ("birthplace", "birthyear")),
        ("company", ("seat", "country", "capital")),
        ("person", ("spouse", "birthplace", "country")),
        ("person", ("birthplace", "country", "capital")),
    ),
    "4hop": (
        *((start, (maker, "spouse", "birthplace", "country")) for start, maker in MAKERS),
        *((start, (maker, "birthplace", "country", "capital")) for start, maker in MAKERS),
        ("person", ("spouse", "birthplace", "country", "capital")),
    ),
}
COMPARISONS = {
    "person": ("birthyear", "Who was born {order} , {a} or {b} ?"),
    "film": ("release", "Which film was released {order} , {a} or {b} ?"),
}
KINDS = (*PATHS, "comparison")
HEADLINE_MIX = {"1hop": 0.4, "2hop": 0.4, "comparison": 0.2}


def chain_question(world: World, kind: str, start: str, path: tuple[str, ...]) -> Question | None:
    """The question that follows `path` from `start`.

    None where it would be degenerate: the chain visits an entity twice, so that the answer or a bridge already
    stands in the question.
    """
    steps: list[Step] = []
    phrase, entity, seen = start, start, {start}
    for number, relation in enumerate(path, start=1):
        keyword, wording = RELATIONS[relation]
        answer = world.facts[entity, relation]
        if answer in seen:
            return None
        seen.add(answer)
        text = wording.format(x=f"#{number - 1}" if number > 1 else start)
        depends = (number - 1,) if number > 1 else ()
        steps.append(Step(number, text, entity, relation, keyword, answer, depends, world.passage_of[entity]))
        last_wording = wording.format(x=phrase)
        phrase, entity = f"the {relation} of {phrase}", answer
    identity = f"{kind}:{world.passage_of[start]}:{'.'.join(path)}"
    return Question(identity, kind, last_wording, (entity,), tuple(s.passage_id for s in steps), tuple(steps))


def comparison_question(world: World, one: str, other: str, order: str) -> Question:
    """Which of two persons was born, or of two films was released, `order` ("earlier" or "later").

    Raises ValueError when the two years are equal: the question would have no answer.
    """
    ids = (world.passage_of[one], world.passage_of[other])
    relation, wording = COMPARISONS[ids[0].split("-")[0]]
    years = [world.facts[entity, relation] for entity in (one, other)]
    if years[0] == years[1]:
        raise ValueError(f"{one} and {other} share the year {years[0]}: they cannot be compared; choose another pair.")
    keyword, question = RELATIONS[relation]
    steps = [
        Step(number, question.format(x=entity), entity, relation, keyword, year, (), passage)
        for number, (entity, year, passage) in enumerate(zip((one, other), years, ids, strict=True), start=1)
    ]
    winner = one if (int(years[0]) < int(years[1])) == (order == "earlier") else other
    text = wording.format(order=order, a=one, b=other)
    steps.append(Step(3, f"Which is {order} , #1 or #2 ?", "", order, "", winner, (1, 2)))
    return Question(f"comparison:{ids[0]}:{ids[1]}:{order}", "comparison", text, (winner,), ids, tuple(steps))


def chain_questions(world: World, kind: str) -> Iterator[Question]:
    """Every question of a kind (1hop to 4hop) that the world allows."""
    for start_class, path in PATHS[kind]:
        for start in world.entities[start_class]:
            question = chain_question(world, kind, start, path)
            if question is not None:
                yield question


def draw_question(world: World, kind: str, rng: random.Random) -> Question:
    """A random question of a kind: first its path, then its start (so every path is as frequent)."""
    if kind == "comparison":
        return draw_comparison(world, rng)
    while True:
        start_class, path = rng.choice(PATHS[kind])
        question = chain_question(world, kind, rng.choice(world.entities[start_class]), path)
        if question is not None:
            return question


def draw_comparison(world: World, rng: random.Random) -> Question:
    """A random comparison of two persons or two films with different years."""
    while True:
        name = rng.choice(list(COMPARISONS))
        one, other = rng.sample(world.entities[name], 2)
        if world.facts[one, COMPARISONS[name][0]] != world.facts[other, COMPARISONS[name][0]]:
            return comparison_question(world, one, other, rng.choice(["earlier", "later"]))


def shared_intermediates(questions: Iterable[Question]) -> dict[str, tuple[str, ...]]:
    """Bridge entities through which at least two of the questions pass -> ids of those questions."""
    passing: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        for step in question.searches[:-1]:
            if question.kind != "comparison":
                passing[step.answer].append(question.id)
    return {entity: tuple(ids) for entity, ids in passing.items() if len(ids) > 1}
