"""Joining ranked lists: reciprocal rank fusion (Cormack et al. 2009) and weighted sums of normalised scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retriever_server.errors import SettingsError

Scored = Sequence[tuple[int, float]]  # (row, score) pairs, best first
METHODS = ("rrf", "weighted")
NORMALISERS = ("min_max", "z")


@dataclass(frozen=True)
class FusionSettings:
    """How the ranked lists of a hybrid index's parts become one.

    `method` is `rrf`, where a row gets weight / (`rrf_k` + its rank) from each list, ranks from 1, or `weighted`, where
    it gets weight times its score normalised within the list by `normalise`. `weights` has one number >= 0 a part, in
    the parts' order; empty means equal weights. `depth` >= 1 is how many hits of each part are joined (topk if larger).
    """

    method: str = "rrf"
    rrf_k: int = 60
    weights: tuple[float, ...] = ()
    depth: int = 100
    normalise: str = "min_max"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise SettingsError(f"Unknown fusion method '{self.method}'; choose one of {', '.join(METHODS)}.")
        if self.normalise not in NORMALISERS:
            raise SettingsError(
                f"Unknown score normalisation '{self.normalise}'; choose one of {', '.join(NORMALISERS)}."
            )
        if self.rrf_k < 0 or self.depth < 1:
            raise SettingsError(f"Fusion needs rrf_k >= 0 and depth >= 1, found {self.rrf_k} and {self.depth}.")
        finite = all(np.isfinite(weight) and weight >= 0 for weight in self.weights)
        if not finite or (self.weights and not any(self.weights)):
            raise SettingsError(f"Fusion weights must be numbers >= 0, not all 0; found {list(self.weights)}.")

    def weights_for(self, parts: int) -> tuple[float, ...]:
        """Return one weight for each of `parts` lists; raises SettingsError when another number of them is declared."""
        if not self.weights:
            return (1.0,) * parts
        if len(self.weights) != parts:
            raise SettingsError(f"{len(self.weights)} fusion weights are given for {parts} parts; give one for each.")
        return self.weights


def fuse(lists: Sequence[Scored], settings: FusionSettings) -> list[tuple[int, float]]:
    """Join ranked lists into one, best first, ties in row order; a row that a list lacks gets nothing from it.

    A list of weight 0 takes no part at all: its rows do not appear.
    """
    totals: dict[int, float] = defaultdict(float)
    for scored, weight in zip(lists, settings.weights_for(len(lists)), strict=True):
        if weight:
            for (row, _), points in zip(scored, _points(scored, settings), strict=True):
                totals[row] += weight * points
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))


def _points(scored: Scored, settings: FusionSettings) -> list[float]:
    if settings.method == "rrf":
        return [1 / (settings.rrf_k + rank) for rank in range(1, len(scored) + 1)]
    return _above_lowest([score for _, score in scored], settings.normalise)


def _above_lowest(scores: list[float], normalise: str) -> list[float]:
    """Return each score's height above the list's lowest, over its range (`min_max`) or standard deviation (`z`).

    A missing row counts as the lowest, 0, since what the list cut off scored no higher. Where no difference is left to
    scale, one hit or all equal, each gets 1: found is more than not found.
    """
    if not scores:
        return []
    low, high = min(scores), max(scores)
    scale = high - low if normalise == "min_max" else float(np.std(scores))
    return [(score - low) / scale for score in scores] if high > low and scale > 0 else [1.0] * len(scores)
