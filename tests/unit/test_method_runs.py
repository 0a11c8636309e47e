"""Benchmarks of methods: figures from logs written by hand, when a finished run is kept, when two recipes separate."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import method_curves
import method_figures
import method_runs
import method_tables
from method_runs import NOT_COMPARED, Plan, PlannedRun

from verl_agentic.demo.recipe import cold_start_of, compose_recipe, judge_of
from verl_agentic.demo.run import RunConfig, compose_run
from verl_agentic.demo.summary import summarize
from verl_agentic.report.metrics import LoggedStep, not_finite

COUNTS = {"1hop": 30, "2hop": 10}


def validation(em, seen, unedited):
    """What a validation logs of each kind: EM, and the statistics of its sessions."""
    data = {}
    for kind in COUNTS:
        values = {"em": em[kind], "f1": em[kind], "format": 1.0, "searches": 2.0, "rows": 1.5}
        values |= {"context/seen": seen[kind], "context/unedited": unedited[kind], "actions/search": 2.0}
        data |= {f"val-aux/demo_{kind}/{name}/mean@1": value for name, value in values.items()}
    return data


def trained(seconds, kept=0.7, difference=1e-6):
    return {
        "timing_s/step": seconds,
        "agentic/em": 0.5,
        "agentic/rows": 2.5,
        "agentic/tokens_compared": 10,
        "agentic/infra_faults": 0,
        "agentic/selection/kept_fraction": kept,
        "agentic/judge/missing_share": 0.0,
        "agentic/actions/search": 1.0,
        "agentic/context/seen": 50.0,
        "agentic/log_prob_difference_max": difference,
        "agentic/log_prob_difference_max_edited": difference,
        "agentic/log_prob_difference_max_unedited": difference / 2,
        "actor/entropy": 0.1,
    }


def log(em_after, seen_after=40.0):
    start = validation({"1hop": 0.5, "2hop": 0.1}, {"1hop": 30.0, "2hop": 50.0}, {"1hop": 30.0, "2hop": 70.0})
    seen = {"1hop": seen_after, "2hop": seen_after}
    end = validation({"1hop": em_after, "2hop": em_after}, seen, {"1hop": 80.0, "2hop": 80.0})
    return [(0, start), (1, trained(9.0)), (2, {**trained(5.0, kept=0.6, difference=3e-6), **end})]


def records(steps):
    return [LoggedStep(step, data) for step, data in steps]


def write_run(folder, steps, recipe, seed, judge=None):
    """A finished run as the demo leaves it."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in steps]
    (folder / "metrics.jsonl").write_text("".join(lines))
    noted = {"recipe": recipe, "seed": seed, "judge": judge}
    summary = {**summarize(records(steps), COUNTS, 1.0, 1.0), **noted}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_figures_of_a_run_by_hand(tmp_path):
    write_run(tmp_path / "a_cpu-seed1", log(0.8), "a_cpu", 1, judge="facts of the demo world")
    run = method_figures.run_figures(tmp_path / "a_cpu-seed1", "compared")
    assert (run["name"], run["recipe"], run["seed"], run["steps"]) == ("a_cpu-seed1", "a_cpu", 1, 2)
    assert run["judge"] == "facts of the demo world"
    assert run["finite"] is True
    # headline before: EM (30 * .5 + 10 * .1) / 40; context (30 * 30 + 10 * 50) / 40, unedited (30 * 30 + 10 * 70) / 40
    before = run["before"]["headline"]
    assert before["count"] == 40
    assert before["em"] == pytest.approx(0.4)
    assert before["context/seen"] == pytest.approx(35.0)
    assert before["context/unedited"] == pytest.approx(40.0)
    assert run["after"]["2hop"]["em"] == 0.8
    assert (run["after"]["2hop"]["rows"], run["after"]["2hop"]["actions/search"]) == (1.5, 2.0)
    assert run["training"]["selection/kept_fraction"] == pytest.approx(0.65)  # mean of the steps
    assert run["training"]["rows"] == 2.5
    assert run["log_prob_differences"] == {"edited": 3e-6, "unedited": 1.5e-6}  # largest of the steps
    assert run["largest_log_prob_difference"] == 3e-6


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_a_logged_number_that_is_not_finite_is_named(tmp_path, value):
    steps = [*log(0.8)[:2], (2, {**log(0.8)[2][1], "actor/grad_norm": value})]
    assert not_finite(records(steps)) == ["step 2: actor/grad_norm"]
    write_run(tmp_path / "a_cpu-seed1", steps, "a_cpu", 1)
    run = method_figures.run_figures(tmp_path / "a_cpu-seed1", "compared")
    assert run["finite"] is False
    assert run["not_finite"] == ["step 2: actor/grad_norm"]


