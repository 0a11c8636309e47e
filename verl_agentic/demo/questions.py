"""Questions about a demo world with their gold decompositions.

Chains of 1 to 4 hops; comparisons of two entities that the question names; and comparisons of a person with their
spouse, whose sub-questions share an answer and a passage ("shared").
"""

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
SHARED = "shared"
# class of the start entity -> relations from it to the person who is compared with their spouse
SHARED_PATHS: dict[str, tuple[str, ...]] = {"person": (), "company": ("founder",), "film": ("director",)}
KINDS = (*PATHS, "comparison", SHARED)
HEADLINE_MIX = {"1hop": 0.4, "2hop": 0.4, "comparison": 0.2}


def chain_question(world: World, kind: str, start: str, path: tuple[str, ...]) -> Question | None:
    """The question that follows `path` from `start`.

    None where it would be degenerate: the chain visits an entity twice, so that the answer or a bridge already
    stands in the question.
    """
    steps: list[Step] = []
    phrase, entity, seen = start, start, {start}
    for number, relation in enumerate(path, start=1):
        step = _search_step(world, number, entity, relation, f"#{number - 1}" if number > 1 else "")
        if step.answer in seen:
            return None
        seen.add(step.answer)
        steps.append(step)
        last_wording = RELATIONS[relation][1].format(x=phrase)
        phrase, entity = f"the {relation} of {phrase}", step.answer
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
    steps = [_search_step(world, number, entity, relation, "") for number, entity in enumerate((one, other), start=1)]
    winner = one if (int(years[0]) < int(years[1])) == (order == "earlier") else other
    text = wording.format(order=order, a=one, b=other)
    steps.append(Step(3, f"Which is {order} , #1 or #2 ?", "", order, "", winner, (1, 2)))
    return Question(f"comparison:{ids[0]}:{ids[1]}:{order}", "comparison", text, (winner,), ids, tuple(steps))


def shared_question(world: World, start: str, order: str) -> Question | None:
    """Which of a person and their spouse was born `order`; the person is `start`, or its founder or director.

    The year and the spouse of the person stand in one passage, and both sub-questions refer to the same answer.
    None where the two years are equal: the question would have no answer.
    """
    path = SHARED_PATHS[world.passage_of[start].split("-")[0]]
    person = world.facts[start, path[0]] if path else start
    spouse = world.facts[person, "spouse"]
    one, other = (world.facts[entity, "birthyear"] for entity in (person, spouse))
    if one == other:
        return None
    makers = [(start, relation, "") for relation in path]
    who = f"#{len(makers)}" if makers else ""
    asked = [*makers, (person, "birthyear", who), (person, "spouse", who), (spouse, "birthyear", f"#{len(makers) + 2}")]
    steps = [_search_step(world, number, *parts) for number, parts in enumerate(asked, start=1)]
    years = (len(steps) - 2, len(steps))
    winner = person if (int(one) < int(other)) == (order == "earlier") else spouse
    last = f"Which is {order} , #{years[0]} or #{years[1]} ?"
    steps.append(Step(len(steps) + 1, last, "", order, "", winner, years))
    phrase = f"the {path[0]} of {start}" if path else start
    text = f"Who was born {order} , {phrase} or the spouse of {phrase} ?"
    passages = tuple(dict.fromkeys(step.passage_id for step in steps if step.passage_id))
    return Question(f"shared:{world.passage_of[start]}:{order}", SHARED, text, (winner,), passages, tuple(steps))


def _search_step(world: World, number: int, entity: str, relation: str, reference: str) -> Step:
    """The step that asks for a relation of an entity; `reference`, where not empty, stands for the entity's name."""
    keyword, wording = RELATIONS[relation]
    depends = (int(reference[1:]),) if reference else ()
    text, answer = wording.format(x=reference or entity), world.facts[entity, relation]
    return Step(number, text, entity, relation, keyword, answer, depends, world.passage_of[entity])


def draw_shared(world: World, rng: random.Random) -> Question:
    """A random comparison of a person with their spouse: first its form, then its start."""
    while True:
        start = rng.choice(world.entities[rng.choice(list(SHARED_PATHS))])
        question = shared_question(world, start, rng.choice(["earlier", "later"]))
        if question is not None:
            return question


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
    if kind == SHARED:
        return draw_shared(world, rng)
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
