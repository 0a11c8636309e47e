"""dep_search: the file of a cross-question memory."""

import json
import os

import pytest

from verl_agentic.methods.dep_search.memory import Entry, Memory
from verl_agentic.methods.dep_search.memory_file import load, save

HEADER = '{"format": "dep_search memory", "version": 1, "entries": 1}'
ENTRY = '{"text": "a", "vector": [1.0, 0.5], "written": 1, "used": 2}'


@pytest.fixture
def memory():
    made = Memory(3)
    made.write("Łódź lies in Poland.", (1.0, 0.0))
    made.write('A "quoted"\nfact\u2028of two lines', (0.1, 0.7))
    made.recall((1.0, 0.0), recent=0, threshold=0.5)
    return made


def test_what_is_saved_is_loaded(memory, tmp_path):
    path = tmp_path / "new" / "memory.jsonl"
    save(memory, path)
    assert Memory(3, load(path)).entries == memory.entries
    assert sorted(os.listdir(path.parent)) == ["memory.jsonl"]


def test_the_file_by_hand(tmp_path):
    path = tmp_path / "memory.jsonl"
    save(Memory(2, [Entry("ä", (1.0, 0.5), 1, 2)]), path)
    assert path.read_text(encoding="utf-8") == HEADER + "\n" + ENTRY.replace('"a"', '"ä"') + "\n"


def test_an_empty_memory(tmp_path):
    save(Memory(2), tmp_path / "memory.jsonl")
    assert load(tmp_path / "memory.jsonl") == ()


def test_a_smaller_memory_takes_the_last_used(memory, tmp_path):
    save(memory, tmp_path / "memory.jsonl")
    assert [entry.text for entry in Memory(1, load(tmp_path / "memory.jsonl")).entries] == ["Łódź lies in Poland."]


def test_a_save_that_fails_leaves_the_old_file(memory, tmp_path):
    path = tmp_path / "memory.jsonl"
    save(memory, path)
    before = path.read_bytes()
    memory.write("half a pair \ud800", (0.0, 1.0))  # not to be written as UTF-8
    with pytest.raises(UnicodeEncodeError):
        save(memory, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["memory.jsonl"]


def test_a_missing_file_is_no_empty_memory(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "memory.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "its first line is no header"),
        ("[]\n", "its first line is no header"),
        (ENTRY, "its first line is no header"),
        ('{"format": "dep_search memory", "version": true, "entries": 0}', "its first line is no header"),
        ('{"format": "dep_search memory", "version": 2, "extra": 0}', "has version 2 and this program reads up to 1"),
        (HEADER, "should hold 1 entries and holds 0"),
        (f"{HEADER}\n{ENTRY}\n{ENTRY}\n", "should hold 1 entries and holds 2"),
        (f"{HEADER}\n{ENTRY[:-5]}", "line 2 of the memory file .* is no entry"),
        (f"{HEADER}\n[1]", "line 2 of the memory file .* is no entry"),
        (HEADER + "\n" + ENTRY.replace("1.0", '"1.0"'), "line 2 of the memory file .* is no entry"),
        (HEADER + "\n" + ENTRY.replace("1.0", "NaN"), "line 2 of the memory file .* is no entry"),
        (HEADER + "\n" + ENTRY.replace("1.0, 0.5", ""), "line 2 of the memory file .* is no entry"),
        (HEADER + "\n" + ENTRY.replace('"used"', '"seen"'), "line 2 of the memory file .* is no entry"),
        (HEADER + "\n" + ENTRY.replace('"a"', '""'), "line 2 of the memory file .* is no entry"),
        (HEADER.replace(": 1}", ": 2}") + f"\n{ENTRY}\n{ENTRY}", "two entries of a memory say 'a'"),
        (
            HEADER.replace(": 1}", ": 2}") + f'\n{ENTRY}\n{{"text": "b", "vector": [1], "written": 3, "used": 3}}',
            "a vector of 1 numbers in a memory whose vectors have 2",
        ),
    ],
)
def test_what_is_no_whole_memory_is_refused_and_kept(content, message, tmp_path):
    path = tmp_path / "memory.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_text(encoding="utf-8") == content


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "memory.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="its first line is no header"):
        load(tmp_path / "memory.jsonl")


def test_each_line_of_the_file_is_json(memory, tmp_path):
    save(memory, tmp_path / "memory.jsonl")
    lines = (tmp_path / "memory.jsonl").read_text(encoding="utf-8").split("\n")
    assert [type(json.loads(line)) for line in lines[:-1]] == [dict] * 3
    assert lines[-1] == ""
