"""A method's benchmark with real training: interrupted by a run that fails, and gone on with."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from method_runs import NOT_COMPARED, Plan, PlannedRun, bench

pytestmark = pytest.mark.slow


def test_a_benchmark_goes_on_where_it_stopped(tmp_path):
    whole = PlannedRun("search_r1_cpu", 1, 1, overrides=("trainer.test_freq=-1",))
    only_asked = PlannedRun("search_r1_cpu", 2, 1, NOT_COMPARED, ("trainer.val_only=true",))
    broken = PlannedRun("search_r1_cpu", 3, 1, overrides=("agentic.reward.metric=bleu",))
    out, said = tmp_path / "results", []
    with pytest.raises(RuntimeError, match=r"1 of 3 runs failed: search_r1_cpu-seed3 .*unknown metric 'bleu'"):
        bench(Plan("trial", (whole, broken, only_asked), ()), out, tmp_path / "work", said.append)
    first = json.loads((out / "trial_cpu.json").read_text())
    assert first["missing"] == ["search_r1_cpu-seed3"]
    assert [(run["seed"], run["steps"], run["finite"]) for run in first["runs"]] == [(1, 1, True), (2, 0, True)]
    assert not any("kept" in text for text in said)

    said.clear()
    bench(Plan("trial", (whole, only_asked), ()), out, tmp_path / "work", said.append)
    assert sum("finished before: kept" in text for text in said) == 2
    second = json.loads((out / "trial_cpu.json").read_text())
    assert second["missing"] == []
    assert second["runs"] == first["runs"]
    assert (out / "trial_cpu.png").is_file()
    assert (out / "trial_cpu.html").is_file()
