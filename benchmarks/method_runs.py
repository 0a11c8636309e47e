"""Training runs of a method's recipes on the demo world, for the benchmark of each method.

All runs of a method share one world, one index and one retriever server. A finished run is kept under
WORK/METHOD/RECIPE-seedN and not run again while its recipe, seed, steps, composed configuration, questions, start and
code are the same, so an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from method_curves import draw_curves
from method_figures import COMPARED, derived, run_figures
from method_tables import tables
from omegaconf import DictConfig, OmegaConf

from retriever_server.process import start_server
from verl_agentic.data.files import replacing
from verl_agentic.demo.fingerprint import source_files
from verl_agentic.demo.prepare import PrepareConfig, prepare_data
from verl_agentic.demo.run import (
    SERVER_OPTIONS,
    RunConfig,
    build_index,
    compose_run,
    prepare_start,
    report,
    train,
)
from verl_agentic.report.curves import Panel
from verl_agentic.report.page import write_page

NOT_COMPARED = "not compared"
VERSIONS = ("verl", "torch", "transformers", "ray", "verl-agentic")
# What a run executes, beside its method; a change of a comment alone is no change.
CODE = (
    *(f"verl_agentic/{room}/*.py" for room in ("core", "clients", "bridge", "cpu", "methods")),
    *(f"retriever_server/{name}.py" for name in ("text", "backends/base", "backends/bm25")),
)
STAMP = "finished.json"
Line = Callable[[str], None]


@dataclass(frozen=True)
class PlannedRun:
    """One training run: a recipe for the CPU, its seed and steps, and whether it is compared with others."""

    recipe: str
    seed: int
    steps: int
    status: str = COMPARED
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.recipe}-seed{self.seed}"


@dataclass(frozen=True)
class Plan:
    """What a benchmark runs.

    Attributes:
        method: names the results (METHOD_cpu.json) and the work folder.
        runs: in the order in which they are done.
        comparisons: pairs of compared recipes; the difference of the first to the second is reported.
        further: what the method measures beside its runs, from the folder of the finished ones; filed under "further".
        panels: what the picture shows beside the curves, from the whole record.
    """

    method: str
    runs: tuple[PlannedRun, ...]
    comparisons: tuple[tuple[str, str], ...]
    further: Callable[[Path, Line], dict[str, Any]] | None = None
    panels: Callable[[Mapping[str, Any]], list[Panel]] | None = None


def planned(recipes: Sequence[str], seeds: Sequence[int], steps: int, status: str = COMPARED) -> tuple[PlannedRun, ...]:
    """Each recipe with each seed; seed by seed, so that an early look compares like with like."""
    return tuple(PlannedRun(recipe, seed, steps, status) for seed in seeds for recipe in recipes)


def bench(plan: Plan, out: Path, work: Path, line: Line) -> Path:
    """Do the runs of a plan that are not done, writing the results anew after each; returns the results' path.

    Args:
        out: folder of the results.
        work: folder of the runs; those of the method are in a folder of its name.

    Raises:
        RuntimeError: some runs failed (after all were tried); says which and why.
    """
    work, results = work / plan.method, out / f"{plan.method}_cpu.json"
    prepare_data(preparation(work), line)
    done, failed = [], []
    with retriever(work / "world", line) as url:
        for number, run in enumerate(plan.runs, start=1):
            say = _prefixed(f"[{number}/{len(plan.runs)} {run.name}] ", line)
            try:
                finish(run, run_config(run, work), url, say)
                done.append(run)
            except (ValueError, RuntimeError) as error:  # the others are worth having all the same
                say(f"failed: {error}")
                failed.append(f"{run.name} ({error})")
            write_results(plan, done, work, results)
    if plan.further and not failed:
        write_results(plan, done, work, results, plan.further(work, line))
    write_pictures(plan, done, work, results)
    line(f"figures: {results}; curves: {results.with_suffix('.png')}; page: {results.with_suffix('.html')}")
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(plan.runs)} runs failed: {'; '.join(failed)}")
    return results


def preparation(work: Path) -> PrepareConfig:
    """The world that all runs share; cold starts are those that ship with the package."""
    return PrepareConfig(out=work / "world", cold_start="packaged")


def run_config(run: PlannedRun, work: Path) -> RunConfig:
    """What the demo's machinery is told of a run."""
    return RunConfig(preparation(work), run.steps, run.seed, time.time(), run.overrides, run.recipe, work / run.name)


