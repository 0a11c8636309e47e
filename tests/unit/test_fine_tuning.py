"""Supervised training on traces: what is trained, what is written, what is refused."""

import dataclasses
import json

import pytest

pytest.importorskip("transformers")

import torch
import transformers

from verl_agentic.cli import main
from verl_agentic.core.trajectory import Row
from verl_agentic.demo.cold_start import policy_loss
from verl_agentic.demo.policy import PolicyShape, build_policy
from verl_agentic.demo.tokenizer import save_tokenizer
from verl_agentic.warm_start.fine_tuning import FineTuning, example, fine_tune
from verl_agentic.warm_start.trace_file import Trace, TraceRow, fingerprint, read_traces, write_traces

HEADER = {"method": "made", "recipe": "made_cpu", "source": "oracle", "settings": {}, "versions": {}}
# A session whose context was edited: two rows, each with policy tokens of its own.
EDITED = Trace(
    number=0,
    question="Where ?",
    answer="Oon",
    score=1.0,
    texts=("a b", "c", "d"),
    rows=(TraceRow((10, 11), (20, 21, 30, 22), (1, 1, 0, 1)), TraceRow((10, 20, 21), (23,), (1,))),
)
PLAIN = Trace(1, "Who ?", "Bram", 1.0, ("e",), (TraceRow((10, 12, 13), (24, 25, 26, 27, 28), (1, 0, 0, 1, 1)),))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    build_policy(save_tokenizer(folder), PolicyShape(width=64, heads=2, feed_forward=64, max_positions=64)).to(
        torch.bfloat16
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def traces(tmp_path, model):
    path = tmp_path / "traces.jsonl"
    write(path, model, EDITED, PLAIN)
    return path


def write(path, model, *sessions):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    write_traces(path, {**HEADER, "tokenizer": fingerprint(tokenizer)}, sessions, {"kept": len(sessions)})


def test_labels_are_on_the_tokens_of_the_policy_alone():
    assert example(EDITED.rows[0]) == {
        "input_ids": [10, 11, 20, 21, 30, 22],
        "attention_mask": [1, 1, 1, 1, 1, 1],
        "labels": [-100, -100, 20, 21, -100, 22],
    }


def test_a_file_of_traces_reads_back(traces):
    found = read_traces(traces)
    assert found.traces == (EDITED, PLAIN)
    assert (found.header["method"], dict(found.counts)) == ("made", {"kept": 2})


def test_every_row_of_a_session_is_trained_each_policy_token_once(traces, model, tmp_path):
    lines = []
    settings = FineTuning(epochs=1, learning_rate=1e-9, batch=3, device="cpu")
    record = fine_tune(traces, str(model), tmp_path / "out", settings, lines.append)
    assert record["counts"] == {
        "sessions": 2,
        "rows": 3,
        "rows_left_out": 0,
        "tokens": 18,
        "trained_tokens": 7,  # 3 and 1 of the edited session, 3 of the other
    }
    assert lines[0] == "sft: 3 rows of 2 sessions, 7 tokens with a loss"
    policy = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = [Row(**dataclasses.asdict(row), log_probs=None, turns=()) for row in (*EDITED.rows, *PLAIN.rows)]
    assert record["losses"] == [pytest.approx(policy_loss(policy, rows).item(), abs=1e-3)]


def test_micro_batches_weigh_every_token_the_same(traces, model, tmp_path):
    def weights(name, micro):
        settings = FineTuning(epochs=2, learning_rate=1e-2, batch=3, micro_batch=micro, device="cpu")
        fine_tune(traces, str(model), tmp_path / name, settings, lambda _: None)
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).lm_head.weight.float()

    assert torch.allclose(weights("whole", None), weights("parts", 1), atol=2e-3)


