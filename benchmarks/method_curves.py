"""Curves of several runs of a method in one picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from verl_agentic.demo.summary import HEADLINE, headline_mean
from verl_agentic.report.curves import Panel, draw
from verl_agentic.report.metrics import LoggedStep, read_log, series, validated

Points = list[tuple[int, float]]
ACTIONS = "agentic/actions/"
TRAINED = (
    ("Exact match (temperature 1, training questions)", "EM", "agentic/em"),
    ("Searches per question (temperature 1)", "searches", "agentic/searches"),
    ("Context per turn (temperature 1)", "tokens that the policy sees", "agentic/context/seen"),
    ("Entropy of the policy", "nats", "actor/entropy"),
)


def draw_curves(runs: Sequence[tuple[str, Path]], path: Path, title: str, further: Sequence[Panel] = ()) -> None:
    """Greedy EM of the headline questions, then each metric of training, of every run; then the actions by recipe.

    Args:
        runs: name and folder of each; at least one.
        path: the picture.
        title: stands above all panels.
        further: panels that follow.
    """
    logs = {name: read_log(folder / "metrics.jsonl") for name, folder in runs}
    greedy = {name: greedy_em(log, folder) for (name, folder), log in zip(runs, logs.values(), strict=True)}
    panels = [Panel("Exact match (greedy, held out)", "EM of the headline questions", {}, greedy)]
    for heading, label, key in TRAINED:
        panels.append(Panel(heading, label, {name: series(log, key) for name, log in logs.items()}, {}))
    draw([*panels, *action_panels(runs, logs), *further], path, title, columns=3)


def greedy_em(log: list[LoggedStep], folder: Path) -> Points:
    """EM of the headline mix at each validation, weighted by the questions of each kind."""
    figures = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["after"]
    counts = {kind: figures[kind]["count"] for kind in HEADLINE if kind in figures}
    columns = zip(*(validated(log, f"demo_{kind}", "em") for kind in counts), strict=True)
    return [
        (column[0][0], headline_mean({kind: em for kind, (_, em) in zip(counts, column, strict=True)}, counts))
        for column in columns
    ]


def action_panels(runs: Sequence[tuple[str, Path]], logs: dict[str, list[LoggedStep]]) -> list[Panel]:
    """One panel a recipe: how often each action is done in a session, as the mean of the recipe's seeds."""
    recipes: dict[str, list[str]] = {}
    for name, _ in runs:
        recipes.setdefault(name.rsplit("-seed", 1)[0], []).append(name)
    panels = []
    for recipe, names in recipes.items():
        tags = sorted(
            {key for name in names for record in logs[name] for key in record.data if key.startswith(ACTIONS)}
        )
        lines = {tag.removeprefix(ACTIONS): mean_series([series(logs[name], tag) for name in names]) for tag in tags}
        panels.append(Panel(f"Actions: {recipe}", "a session, mean of the seeds", lines, {}))
    return panels


def mean_series(columns: Sequence[Points]) -> Points:
    """The mean at each step over the series that have it."""
    steps = sorted({step for points in columns for step, _ in points})
    values = {step: [value for points in columns for s, value in points if s == step] for step in steps}
    return [(step, sum(own) / len(own)) for step, own in values.items()]
