"""The figures of a demo run: before and after, per kind of question, read from the trainer's own log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from verl_agentic.demo.evaluate import Figures
from verl_agentic.report.metrics import LoggedStep, not_finite, series, validated

HEADLINE = ("1hop", "2hop", "comparison")
LONG = ("3hop", "4hop", "shared")
LOG_PROB_DIFFERENCE = "agentic/log_prob_difference_max"
SESSION = r"context/\w+|rows|actions/[^/]+|(?:conclusion|memory|penalty)/\w+"
TRAINED = re.compile(r"agentic/(selection/.+|judge/.+|rows|context/.+|actions/.+|conclusion/.+|memory/.+|penalty/.+)$")


def figures_at(log: list[LoggedStep], counts: Mapping[str, int], last: bool) -> dict[str, Figures]:
    """Figures of the first or the last validation, per kind and for the `headline` mix.

    Args:
        log: the run's records.
        counts: validated questions of each kind.
        last: the last validation instead of the first.

    Raises:
        ValueError: a kind was never validated.
    """
    found = {kind: _of_kind(log, kind, count, last) for kind, count in counts.items()}
    names = ("em", "f1", "format", "searches")
    means = {n: headline_mean({kind: getattr(own, n) for kind, own in found.items()}, counts) for n in names}
    return {"headline": Figures(sum(counts[kind] for kind in HEADLINE if kind in counts), **means), **found}


def headline_mean(values: Mapping[str, float], counts: Mapping[str, int]) -> float:
    """Mean of one figure over the kinds of the headline mix that there are, weighted by their questions."""
    kinds = [kind for kind in HEADLINE if kind in values]
    return sum(values[kind] * counts[kind] for kind in kinds) / sum(counts[kind] for kind in kinds)


def _of_kind(log: list[LoggedStep], kind: str, count: int, last: bool) -> Figures:
    values = {}
    for name in ("em", "f1", "format", "searches"):
        points = validated(log, f"demo_{kind}", name)
        if not points:
            raise ValueError(f"the metrics log holds no validation of the {kind} questions ({name})")
        if not last and points[0][0] != 0:
            raise ValueError(
                "the metrics log holds no validation before training; run with trainer.val_before_train=true"
            )
        values[name] = points[-1 if last else 0][1]
    return Figures(count=count, **values)


def session_figures(log: list[LoggedStep], counts: Mapping[str, int], last: bool) -> dict[str, dict[str, float]]:
    """Means over the sessions of the first or the last validation, per kind and for the `headline` mix.

    `context/seen` and `context/unedited` (tokens of context a turn, as the policy saw it and had nothing been edited
    away), `rows`, `actions/TAG`, and what dep_search notes of conclusions, memory and penalties: those of them that the
    run logged of every kind.
    """
    names = sorted(set.intersection(*(_session_names(log, kind) for kind in counts)))
    found = {k: {n: validated(log, f"demo_{k}", n)[-1 if last else 0][1] for n in names} for k in counts}
    means = {n: headline_mean({kind: own[n] for kind, own in found.items()}, counts) for n in names}
    return {"headline": means, **found}


def _session_names(log: list[LoggedStep], kind: str) -> set[str]:
    pattern = re.compile(rf"val-aux/demo_{kind}/({SESSION})/mean@1")
    return {found.group(1) for record in log for name in record.data if (found := pattern.fullmatch(name))}


def summarize(
    log: list[LoggedStep], counts: Mapping[str, int], rl_seconds: float, total_seconds: float
) -> dict[str, Any]:
    """The record written to summary.json.

    Args:
        log: the run's records.
        counts: validated questions of each kind.
        rl_seconds: of the trainer's process, start-up included.
        total_seconds: of everything, installation included where the Makefile started the clock.
    """
    before, after = (figures_at(log, counts, last) for last in (False, True))
    sessions = {"before": session_figures(log, counts, False), "after": session_figures(log, counts, True)}
    steps = [record for record in log if record.step > 0]
    seconds = sorted(value for _, value in series(steps, "timing_s/step"))
    return {
        "em_before": before["headline"].em,
        "em_after": after["headline"].em,
        "em_2hop_before": before["2hop"].em,
        "em_2hop_after": after["2hop"].em,
        "rl_seconds": round(rl_seconds, 1),
        "total_seconds": round(total_seconds, 1),
        "steps": len(steps),
        "median_step_seconds": seconds[len(seconds) // 2] if seconds else None,
        "infra_faults": int(
            sum(v for name in ("agentic", "val-agentic") for _, v in series(log, f"{name}/infra_faults"))
        ),
        "tokens_compared": int(sum(value for _, value in series(steps, "agentic/tokens_compared"))),
        "largest_log_prob_difference": max((value for _, value in series(steps, LOG_PROB_DIFFERENCE)), default=None),
        "log_prob_differences": largest_by_name(steps, LOG_PROB_DIFFERENCE),
        "training": training_means(steps),
        "not_finite": not_finite(log),
        "before": {kind: {**asdict(figures), **sessions["before"][kind]} for kind, figures in before.items()},
        "after": {kind: {**asdict(figures), **sessions["after"][kind]} for kind, figures in after.items()},
    }


def training_means(steps: list[LoggedStep]) -> dict[str, float]:
    """Means over the steps of what the trainer logs of selection, judgements and rows, by name without `agentic/`."""
    names = sorted({name for record in steps for name in record.data if TRAINED.match(name)})
    return {name.removeprefix("agentic/"): _average([v for _, v in series(steps, name)]) for name in names}


def largest_by_name(steps: list[LoggedStep], prefix: str) -> dict[str, float]:
    """The largest value over the steps of each metric with a prefix, by the rest of its name."""
    names = sorted({name for record in steps for name in record.data if name.startswith(prefix) and name != prefix})
    return {name.removeprefix(prefix).strip("/_"): max(v for _, v in series(steps, name)) for name in names}


def _average(values: list[float]) -> float:
    return sum(values) / len(values)


def table(summary: Mapping[str, Any]) -> str:
    """The short table printed at the end of a demo."""
    head = f"{'questions':12s} {'n':>4s}   {'EM':>13s}   {'F1':>13s}   {'format':>13s}   {'searches':>13s}"
    lines = [head, f"{'':12s} {'':>4s}" + f"   {'before':>6s} {'after':>6s}" * 4]
    for kind, before in summary["before"].items():
        after = summary["after"][kind]
        pairs = "".join(f"   {before[n]:6.3f} {after[n]:6.3f}" for n in ("em", "f1", "format", "searches"))
        lines.append(f"{kind:12s} {before['count']:4d}{pairs}")
    return "\n".join(lines)
