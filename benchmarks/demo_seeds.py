"""Seeds of the demo's reinforcement learning, one run each, from the same cold start.

    python benchmarks/demo_seeds.py --out benchmarks/results --seeds 1 2 3

A seed that is finished is kept, so an interrupted benchmark goes on where it stopped. Writes demo_seeds.json (figures,
versions, date), demo_seeds.png (curves) and demo_seeds.md (the table that README and docs show).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from verl_agentic.report.curves import Panel, draw
from verl_agentic.report.metrics import read_log, series

KINDS = ("headline", "1hop", "2hop", "comparison", "3hop", "4hop")
PARTS = ("gen", "old_log_prob", "adv", "update_actor", "update_weights", "step")


def run_seed(seed: int, steps: int, work: Path) -> dict[str, Any]:
    """The summary of one seed; runs it unless it is finished."""
    out = work / f"seed{seed}"
    summary = out / "summary.json"
    if not (summary.is_file() and json.loads(summary.read_text())["steps"] == steps):
        command = [sys.executable, "-m", "verl_agentic.demo", "run", "--out", str(out), "--cold-start", "packaged"]
        subprocess.run([*command, "--steps", str(steps), "--rl-seed", str(seed)], check=True)
    log = [record for record in read_log(out / "metrics.jsonl") if record.step > 1]
    seconds = {part: _median([value for _, value in series(log, f"timing_s/{part}")]) for part in PARTS}
    return {**json.loads(summary.read_text()), "median_seconds": seconds}


def _median(values: list[float]) -> float:
    return round(sorted(values)[len(values) // 2], 3)


def markdown(runs: list[dict[str, Any]]) -> str:
    """The table of all seeds: EM and searches per question before and after, per kind."""
    head = "| questions | n | " + " | ".join(f"seed {run['seed']}" for run in runs) + " |"
    lines = [head, "|---|---|" + "---|" * len(runs)]
    for kind in KINDS:
        cells = [
            f"{run['before'][kind]['em']:.3f} → {run['after'][kind]['em']:.3f} "
            f"({run['before'][kind]['searches']:.2f} → {run['after'][kind]['searches']:.2f})"
            for run in runs
        ]
        lines.append(f"| {kind} | {runs[0]['before'][kind]['count']} | " + " | ".join(cells) + " |")
    seconds = ["| seconds a step | |"] + [f" {run['median_seconds']['step']:.1f} |" for run in runs]
    return "\n".join([*lines, "".join(seconds)]) + "\n"


def curves(seeds: list[int], work: Path, path: Path) -> None:
    """Sampled training score and searches per question of every seed."""
    logs = {f"seed {seed}": read_log(work / f"seed{seed}" / "metrics.jsonl") for seed in seeds}
    panels = [
        Panel(title, label, {name: series(log, key) for name, log in logs.items()}, {})
        for title, label, key in (
            ("Training score (temperature 1)", "EM", "agentic/em"),
            ("Searches per question (temperature 1)", "searches", "agentic/searches"),
            ("Entropy of the policy", "nats", "actor/entropy"),
        )
    ]
    greedy = {name: series(log, "val-aux/demo_2hop/em/mean@1") for name, log in logs.items()}
    draw([*panels, Panel("2-hop EM (greedy, held out)", "EM", {}, greedy)], path, "search_r1_cpu on the demo world")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    runs = [run_seed(seed, options.steps, options.work) for seed in options.seeds]
    options.out.mkdir(parents=True, exist_ok=True)
    versions = {name: version(name) for name in ("verl", "torch", "transformers", "ray")}
    record = {"date": date.today().isoformat(), "recipe": "search_r1_cpu", "versions": versions, "runs": runs}
    (options.out / "demo_seeds.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (options.out / "demo_seeds.md").write_text(markdown(runs), encoding="utf-8")
    curves(options.seeds, options.work, options.out / "demo_seeds.png")
    print(markdown(runs))


if __name__ == "__main__":
    main()
