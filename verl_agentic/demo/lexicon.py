"""The closed vocabulary: invented names made of syllables, and the stock of plain words that prompts may use.

The name words are the same for every world (the policy has one vocabulary); a world pairs them anew.
"""

from __future__ import annotations

import random
from functools import lru_cache

ONSETS = "b br c d dr f g gr h j k kl l m n p pr r s st t tr v w z".split()
NUCLEI = "a e i o u ae ia ei".split()
CODAS = "l n r s th m nd rk x lt".split()

# class of name word -> (how many words, endings one of which closes each word)
NAME_SHAPES: dict[str, tuple[int, tuple[str, ...]]] = {
    "person_first": (80, ("a", "o", "in", "us", "e")),
    "person_last": (80, ("son",)),
    "town_first": (80, ("ford",)),
    "town_last": (12, ("vale",)),
    "country_first": (40, ("land",)),
    "country_last": (6, ("mark",)),
    "company_first": (80, ("tek",)),
    "company_last": (10, ("works",)),
    "film_first": (40, ("ella",)),
    "film_last": (24, ("ora",)),
}
YEARS = tuple(str(year) for year in range(1900, 1940))

SPECIAL_TOKENS = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")

PAIRED_TAGS = (
    "think search information answer plan reasoning backtrack summary conclusion observation stack "
    "Decompose Retrieve Memory Memory_result Conclusion predicted_answer evidence Update Add"
).split()
NUMBERED_TAGS = tuple(f"{letter}{number}" for letter in "qat" for number in range(1, 11))
SINGLE_TAGS = ("<end>",)

PUNCTUATION = '( ) [ ] : ; . , ? ! / - = + # | "'.split()
NUMBERS = tuple(str(number) for number in range(33))
NUMBERED_WORDS = tuple(f"{n}." for n in range(1, 11)) + tuple(f"#{n}" for n in range(1, 11))

WORLD_WORDS = (
    "find of is in or and the Where When Who What Which In which was country born spouse town capital founder seat "
    "director released birthplace earlier later person company film"
).split()
PROMPT_WORDS = (
    "user assistant system tool invalid search answer now no No useful information unknown unkown deps: none "
    "question Question trajectory history query evidence documents document passages passage memory empty stored "
    "ok done end order planning summary update add role agent you are a an to with from by it its not yes think "
    "plan step steps sub then first last next wrong right again use write read give retrieve decompose conclude "
    "conclusion reason reasoning backtrack pop push stack full removed nothing because reject rejected entry "
    "entries predicted final fact facts known result results error format turn turns left limit max one two three "
    "four five more less same different as at on for this that what who where when which how many did does do "
    "title year place found missing good bad check correct check: order: memory: question: trajectory: history: "
    "query: evidence: documents: answer: plan: role: planner searcher summarizer updater answerer"
).split()


@lru_cache(maxsize=1)
def name_words() -> dict[str, tuple[str, ...]]:
    """All invented name words by class; no word (ignoring case) occurs twice or equals a plain word."""
    taken = {word.lower() for word in (*WORLD_WORDS, *PROMPT_WORDS)}
    rng = random.Random(20)
    return {name: _draw_words(rng, count, endings, taken) for name, (count, endings) in NAME_SHAPES.items()}


def _draw_words(rng: random.Random, count: int, endings: tuple[str, ...], taken: set[str]) -> tuple[str, ...]:
    words: list[str] = []
    while len(words) < count:
        word = rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) + rng.choice(endings)
        if word not in taken:
            taken.add(word)
            words.append(word.capitalize())
    return tuple(words)


def tags() -> tuple[str, ...]:
    """The tags of all methods, opening and closing, in a fixed order."""
    names = (*PAIRED_TAGS, *NUMBERED_TAGS)
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>")) + SINGLE_TAGS


def plain_words() -> tuple[str, ...]:
    """Every word that is neither a special token nor a tag, without repeats, in a fixed order."""
    names = [word for words in name_words().values() for word in words]
    stock = [*PUNCTUATION, *NUMBERS, *NUMBERED_WORDS, *WORLD_WORDS, *PROMPT_WORDS, *YEARS, *names]
    return tuple(dict.fromkeys(stock))