def test_a_run_that_only_validates_has_figures():
    summary = summarize(records(log(0.8)[:1]), COUNTS, 1.0, 1.0)
    assert (summary["steps"], summary["median_step_seconds"], summary["largest_log_prob_difference"]) == (0, None, None)
    assert summary["after"] == summary["before"]
    assert summary["training"] == {}


def test_statistics_that_an_older_log_lacks_are_left_out():
    steps = [(step, {n: v for n, v in data.items() if "context" not in n}) for step, data in log(0.8)]
    summary = summarize(records(steps), COUNTS, 1.0, 1.0)
    assert "context/seen" not in summary["after"]["headline"]
    assert summary["after"]["headline"]["rows"] == 1.5


def test_newcombes_interval_as_published():
    """Newcombe (1998), table II, row (a), method 10: 56/70 - 48/80 has the interval .0524 to .3339."""
    low, high = method_figures.newcombe(56 / 70, 48 / 80, 70, 80)
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)
    # row (g): 10/10 - 0/10 has .6075 to 1
    low, high = method_figures.newcombe(1.0, 0.0, 10, 10)
    assert (round(low, 4), round(high, 4)) == (0.6075, 1.0)


def test_what_separates_by_hand():
    # .80 against .60 with 70 and 80 questions excludes 0 (above), so it does with 80 and 80, and both seeds are above
    assert method_figures.separation([0.82, 0.78], [0.62, 0.58], 80)["separates"] is True
    assert method_figures.separation([0.62, 0.58], [0.82, 0.78], 80)["separates"] is True
    # the same means, but a seed of the second reaches a seed of the first
    assert method_figures.separation([0.82, 0.78], [0.78, 0.42], 80)["separates"] is False
    # ordered seeds, but 2 of 10 questions: half the interval is over .3
    found = method_figures.separation([0.8, 0.8], [0.6, 0.6], 10)
    assert found["separates"] is False
    assert found["difference"] == pytest.approx(0.2)
    assert found["interval"][0] < 0 < found["interval"][1]
    assert method_figures.separation([0.5, 0.5], [0.5, 0.5], 1000)["separates"] is False


