"""What a judge is asked, and what comes back: a verdict, or nothing, which is never the same as a verdict of 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Ask:
    """One question to a judge.

    Attributes:
        kind: what is judged (`retrieval`, `memory`, ...): names the judge's prompt, or the rule of a judge without one.
        turn: number of the judged turn in its session, from 0 (`Episode.turns`).
        fields: pairs of name and text that fill the prompt; equal kind and fields are the same question.
    """

    kind: str
    turn: int
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Verdict:
    """What the judge says: a number in [0, 1]."""

    value: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a verdict lies in [0, 1], got {self.value}")


@dataclass(frozen=True)
class Missing:
    """The judge could not be asked or its reply could not be read; `reason` is a short code such as `timeout`."""

    reason: str


Judgement = Verdict | Missing


class Judge(Protocol):
    """Answers questions; `name` is shown wherever its verdicts are used."""

    name: str

    async def __call__(self, asks: Sequence[Ask]) -> list[Judgement]:
        """One judgement for each ask, in order; a failure is `Missing`, never an exception and never 0."""
        ...
