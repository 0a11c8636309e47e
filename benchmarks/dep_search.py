"""The training runs of dep_search on the demo world: `make bench-dep_search`.

Compared, 30 steps and two seeds each: the method, and the method without its memory. Every other ablation: one run of
5 steps, to show that it trains and that all it logs is finite; their scores are not compared. The runs are validated
before and after training only. Beside them, one trained checkpoint is asked the held-out questions at several
capacities of its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from method_runs import NOT_COMPARED, Line, Plan, main, planned

from verl_agentic.bridge.settings import load_settings
from verl_agentic.core.trajectory import Episode
from verl_agentic.data.rows import read_rows
from verl_agentic.demo.evaluate import Asked, asked_from_rows, run_episodes
from verl_agentic.demo.questions import HEADLINE_MIX
from verl_agentic.demo.recipe import compose_recipe
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.methods import load_method
from verl_agentic.report.curves import Panel

METHOD = "dep_search"
MAIN, NO_MEMORY = "dep_search_cpu", "dep_search_no_memory_cpu"
ABLATIONS = (
    "dep_search_no_decompose_cpu",
    "dep_search_no_conclusion_cpu",
    "dep_search_sequential_cpu",
    "dep_search_kl_paper_cpu",
)
STEPS = 30
CAPACITIES = (1, 2, 3, 5, 20)
ACTIONS = ("Decompose", "Retrieve", "Memory", "Conclusion")
OF_MEMORY = ("stored", "recalled", "reused")


def capacities(work: Path, line: Line) -> dict[str, Any]:
    """Greedy figures by kind of question of the trained policy of seed 1, at each capacity of its memory."""
    run, found = work / f"{MAIN}-seed1", {}
    checkpoint = run / "checkpoints" / f"global_step_{STEPS}" / "actor" / "huggingface"
    config = compose_recipe(MAIN, [f"agentic.demo_dir={work / 'world'}"])
    asked = asked_from_rows([row for path in config.data.val_files for row in read_rows(Path(path))])
    search, knobs = CorpusSearch.from_file(work / "world" / "corpus.jsonl"), load_settings(config).reward
    for capacity in CAPACITIES:
        episodes = run_episodes(checkpoint, asked, search, METHOD, environment={"memory_capacity": capacity})
        found[str(capacity)] = by_kind(asked, episodes, knobs)
        line(f"capacity {capacity}: EM {found[str(capacity)]['headline']['em']:.3f} of the headline questions")
    return {"checkpoint": f"{run.name}, step {STEPS}", "capacities": found}


def by_kind(asked: Sequence[Asked], episodes: Sequence[Episode], knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Means of the method's scalars over the questions of each kind, and of the headline mix together."""
    groups: dict[str, list[dict[str, float]]] = {"headline": []}
    for question, episode in zip(asked, episodes, strict=True):
        metrics = load_method(METHOD).score(episode, question.answers, knobs, ()).metrics
        groups.setdefault(question.kind, []).append(metrics)
        if question.kind in HEADLINE_MIX:
            groups["headline"].append(metrics)
    return {
        kind: {"count": len(own), **{name: sum(m[name] for m in own) / len(own) for name in own[0]}}
        for kind, own in groups.items()
    }


def panels(record: Mapping[str, Any]) -> list[Panel]:
    """Actions and memory by kind of question after training, and what the capacity of the memory does."""
    found = []
    for recipe, arm in record["derived"]["arms"].items():
        kinds = arm["kinds"]
        lines = {tag: _across(kinds, lambda own, tag=tag: _after(own, f"actions/{tag}")) for tag in ACTIONS}
        shown = {tag: points for tag, points in lines.items() if points}
        found.append(Panel(f"Actions by question: {recipe}", "a question, greedy", {}, shown, "kind of question"))
    if MAIN in record["derived"]["arms"]:
        kinds = record["derived"]["arms"][MAIN]["kinds"]
        rate = {"entries recalled again / stored": _across(kinds, reuse_rate)}
        found.append(Panel(f"Reuse of the memory: {MAIN}", "share of the entries", {}, rate, "kind of question"))
    return found + (_capacity_panels(record["further"]["capacities"]) if "further" in record else [])


def _capacity_panels(capacities: Mapping[str, Any]) -> list[Panel]:
    kinds = list(next(iter(capacities.values())))
    em = {kind: [(capacity, own[kind]["em"]) for capacity, own in capacities.items()] for kind in kinds}
    rate = {
        kind: [
            (capacity, own[kind]["memory/reused"] / own[kind]["memory/stored"])
            for capacity, own in capacities.items()
            if own[kind]["memory/stored"]
        ]
        for kind in kinds
    }
    return [
        Panel("Exact match by capacity (greedy)", "EM", {}, em, "capacity of the memory"),
        Panel("Reuse of the memory by capacity", "share of the entries", {}, rate, "capacity of the memory"),
    ]


def _across(kinds: Mapping[str, Any], value: Callable[[Mapping[str, Any]], float | None]) -> list[tuple[str, float]]:
    found = {kind: value(own) for kind, own in kinds.items()}
    return [(kind, number) for kind, number in found.items() if number is not None]


def _after(own: Mapping[str, Any], name: str) -> float | None:
    return own[name]["after"]["mean"] if name in own else None


def reuse_rate(own: Mapping[str, Any]) -> float | None:
    """Entries that a recall brought back, over those stored; None where none was stored."""
    stored, reused = _after(own, "memory/stored"), _after(own, "memory/reused")
    return reused / stored if stored else None


PLAN = Plan(
    method=METHOD,
    runs=tuple(
        replace(run, overrides=(f"trainer.test_freq={run.steps}",))
        for run in (*planned((MAIN, NO_MEMORY), (1, 2), STEPS), *planned(ABLATIONS, (1,), 5, NOT_COMPARED))
    ),
    comparisons=((MAIN, NO_MEMORY),),
    further=capacities,
    panels=panels,
)

if __name__ == "__main__":
    sys.exit(main(PLAN, __doc__))
