"""Traces of the oracle, by the command and by the demo's warm start."""

import json

import pytest

pytest.importorskip("verl")

import transformers

from verl_agentic.cli import main
from verl_agentic.core.outcomes import FaultCode, InfraFault, ModelFault, Ok
from verl_agentic.core.trajectory import Episode, Row, Turn
from verl_agentic.demo.oracles import methods_with_oracle
from verl_agentic.demo.prepare import packaged_cold_start
from verl_agentic.demo.recipe import cold_start_of, compose_recipe, warm_start_of
from verl_agentic.demo.warm_start import WarmStartConfig, prepare_warm_start
from verl_agentic.warm_start.collecting import Standard
from verl_agentic.warm_start.fine_tuning import FineTuning
from verl_agentic.warm_start.trace_file import fingerprint, read_traces

PACKAGED = packaged_cold_start("search_r1")
TOKENIZER = transformers.AutoTokenizer.from_pretrained(PACKAGED)


def run(out, *options, recipe="search_r1_cpu"):
    told = ["--recipe", recipe, "--out", out, "--source", "oracle", "--tokenizer", PACKAGED, *options]
    return main(["traces", *map(str, told)])


def row_text(row):
    return TOKENIZER.decode(row.response_ids)


@pytest.mark.parametrize("method", methods_with_oracle())
def test_traces_hold_every_token_of_the_policy_once_in_the_context_it_was_written_in(method, tmp_path, capsys):
    out = tmp_path / "traces.jsonl"
    assert run(out, "--count", 12, recipe=f"{method}_cpu") == 0
    found = read_traces(out)
    assert found.header["method"] == method
    assert (found.header["recipe"], found.header["source"]) == (f"{method}_cpu", "oracle")
    assert found.header["tokenizer"] == fingerprint(TOKENIZER)
    assert dict(found.counts) == {"kept": 12, "infra_fault": 0}
    assert [trace.number for trace in found.traces] == list(range(12))
    for trace in found.traces:
        assert trace.score == 1.0
        policy = [t for row in trace.rows for t, m in zip(row.response_ids, row.response_mask, strict=True) if m]
        beside = [row for row in trace.rows if all(row.response_mask) and "<|im_end|>" in row_text(row)]
        turns = TOKENIZER.encode(" ".join(trace.texts), add_special_tokens=False)
        assert policy == turns + [token for row in beside for token in row.response_ids]
        first = TOKENIZER.decode(trace.rows[0].prompt_ids)
        assert trace.question in first
        assert all(row.prompt_ids[:5] == trace.rows[0].prompt_ids[:5] for row in trace.rows)
    assert capsys.readouterr().out.splitlines()[-1] == f"traces: 12 of 12 sessions kept in {out}"


def test_a_run_that_was_stopped_goes_on_and_gives_the_same_file(tmp_path, capsys):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "traces.jsonl"
    assert run(whole, "--count", 100) == 0
    ledger = tmp_path / "whole.jsonl.sessions.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    (tmp_path / "traces.jsonl.sessions.jsonl").write_text("".join(lines[:51]) + '{"number": 50, "rea')
    capsys.readouterr()
    assert run(out, "--count", 100) == 0
    assert out.read_text() == whole.read_text()
    assert capsys.readouterr().out.splitlines()[0].startswith("traces: 50 sessions taken from")
    other = tmp_path / "other.jsonl"
    assert run(other, "--count", 100, "--seed", 1) == 0
    assert read_traces(other).traces[0].question != read_traces(out).traces[0].question


