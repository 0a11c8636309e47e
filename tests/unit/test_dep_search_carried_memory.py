"""A memory that is carried from question to question at inference, by `demo evaluate --memory`."""

import json

import pytest

from verl_agentic.demo.__main__ import main
from verl_agentic.demo.prepare import packaged_cold_start
from verl_agentic.methods.dep_search.memory import Memory
from verl_agentic.methods.dep_search.memory_file import load, save

CHECKPOINT = packaged_cold_start("dep_search")


@pytest.fixture
def evaluate(demo_files, capsys):
    """Runs the command on the 4 questions of test_shared; returns its exit status and what it printed."""

    def run(*options, method="dep_search"):
        told = ["--checkpoint", CHECKPOINT, "--data", demo_files, "--splits", "test_shared", "--method", method]
        status = main(["evaluate", *map(str, told), *map(str, options)])
        return status, capsys.readouterr()

    return run


def test_the_memory_goes_from_question_to_question_and_into_the_file(evaluate, tmp_path):
    file = tmp_path / "new" / "memory.jsonl"
    status, _ = evaluate("--memory", file)
    assert status == 0
    first = load(file)
    assert len(first) >= 4  # facts of more than one question, which conclude one to three each
    status, _ = evaluate("--memory", file)
    assert status == 0
    again = load(file)
    # the second time the same facts are concluded: refreshed, not added
    assert {entry.text for entry in again} == {entry.text for entry in first}
    assert max(entry.written for entry in again) > max(entry.written for entry in first)


def test_a_capacity_holds_over_questions(evaluate, tmp_path):
    file = tmp_path / "memory.jsonl"
    assert evaluate("--memory", file, "--environment", "memory_capacity=2")[0] == 0
    assert len(load(file)) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("no memory\n", "is no memory file of dep_search"),
        (json.dumps({"format": "dep_search memory", "version": 2, "entries": 0}) + "\n", "has version 2"),
        (json.dumps({"format": "dep_search memory", "version": 1, "entries": 3}) + "\n", "should hold 3 entries"),
    ],
)
def test_a_file_that_is_no_memory_is_refused_and_left_as_it_is(evaluate, tmp_path, content, reason):
    file = tmp_path / "memory.jsonl"
    file.write_text(content)
    status, printed = evaluate("--memory", file)
    assert status == 2
    assert reason in printed.err.splitlines()[-1]
    assert printed.out == ""
    assert file.read_text() == content


def test_vectors_of_another_encoder_are_refused(evaluate, tmp_path):
    file = tmp_path / "memory.jsonl"
    memory = Memory(5)
    memory.write("a fact", [1.0, 0.0])
    save(memory, file)
    before = file.read_text()
    status, printed = evaluate("--memory", file)
    assert status == 2
    assert "a memory whose vectors have 2: they come from different encoders" in printed.err.splitlines()[-1]
    assert file.read_text() == before


def test_a_method_without_a_memory_says_so(evaluate, tmp_path):
    status, printed = evaluate("--memory", tmp_path / "memory.jsonl", method="search_r1")
    assert status == 2
    assert "method 'search_r1' has no memory that outlives a question" in printed.err


@pytest.mark.parametrize(
    ("knob", "reason"), [("capacity=2", "has no agentic.environment.capacity"), ("threshold=2", "between -1 and 1")]
)
def test_a_knob_that_does_not_fit_is_refused(evaluate, knob, reason):
    status, printed = evaluate("--environment", knob)
    assert status == 2
    assert reason in printed.err