@contextmanager
def retriever(world: Path, line: Line):
    """The address of a retriever server over the world's corpus."""
    with start_server(build_index(world, line), log_path=world / "retriever.log", options=SERVER_OPTIONS) as server:
        line(f"retriever at {server.url}")
        yield server.url


def finish(run: PlannedRun, config: RunConfig, url: str, line: Line) -> None:
    """Do a run, unless the same one is finished.

    Raises:
        ValueError, RuntimeError: the run cannot be composed or failed, in one sentence.
    """
    composed = compose_run(config)
    prepare_start(config, composed, line)
    due = fingerprint(run, config, composed)
    stamp = config.out / STAMP
    if kept(stamp) == due:
        line("finished before: kept")
        return
    stamp.unlink(missing_ok=True)
    config.out.mkdir(parents=True, exist_ok=True)
    report(config, composed, train(config, url, line), line)
    with replacing(stamp) as partial:
        partial.write_text(json.dumps(due, indent=1) + "\n", encoding="utf-8")


def kept(stamp: Path) -> dict[str, Any] | None:
    """What the stamp of a finished run says of it; None where there is none that can be read."""
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def fingerprint(run: PlannedRun, config: RunConfig, composed: DictConfig) -> dict[str, Any]:
    """What the result of a run depends on; a run is the same while this is."""
    plain = OmegaConf.to_yaml(composed, resolve=False, sort_keys=True)
    method = f"verl_agentic/methods/{composed.agentic.method}"
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "steps": run.steps,
        "configuration": hashlib.sha256(plain.encode()).hexdigest(),
        "code": code_fingerprint([*CODE, f"{method}/**/*.py", *scorer_file(composed)]),
        "prompts": _files_hash(source_files([f"{method}/prompts/**/*.txt"])),
        "questions": _files_hash(sorted(config.data.glob("*.parquet"))),
        "start": _files_hash(sorted(Path(composed.actor_rollout_ref.model.path).glob("*.safetensors"))),
    }


def scorer_file(composed: DictConfig) -> list[str]:
    """The package's file that holds the judge of a recipe, where it is one of the package's scorers."""
    module = str(composed.agentic.judge.scorer).partition(":")[0]
    return [f"{module.replace('.', '/')}.py"] if module.startswith("verl_agentic.") else []


def code_fingerprint(patterns: Sequence[str]) -> str:
    """SHA-256 over the syntax trees of the package's files that match: comments and layout do not count."""
    trees = (ast.dump(ast.parse(path.read_text(encoding="utf-8"))) for path in source_files(patterns))
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()


def _files_hash(paths: Sequence[Path]) -> str:
    digests = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def write_results(
    plan: Plan, done: Sequence[PlannedRun], work: Path, path: Path, further: Mapping[str, Any] | None = None
) -> None:
    """Write the figures of the runs that are done and what follows from them; the file is replaced as a whole."""
    runs = [run_figures(work / run.name, run.status) for run in done]
    record = {
        "date": date.today().isoformat(),
        "method": plan.method,
        "command": shlex.join(["python", *sys.argv]),
        "versions": {name: version(name) for name in VERSIONS},
        "machine": {"cores": os.cpu_count()},
        "missing": [run.name for run in plan.runs if run not in done],
        "derived": derived(runs, plan.comparisons),
        **({"further": further} if further else {}),
        "runs": runs,
    }
    with replacing(path) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def write_pictures(plan: Plan, done: Sequence[PlannedRun], work: Path, results: Path) -> None:
    """Curves of the compared runs as a picture, and everything on one page beside it."""
    record = json.loads(results.read_text(encoding="utf-8"))
    compared = [(run.name, work / run.name) for run in done if run.status == COMPARED]
    if not compared:
        return
    title, picture = f"{plan.method} on the demo world", results.with_suffix(".png")
    draw_curves(compared, picture, title, plan.panels(record) if plan.panels else [])
    write_page(results.with_suffix(".html"), title, record["command"], tables(record), picture, record)


def _prefixed(prefix: str, line: Line) -> Line:
    return lambda text: line("\n".join(prefix + part for part in text.splitlines() or [""]))


def main(plan: Plan, description: str) -> int:
    """Command line of a method's benchmark; status 2 and one sentence where a run fails."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("runs/bench"), help="folder of the runs")
    options = parser.parse_args()
    try:
        bench(plan, options.out, options.work, lambda text: print(text, flush=True))
    except (ValueError, RuntimeError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
