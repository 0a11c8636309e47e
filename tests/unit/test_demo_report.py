"""The demo's figures, from a metrics log written by hand in the form of verl's file logger."""

import json

import pytest

from verl_agentic.demo.prepare import PrepareConfig
from verl_agentic.demo.run import RunConfig, agreement, progress, train, training_command
from verl_agentic.demo.summary import summarize, table
from verl_agentic.report.curves import draw, search_agent_panels
from verl_agentic.report.metrics import read_log, series, validated
from verl_agentic.report.page import write_page

COUNTS = {"1hop": 4, "2hop": 4, "comparison": 2, "3hop": 5}


def validation(em):
    """Validation scalars as verl names them: the headline `acc` under val-core, the rest under val-aux."""
    data = {"val-agentic/infra_faults": 1}
    for kind, value in em.items():
        data[f"val-core/demo_{kind}/acc/mean@1"] = value
        for name, v in (("em", value), ("f1", value), ("format", 1.0), ("searches", 1.5)):
            data[f"val-aux/demo_{kind}/{name}/mean@1"] = v
    return data


def step(seconds, faults=0, difference=1e-6):
    return {
        "timing_s/step": seconds,
        "agentic/infra_faults": faults,
        "agentic/tokens_compared": 100,
        "agentic/em": 0.5,
        "agentic/searches": 1.2,
        "agentic/log_prob_difference_max": difference,
    }


@pytest.fixture
def log_file(tmp_path):
    records = [
        {"step": 0, "data": validation({"1hop": 1.0, "2hop": 0.0, "comparison": 0.5, "3hop": 0.0})},
        {"step": 1, "data": step(9.0)},
        {"step": 2, "data": step(4.0, faults=2, difference=3e-6)},
        {"step": 3, "data": {**step(5.0), **validation({"1hop": 1.0, "2hop": 0.75, "comparison": 0.5, "3hop": 0.2})}},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_summary_by_hand(log_file):
    summary = summarize(read_log(log_file), COUNTS, rl_seconds=60.04, total_seconds=120.0)
    # headline before: (4 * 1 + 4 * 0 + 2 * .5) / 10; after: (4 * 1 + 4 * .75 + 2 * .5) / 10; 3hop is apart
    assert summary["em_before"] == pytest.approx(0.5)
    assert summary["em_after"] == pytest.approx(0.8)
    assert (summary["em_2hop_before"], summary["em_2hop_after"]) == (0.0, 0.75)
    assert summary["steps"] == 3
    assert summary["median_step_seconds"] == 5.0
    assert summary["infra_faults"] == 4  # two of training, one of each validation
    assert summary["tokens_compared"] == 300
    assert summary["largest_log_prob_difference"] == 3e-6
    assert (summary["rl_seconds"], summary["total_seconds"]) == (60.0, 120.0)
    assert summary["after"]["3hop"]["em"] == 0.2
    lines = table(summary).splitlines()
    assert lines[2].split() == "headline 10 0.500 0.800 0.500 0.800 1.000 1.000 1.500 1.500".split()


def test_a_run_without_a_validation_before_training_has_no_before(log_file, tmp_path):
    late = tmp_path / "late.jsonl"
    late.write_text("\n".join(log_file.read_text().splitlines()[1:]))
    with pytest.raises(ValueError, match="no validation before training"):
        summarize(read_log(late), COUNTS, 1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; the run ended before its first step"),
        ('{"step": 1}\n', "line 1 of .* is not a record"),
        ("oops\n", "line 1 of .* is not a record"),
    ],
)
def test_a_broken_log_is_named(tmp_path, text, message):
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_log(tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="there is no metrics log"):
        read_log(tmp_path / "other.jsonl")


def test_series_and_validations_are_read_by_name(log_file):
    log = read_log(log_file)
    assert series(log, "timing_s/step") == [(1, 9.0), (2, 4.0), (3, 5.0)]
    assert validated(log, "demo_2hop", "em") == [(0, 0.0), (3, 0.75)]
    assert validated(log, "demo_2hop", "acc") == [(0, 0.0), (3, 0.75)]
    assert validated(log, "demo_2hop", "nothing") == []


def test_the_page_is_one_file_and_escapes_what_it_shows(log_file, tmp_path):
    picture, page = tmp_path / "curves.png", tmp_path / "page.html"
    draw(search_agent_panels(read_log(log_file), {"2hop": "demo_2hop"}), picture, "title")
    assert picture.read_bytes().startswith(b"\x89PNG")
    write_page(page, "a <b>", "run '<script>'", "<think>", picture, {"x": "</pre>"})
    html = page.read_text()
    assert "data:image/png;base64," in html
    assert "<script>" not in html
    assert html.count("</pre>") == 3
    assert "http://" not in html


def test_progress_shows_what_a_newcomer_wants():
    lines = []
    progress(
        "(TaskRunner pid=1) step:7 - agentic/em:0.5 - agentic/searches:np.float64(1.25) - timing_s/step:4.26",
        30,
        lines.append,
    )
    progress("verl-agentic: preflight passed\n", 30, lines.append)
    progress("some library's chatter step 3", 30, lines.append)
    assert lines == ["step 7/30  EM 0.50  searches 1.25  4.3 s", "verl-agentic: preflight passed"]


def test_how_far_rollout_and_training_differ_is_said_for_edited_sessions_apart():
    summary = {"largest_log_prob_difference": 3e-6, "log_prob_differences": {}}
    words = "largest difference between rollout and training log-probability"
    assert agreement(summary) == f"{words} 3.0e-06"
    edited = {**summary, "log_prob_differences": {"edited": 3e-6, "unedited": 1.5e-6}}
    assert agreement(edited) == f"{words} 3.0e-06 (3.0e-06 in edited sessions, 1.5e-06 in unedited sessions)"
    assert agreement({**summary, "largest_log_prob_difference": None}) == f"{words} not measured"


def test_the_printed_command_is_verls_own(tmp_path):
    config = RunConfig(PrepareConfig(out=tmp_path), steps=5, seed=3, started=0.0, overrides=("a.b=1",))
    command = training_command(config, "http://127.0.0.1:1")
    assert command[:4] == ["python", "-m", "verl.trainer.main_ppo", "+recipe=search_r1_cpu"]
    assert {"agentic.seed=3", "data.seed=3", "trainer.total_training_steps=5", "a.b=1"} <= set(command)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("verl-agentic: unknown metric 'bleu'", "unknown metric 'bleu'"),
        ("verl-agentic: preflight passed (packages)", "see .*train.log"),
        ("verl-agentic: preflight passed (packages)\nValueError: no", "ValueError: no"),
        ("verl-agentic: a late word\nValueError: early", "ValueError: early"),
    ],
)
def test_a_trainer_that_fails_is_quoted(tmp_path, monkeypatch, said, words):
    """A real process in the trainer's place."""
    script = f"import sys; print({said!r}); sys.exit(3)"
    monkeypatch.setattr("verl_agentic.demo.run.training_command", lambda config, url: ["python", "-c", script])
    config = RunConfig(PrepareConfig(out=tmp_path), steps=1, seed=1, started=0.0)
    with pytest.raises(RuntimeError, match=f"ended with status 3; its last words: .*{words}"):
        train(config, "http://127.0.0.1:1", lambda text: None)
