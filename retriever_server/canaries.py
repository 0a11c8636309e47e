"""Self-retrieval canaries: passages that their own first words must retrieve (cases P30 and P46)."""

from __future__ import annotations

from collections.abc import Sequence

from retriever_server.backends.base import Backend, Hit
from retriever_server.errors import IndexRefused
from retriever_server.manifest import Canary

SAMPLE = 16
WORDS = 24


def first_words(contents: str) -> str:
    """Return the words of a passage that make its canary query."""
    return " ".join(contents.split()[:WORDS])


def choose_canaries(parts: Sequence[Backend]) -> tuple[list[Canary], float]:
    """Return the canaries that hold in every part among evenly spaced passages, and the share of the sample they are.

    Raises IndexRefused when no sampled passage is found by its own first words.
    """
    passages = parts[0].passages
    count = len(passages)
    rows = sorted({position * count // SAMPLE for position in range(SAMPLE)})
    sample = [Canary(row, passages[row].id, first_words(passages[row].contents)) for row in rows]
    held = [all(line) for line in zip(*(held_canaries(part, sample) for part in parts), strict=True)]
    holding = [canary for canary, holds in zip(sample, held, strict=True) if holds]
    if not holding:
        raise IndexRefused(
            f"None of {len(sample)} sampled passages is found by its own first words; "
            "check the encoder's pooling and prefixes, or the corpus."
        )
    return holding, len(holding) / len(sample)


def check_canaries(part: Backend, canaries: list[Canary], lowered: str = "") -> None:
    """Raise IndexRefused, saying how many failed, unless every canary still retrieves its passage first.

    `lowered` names what makes this search look at less than the index was built for, where anything does.
    """
    held = held_canaries(part, canaries)
    if not all(held) and lowered:
        raise IndexRefused(
            f"{held.count(False)} of {len(held)} self-retrieval canaries are missed with {lowered}; choose a larger "
            "number or leave the option out."
        )
    if not all(held):
        raise IndexRefused(
            f"{held.count(False)} of {len(held)} self-retrieval canaries fail: the index and its encoder, analyzer or "
            "passage file no longer belong together; build the index again."
        )


def held_canaries(part: Backend, canaries: list[Canary]) -> list[bool]:
    """Return for each canary whether `part` finds its passage first."""
    found = part.search([canary.query for canary in canaries], 1)
    return [bool(hits) and _is_passage(hits[0], canary) for hits, canary in zip(found, canaries, strict=True)]


def _is_passage(hit: Hit, canary: Canary) -> bool:
    # the contents too: an index that ranks rows well may stand beside another corpus's passage file
    return (hit.row, hit.id, first_words(hit.contents)) == (canary.row, canary.id, canary.query)
