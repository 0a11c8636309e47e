"""Figures of finished runs, and what follows from them: means over seeds, ratios, and whether two recipes differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from verl_agentic.demo.summary import summarize
from verl_agentic.report.metrics import read_log

COMPARED = "compared"
Z = 1.959964  # 97.5 % quantile of the normal distribution
RULE = (
    "Two recipes separate where every seed of one lies strictly above every seed of the other and the 95 % interval of "
    "the difference of their means (Newcombe's score interval for two proportions, over the distinct held-out "
    "questions: the same questions asked of another seed are no new ones) excludes 0."
)
COPIED = (
    *("seed", "steps", "judge", "infra_faults", "tokens_compared", "largest_log_prob_difference"),
    *("log_prob_differences", "median_step_seconds", "training", "not_finite", "before", "after"),
)


def run_figures(folder: Path, status: str) -> dict[str, Any]:
    """The figures of one finished run, read from its log.

    Args:
        folder: where the run wrote metrics.jsonl and summary.json.
        status: whether it is compared.
    """
    noted = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    counts = {kind: own["count"] for kind, own in noted["after"].items() if kind != "headline"}
    log = read_log(folder / "metrics.jsonl")
    summary = {**noted, **summarize(log, counts, noted["rl_seconds"], noted["total_seconds"])}
    head = {"name": folder.name, "recipe": noted["recipe"], "status": status, "finite": not summary["not_finite"]}
    return {**head, **{name: summary[name] for name in COPIED}}


def derived(runs: Sequence[Mapping[str, Any]], comparisons: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What follows from the compared runs; a comparison waits until both of its recipes have runs."""
    arms: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["status"] == COMPARED:
            arms.setdefault(run["recipe"], []).append(run)
    pairs = [(a, b) for a, b in comparisons if a in arms and b in arms]
    return {
        "rule": RULE,
        "arms": {recipe: arm_figures(own) for recipe, own in arms.items()},
        "comparisons": [compare(a, arms[a], b, arms[b]) for a, b in pairs],
    }


def arm_figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of one recipe, with the values of each seed, per kind of question and of the headline."""
    return {
        "seeds": [run["seed"] for run in runs],
        "kinds": {
            kind: {"count": figures["count"], **{name: _pair(runs, kind, name) for name in _scalars(figures)}}
            for kind, figures in runs[0]["after"].items()
        },
    }


def _scalars(figures: Mapping[str, Any]) -> list[str]:
    return [name for name in figures if name != "count"]


def _pair(runs: Sequence[Mapping[str, Any]], kind: str, name: str) -> dict[str, Any]:
    values = {when: [run[when][kind][name] for run in runs] for when in ("before", "after")}
    return {when: {"mean": mean(own), "seeds": own} for when, own in values.items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def compare(a: str, runs_a: Sequence[Mapping[str, Any]], b: str, runs_b: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How recipe `a` differs from recipe `b` after training: EM with its verdict, and the ratio of context lengths."""
    kinds = [kind for kind in runs_a[0]["after"] if kind in runs_b[0]["after"]]
    return {
        "a": a,
        "b": b,
        "em": {kind: _compare_em(runs_a, runs_b, kind) for kind in kinds},
        "context": {kind: context_ratio(runs_a, runs_b, kind) for kind in kinds},
    }


def _compare_em(runs_a: Sequence[Mapping], runs_b: Sequence[Mapping], kind: str) -> dict[str, Any]:
    of_a, of_b = ([run["after"][kind]["em"] for run in runs] for runs in (runs_a, runs_b))
    return separation(of_a, of_b, runs_a[0]["after"][kind]["count"])


def separation(a: Sequence[float], b: Sequence[float], count: int) -> dict[str, Any]:
    """Whether the scores of two recipes separate (see RULE).

    Args:
        a, b: the score in [0, 1] of each seed.
        count: distinct questions that each score is the mean of.
    """
    low, high = newcombe(mean(a), mean(b), count)
    apart = (min(a) > max(b) and low > 0) or (max(a) < min(b) and high < 0)
    return {"difference": mean(a) - mean(b), "interval": [low, high], "count": count, "separates": apart}


def newcombe(a: float, b: float, count_a: int, count_b: int | None = None) -> tuple[float, float]:
    """95 % interval of the difference of two proportions.

    Source: Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10 (hybrid of two Wilson intervals).
    """
    (low_a, high_a), (low_b, high_b) = wilson(a, count_a), wilson(b, count_b or count_a)
    below = sqrt((a - low_a) ** 2 + (high_b - b) ** 2)
    above = sqrt((high_a - a) ** 2 + (b - low_b) ** 2)
    return a - b - below, a - b + above


def wilson(share: float, count: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927)."""
    centre = share + Z * Z / (2 * count)
    half = Z * sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return (centre - half) / scale, (centre + half) / scale


def context_ratio(runs_a: Sequence[Mapping], runs_b: Sequence[Mapping], kind: str) -> dict[str, Any] | None:
    """Tokens of context a turn that `a` saw, over those of its own sessions unedited and over those that `b` saw.

    `shorter_in_every_seed`: every seed of `a` saw less than every seed of `b`. None where a run logged no context.
    """
    figures = [[run["after"][kind] for run in runs] for runs in (runs_a, runs_b)]
    if not all("context/seen" in own for runs in figures for own in runs):
        return None
    seen_a, seen_b = ([own["context/seen"] for own in runs] for runs in figures)
    unedited = [own["context/unedited"] for own in figures[0]]
    return {
        "to_unedited": mean(seen_a) / mean(unedited),
        "to_b": mean(seen_a) / mean(seen_b),
        "shorter_in_every_seed": max(seen_a) < min(seen_b),
    }