@pytest.mark.parametrize("line", ["{", "[]", '{"number": 0}', '{"number": 0, "reason": "kept", "trace": {"rows": 1}}'])
def test_a_damaged_record_is_one_sentence(tmp_path, capsys, line):
    out, ledger = tmp_path / "traces.jsonl", tmp_path / "traces.jsonl.sessions.jsonl"
    assert run(out, "--count", 2) == 0
    ledger.write_text(ledger.read_text() + line + "\n")
    assert run(out, "--count", 2) == 2
    error = capsys.readouterr().err
    assert f"{ledger} is damaged" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--count", 2], "was begun with count 3, this run has 2"),
        (["--count", 3, "agentic.budget.max_actions=3"], "was begun with budget"),
        (["--count", 3, "--threshold", 0], "--threshold above 0"),
        (["--count", 0], "--count must be at least 1, got 0"),
        (["--count", 3, "agentic.budget.max_action=3"], "max_action"),
        (["--count", 3, "--tokenizer", "/none/at/all"], "no tokenizer can be loaded from /none/at/all"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path, capsys, options, said):
    out = tmp_path / "traces.jsonl"
    assert run(out, "--count", 3) == 0
    before = out.read_text()
    capsys.readouterr()
    assert run(out, *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("verl-agentic traces: ")
    assert said in error
    assert error.count("\n") == 1
    assert out.read_text() == before
    assert run(out, "--count", 3, recipe="no_such_recipe") == 2
    assert "recipe 'no_such_recipe' cannot be composed" in capsys.readouterr().err


def episode(outcome, prediction, fault=None):
    turn = Turn(0, 1, "a", None, fault, 0)
    return Episode("Who ?", (Row((1,), (2,), (1,), None, (turn,)),), outcome, prediction)


def test_which_sessions_are_kept():
    golds = ["Bram Toll", "Toll"]
    standard = Standard()
    reason, trace = standard.judge(7, episode(Ok(), "the toll"), golds)
    assert (reason, trace.number, trace.answer, trace.score) == ("kept", 7, "the toll", 1.0)
    assert standard.judge(0, episode(Ok(), "Bram"), golds) == ("wrong_answer", None)
    assert Standard("f1", 0.6).judge(0, episode(Ok(), "Bram"), golds)[0] == "kept"  # 2 * 1 * 0.5 / 1.5
    assert Standard("f1", 0.7).judge(0, episode(Ok(), "Bram"), golds)[0] == "wrong_answer"
    assert standard.judge(0, episode(Ok(), "Toll", FaultCode.INVALID_EDIT), golds) == ("invalid_turn", None)
    assert standard.judge(0, episode(ModelFault(FaultCode.TRUNCATED), None), golds) == ("truncated", None)
    with pytest.raises(ValueError, match="not a session that ended"):
        standard.judge(0, episode(InfraFault("retriever", "down"), None), golds)


def test_where_a_recipe_starts():
    warm = compose_recipe("search_r1_cpu", ["actor_rollout_ref.model.path=${agentic.demo_dir}/sft/search_r1"])
    assert (warm_start_of(warm), cold_start_of(warm)) == ("search_r1", None)
    cold = compose_recipe("search_r1_cpu")
    assert (warm_start_of(cold), cold_start_of(cold)) == (None, "search_r1")


def test_the_demo_s_warm_start_is_kept_while_nothing_changes(tmp_path):
    composed, lines = compose_recipe("search_r1_cpu"), []
    training = FineTuning(epochs=1, learning_rate=5e-4, batch=8, device="cpu")

    def prepare(sessions, recipe="search_r1_cpu"):
        told = (PACKAGED, tmp_path / "sft" / "search_r1", recipe, composed)
        return prepare_warm_start(*told, WarmStartConfig(sessions, training=training), lines.append)

    folder = prepare(16)
    assert folder == tmp_path / "sft" / "search_r1"
    record = json.loads((folder / "sft.json").read_text())
    assert (record["counts"]["sessions"], record["model"]) == (16, str(PACKAGED))
    assert record["traces"]["recipe"] == "search_r1_cpu"
    transformers.AutoModelForCausalLM.from_pretrained(folder)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    prepare(16, "another_name_for_the_same")
    assert lines[-1] == f"warm start: unchanged in {folder}"
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    prepare(8)
    assert json.loads((folder / "sft.json").read_text())["counts"]["sessions"] == 8
