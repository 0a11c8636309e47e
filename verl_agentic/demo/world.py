"""A closed fictional world: persons, towns, countries, companies and films, their relations, one passage each.

Everything follows from a seed. Nothing in the world is true elsewhere, so a policy that was not trained on this world
must search to answer (a comparison alone can be guessed: its two candidates stand in the question). Name words are
shared between entities of a class (distractors), and founders and directors come from a smaller circle of persons, so
that many questions pass through the same person.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields

from verl_agentic.demo.lexicon import YEARS, name_words

CLASSES = ("person", "town", "country", "company", "film")
FRUITLESS_DRAWS = 10_000
SIZE_FIELDS = dict(zip(CLASSES, ("persons", "towns", "countries", "companies", "films"), strict=True))


@dataclass(frozen=True)
class WorldSizes:
    """How many entities of each class (the default gives 342 passages), and how entangled they are.

    distractor_share: share of the names made by re-using the first word of another entity of the class.
    hub_share: share of the persons among whom founders and directors are drawn.
    """

    persons: int = 120
    towns: int = 50
    countries: int = 12
    companies: int = 80
    films: int = 80
    distractor_share: float = 0.25
    hub_share: float = 0.5

    def __post_init__(self) -> None:
        for name in CLASSES:
            self._check_count(name, getattr(self, SIZE_FIELDS[name]))
        if self.persons % 2 or self.towns < self.countries:
            raise ValueError(
                f"world sizes persons={self.persons}, towns={self.towns}, countries={self.countries} do not fit: "
                "persons must be even (every person has a spouse) and towns at least as many as countries."
            )
        for item in fields(self)[-2:]:
            if not 0.0 <= getattr(self, item.name) <= 1.0:
                raise ValueError(f"world size {item.name} must lie between 0 and 1, not {getattr(self, item.name)}.")

    @staticmethod
    def _check_count(name: str, count: int) -> None:
        words = name_words()
        room = len(words[f"{name}_first"]) * len(words[f"{name}_last"]) // 2
        if not 4 <= count <= room:
            raise ValueError(
                f"world size {SIZE_FIELDS[name]}={count} is out of range: the closed vocabulary has names for 4 to "
                f"{room}; choose a number in that range."
            )


@dataclass(frozen=True)
class Passage:
    """One short text about one entity; `title` is the entity's name."""

    id: str
    title: str
    contents: str


@dataclass(frozen=True)
class World:
    """Entities by class, facts ``(entity, relation) -> value``, and the passages that state them."""

    seed: int
    sizes: WorldSizes
    entities: dict[str, tuple[str, ...]]
    facts: dict[tuple[str, str], str]
    passages: tuple[Passage, ...]
    passage_of: dict[str, str] = field(repr=False)

    def look_up(self, entity: str, relation: str) -> str | None:
        """The value of a relation, or None where the entity has none."""
        return self.facts.get((entity, relation))


def generate_world(seed: int, sizes: WorldSizes | None = None) -> World:
    """The world of a seed: same seed and sizes, same world.

    Raises ValueError when names run out, as they do where nearly every name must re-use the first word of another.
    """
    sizes = sizes or WorldSizes()
    rng = random.Random(f"world {seed}")
    entities = {name: _names(rng, name, getattr(sizes, SIZE_FIELDS[name]), sizes.distractor_share) for name in CLASSES}
    facts = _facts(rng, entities, sizes)
    passages = tuple(
        Passage(id=f"{name}-{number:03d}", title=entity, contents=_contents(rng, name, entity, facts))
        for name in CLASSES
        for number, entity in enumerate(entities[name])
    )
    return World(seed, sizes, entities, facts, passages, {p.title: p.id for p in passages})


def _names(rng: random.Random, name: str, count: int, distractor_share: float) -> tuple[str, ...]:
    first, last = name_words()[f"{name}_first"], name_words()[f"{name}_last"]
    made: dict[str, None] = {}
    fruitless = 0
    while len(made) < count:
        if fruitless == FRUITLESS_DRAWS:
            raise ValueError(
                f"the world found no new name for {SIZE_FIELDS[name]} in {fruitless} draws ({len(made)} of {count} "
                f"made, distractor_share={distractor_share}): choose a smaller distractor share or fewer of them."
            )
        twin = made and rng.random() < distractor_share
        start = rng.choice(list(made)).split()[0] if twin else rng.choice(first)
        drawn = f"{start} {rng.choice(last)}"
        fruitless = fruitless + 1 if drawn in made else 0
        made[drawn] = None
    names = list(made)
    rng.shuffle(names)
    return tuple(names)


def _facts(rng: random.Random, entities: dict[str, tuple[str, ...]], sizes: WorldSizes) -> dict[tuple[str, str], str]:
    persons, towns, countries = entities["person"], entities["town"], entities["country"]
    hubs = persons[: max(2, round(sizes.hub_share * len(persons)))]
    facts: dict[tuple[str, str], str] = {}
    for number, town in enumerate(towns):
        facts[town, "country"] = countries[number] if number < len(countries) else rng.choice(countries)
    for country, town in zip(countries, towns, strict=False):
        facts[country, "capital"] = town
    for person in persons:
        facts[person, "birthplace"] = rng.choice(towns)
        facts[person, "birthyear"] = rng.choice(YEARS)
    couples = rng.sample(persons, len(persons))
    for one, other in zip(couples[::2], couples[1::2], strict=True):
        facts[one, "spouse"], facts[other, "spouse"] = other, one
    for company in entities["company"]:
        facts[company, "founder"] = rng.choice(hubs)
        facts[company, "seat"] = rng.choice(towns)
    for film in entities["film"]:
        facts[film, "director"] = rng.choice(hubs)
        facts[film, "release"] = rng.choice(YEARS)
    return facts


def _contents(rng: random.Random, name: str, entity: str, facts: dict[tuple[str, str], str]) -> str:
    """The passage: at most 15 words; the order of its two statements is drawn, so that reading needs attention.

    A person's surname is repeated: else the passage of the spouse, which names the same two persons, would tie with it
    in any ranking by words.
    """
    clauses = _clauses(rng, name, entity, facts)
    rng.shuffle(clauses)
    return f"{entity} {name} : {' ; '.join(clauses)}"


def _clauses(rng: random.Random, name: str, entity: str, facts: dict[tuple[str, str], str]) -> list[str]:
    if name == "person":
        place, year = facts[entity, "birthplace"], facts[entity, "birthyear"]
        born = rng.choice([f"born in {place} in {year}", f"born in {year} in {place}"])
        return [f"{entity.split()[1]} {born}", f"spouse {facts[entity, 'spouse']}"]
    if name == "town":
        return [f"in {facts[entity, 'country']}"]
    if name == "country":
        return [f"capital {facts[entity, 'capital']}"]
    if name == "company":
        return [f"founder {facts[entity, 'founder']}", f"seat {facts[entity, 'seat']}"]
    return [f"director {facts[entity, 'director']}", f"released in {facts[entity, 'release']}"]