def results_of(tmp_path, plan, done):
    """What the benchmark writes after the runs `done`, which are given with their logs."""
    (tmp_path / "work" / "world").mkdir(parents=True, exist_ok=True)
    method_runs.write_results(plan, done, tmp_path / "work", tmp_path / "m_cpu.json")
    return json.loads((tmp_path / "m_cpu.json").read_text())


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Three runs of two recipes, and one that is not compared; the last is not done yet."""
    done = [PlannedRun("a_cpu", 1, 2), PlannedRun("b_cpu", 1, 2), PlannedRun("a_cpu", 2, 2)]
    logs = {"a_cpu-seed1": log(0.9, 40.0), "a_cpu-seed2": log(0.7, 44.0), "b_cpu-seed1": log(0.1, 60.0)}
    for run in done:
        write_run(tmp_path / "work" / run.name, logs[run.name], run.recipe, run.seed)
    plan = Plan("m", (*done, PlannedRun("c_cpu", 1, 2, NOT_COMPARED)), (("a_cpu", "b_cpu"), ("a_cpu", "c_cpu")))
    return plan, done


def test_what_follows_from_the_runs_by_hand(tmp_path, benchmark):
    record = results_of(tmp_path, *benchmark)
    assert record["missing"] == ["c_cpu-seed1"]
    arm = record["derived"]["arms"]["a_cpu"]["kinds"]["headline"]
    assert arm["em"]["after"] == {"mean": pytest.approx(0.8), "seeds": [pytest.approx(0.9), pytest.approx(0.7)]}
    (pair,) = record["derived"]["comparisons"]  # the other waits for its runs
    assert pair["em"]["headline"]["difference"] == pytest.approx(0.7)
    assert pair["em"]["headline"]["separates"] is True
    # seen: (40 + 44) / 2 = 42 against 80 of the same sessions unedited, and against 60 of the other
    assert pair["context"]["headline"] == {
        "to_unedited": pytest.approx(42 / 80),
        "to_b": pytest.approx(0.7),
        "shorter_in_every_seed": True,
    }
    assert [run["status"] for run in record["runs"]] == ["compared"] * 3


def test_tables_and_pictures_of_the_runs(tmp_path, benchmark):
    plan, done = benchmark
    record = results_of(tmp_path, plan, done)
    text = method_tables.tables(record)
    assert "Still missing: c_cpu-seed1." in text
    assert "| headline | 40 | `a_cpu` | 0.400 → 0.800 (0.900, 0.700) |" in text
    assert "| `a_cpu` | `b_cpu` | headline | +0.700 |" in text
    assert "| separates | x 0.53 | x 0.70 | yes |" in text
    words = method_tables.statements(record)
    assert words.startswith("- `a_cpu` against `b_cpu`, headline questions after training: EM 0.800 against 0.100")
    assert "separates. EM separates for: headline (+0.700), 1hop (+0.700), 2hop (+0.700)." in words
    assert "Tokens of context a turn: 42.0 against 60.0 (x 0.70, shorter in every seed)" in words
    assert words.endswith("against the same sessions had nothing been edited away: x 0.53.")
    assert "| `a_cpu-seed1` | 2 | compared | yes | 3.0e-06 | 1.5e-06 | 0.65 | 0 | 0.000 | 9.0 |" in text
    assert "| `a_cpu` | 2.00 (2.00) |" in method_tables.actions(record, ["a_cpu", "none_cpu"])
    method_runs.write_pictures(plan, done, tmp_path / "work", tmp_path / "m_cpu.json")
    assert (tmp_path / "m_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (tmp_path / "m_cpu.html").read_text()


def test_tables_before_any_run(tmp_path, benchmark):
    record = results_of(tmp_path, benchmark[0], [])
    assert "Still missing: a_cpu-seed1, b_cpu-seed1, a_cpu-seed2, c_cpu-seed1." in method_tables.tables(record)


def test_the_mean_of_curves_at_each_step():
    assert method_curves.mean_series([[(1, 2.0), (2, 4.0)], [(2, 6.0)]]) == [(1, 2.0), (2, 5.0)]


def test_greedy_em_is_weighted_by_the_questions(tmp_path):
    write_run(tmp_path / "a", log(0.8), "a_cpu", 1)
    found = method_curves.greedy_em(records(log(0.8)), tmp_path / "a")
    assert found == [(0, pytest.approx(0.4)), (2, pytest.approx(0.8))]


@pytest.fixture
def trainer(monkeypatch):
    """Counts what is trained; composing, files and fingerprints are real."""
    trained_runs = []
    monkeypatch.setattr(method_runs, "train", lambda config, url, line: trained_runs.append(config.seed) or 1.0)
    monkeypatch.setattr(method_runs, "report", lambda config, composed, seconds, line: None)
    return trained_runs


def test_a_finished_run_is_kept_while_nothing_that_it_depends_on_changes(demo_files, tmp_path, trainer, monkeypatch):
    monkeypatch.setattr(method_runs, "prepare_start", lambda config, composed, line: None)

    def finish(run):
        prepared = method_runs.PrepareConfig(out=demo_files, cold_start="packaged")
        folder = tmp_path / run.name
        config = RunConfig(prepared, run.steps, run.seed, 0.0, run.overrides, run.recipe, folder)
        method_runs.finish(run, config, "http://127.0.0.1:1", lambda text: None)
        return len(trainer)

    run = PlannedRun("search_r1_cpu", 1, 2)
    assert finish(run) == 1
    assert finish(run) == 1  # kept
    assert finish(PlannedRun("search_r1_cpu", 2, 2)) == 2  # another seed has its own folder
    assert finish(PlannedRun("search_r1_cpu", 1, 3)) == 3  # other steps
    assert finish(PlannedRun("search_r1_cpu", 1, 3)) == 3
    assert finish(PlannedRun("search_r1_cpu", 1, 3, overrides=("agentic.reward.forgery=-0.2",))) == 4
    with monkeypatch.context() as patched:
        patched.setattr(method_runs, "code_fingerprint", lambda patterns: "other code")
        assert finish(PlannedRun("search_r1_cpu", 1, 3)) == 5
    (tmp_path / run.name / method_runs.STAMP).write_text("{cut sho")
    assert finish(PlannedRun("search_r1_cpu", 1, 3)) == 6


def test_a_run_that_fails_leaves_no_stamp(demo_files, tmp_path, trainer, monkeypatch):
    def fail(config, url, line):
        raise RuntimeError("the trainer ended with status 1")

    monkeypatch.setattr(method_runs, "train", fail)
    monkeypatch.setattr(method_runs, "prepare_start", lambda config, composed, line: None)
    run = PlannedRun("search_r1_cpu", 1, 2)
    config = RunConfig(method_runs.PrepareConfig(out=demo_files), 2, 1, 0.0, (), run.recipe, tmp_path / run.name)
    with pytest.raises(RuntimeError, match="ended with status 1"):
        method_runs.finish(run, config, "http://127.0.0.1:1", lambda text: None)
    assert not (tmp_path / run.name / method_runs.STAMP).exists()


def test_a_comment_is_no_change_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(method_runs, "source_files", lambda patterns: [tmp_path / "a.py"])
    hashes = []
    for text in ("x = 1\n", "x  =  1  # why\n", "x = 2\n"):
        (tmp_path / "a.py").write_text(text)
        hashes.append(method_runs.code_fingerprint(["a.py"]))
    assert hashes[0] == hashes[1] != hashes[2]


def test_runs_are_planned_seed_by_seed():
    runs = method_runs.planned(("a", "b"), (1, 2), 30)
    assert [run.name for run in runs] == ["a-seed1", "b-seed1", "a-seed2", "b-seed2"]
    assert {run.status for run in runs} == {"compared"}


def test_what_a_recipe_needs_of_the_demo():
    config = compose_recipe("search_r1_cpu", ["agentic.demo_dir=somewhere"])
    assert cold_start_of(config) == "search_r1"
    assert judge_of(config) is None
    assert cold_start_of(compose_recipe("search_r1")) is None
    with pytest.raises(ValueError, match=r"recipe 'search_r9_cpu' cannot be composed: .*Could not find"):
        compose_recipe("search_r9_cpu")


def test_the_composed_run_is_that_of_the_command(tmp_path):
    prepared = method_runs.PrepareConfig(out=tmp_path / "world")
    config = RunConfig(prepared, 5, 3, 0.0, ("data.train_batch_size=4",), "search_r1_cpu", tmp_path / "run")
    composed = compose_run(config)
    assert composed.agentic.seed == composed.data.seed == 3
    assert composed.data.train_batch_size == 4
    assert composed.trainer.total_training_steps == 5
    assert composed.agentic.demo_dir == str(tmp_path / "world")
    assert composed.trainer.default_local_dir == str(tmp_path / "run" / "checkpoints")