def test_the_command_writes_a_folder_that_loads_and_the_loss_falls(traces, model, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["sft", "--traces", traces, "--model", model, "--out", out, "--epochs", 20, "--batch", 3]
    assert main([*map(str, arguments), "--learning-rate", "1e-2", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"-> {out}")
    record = json.loads((out / "sft.json").read_text())
    assert record["losses"][-1] < 0.5 * record["losses"][0]
    assert record["traces"]["method"] == "made"
    assert record["settings"]["epochs"] == 20.0
    policy = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert policy.dtype == torch.bfloat16, "as the model that it started from"
    assert fingerprint(transformers.AutoTokenizer.from_pretrained(out)) == record["traces"]["tokenizer"]
    assert main([*map(str, arguments), "--learning-rate", "1e-2", "--device", "cpu", "--max-length", "6"]) == 0
    counts = json.loads((out / "sft.json").read_text())["counts"]
    assert (counts["rows"], counts["rows_left_out"], counts["trained_tokens"]) == (2, 1, 4)


def refused(capsys, traces, model, out, *options):
    assert main(["sft", "--traces", str(traces), "--model", str(model), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("verl-agentic sft: ")
    assert error.strip().count("\n") == 0
    assert not (out / "sft.json").exists()
    return error


def test_traces_of_another_tokenizer_are_refused(traces, model, tmp_path, capsys):
    write_traces(traces, {**HEADER, "tokenizer": "0123456789abcdef"}, [PLAIN], {})
    error = refused(capsys, traces, model, tmp_path / "out")
    assert "was written with another tokenizer (0123456789abcdef) than that of" in error


def test_rows_that_the_model_cannot_hold_are_refused(traces, model, tmp_path, capsys):
    long = TraceRow((10,) * 40, (20,) * 25, (1,) * 25)
    write(traces, model, dataclasses.replace(PLAIN, rows=(long,)))
    assert "has 65 tokens and" in (error := refused(capsys, traces, model, tmp_path / "out"))
    assert "leave long rows out with --max-length 64" in error
    assert "is longer than --max-length" in refused(capsys, traces, model, tmp_path / "out", "--max-length", "64")
    write(traces, model, dataclasses.replace(PLAIN, rows=(TraceRow((10,), (99_999,), (1,)),)))
    assert "holds the token 99999 and" in refused(capsys, traces, model, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], "is cut short: its last line is no footer"),
        (lambda lines: [lines[0], lines[1], lines[-1]], "holds 1 sessions of 2"),
        (lambda lines: [lines[0], lines[1][:-30], *lines[2:]], "line 2 of"),
        (lambda lines: [lines[0], lines[1].replace("[1, 1, 0, 1]", "[1, 1, 0]"), *lines[2:]], "and 3 mask entries"),
        (lambda lines: [lines[0], lines[1].replace("[1, 1, 0, 1]", "[1, 2, 0, 1]"), *lines[2:]], "else than 0 and 1"),
        (lambda lines: [lines[0], lines[1].replace("[20, 21, 30", "[20, -1, 30"), *lines[2:]], "not a whole number"),
        (
            lambda lines: [lines[0].replace('"format": 1', '"format": 2'), *lines[1:]],
            "has format 2, this version reads 1",
        ),
        (lambda lines: [lines[0].replace('"method"', '"mothed"'), *lines[1:]], "its header lacks 'method'"),
        (lambda lines: [lines[0], '{"sessions": 0, "counts": {}}'], "holds no session"),
        (lambda lines: [], "is not a file of traces"),
        (lambda lines: ["[1, 2]"], "is not a file of traces"),
    ],
)
def test_damaged_files_are_one_sentence(traces, model, tmp_path, capsys, change, said):
    lines = traces.read_text().splitlines()
    traces.write_text("".join(f"{line}\n" for line in change(lines)))
    assert said in refused(capsys, traces, model, tmp_path / "out")


def test_missing_files_and_options_without_sense_are_one_sentence(traces, model, tmp_path, capsys):
    out = tmp_path / "out"
    assert "does not exist" in refused(capsys, tmp_path / "none.jsonl", model, out)
    assert "cannot be loaded" in refused(capsys, traces, tmp_path / "none", out)
    assert "must be above 0, got 0" in refused(capsys, traces, model, out, "--epochs", "0")
    assert "must be a multiple of --micro-batch, got 5" in refused(capsys, traces, model, out, "--micro-batch", "5")
    if not torch.cuda.is_available():
        assert "has no CUDA device" in refused(capsys, traces, model, out, "--device", "cuda")
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert "was not written by this command" in refused(capsys, traces, model, out)
    assert (out / "mine.txt").read_text() == "mine"
