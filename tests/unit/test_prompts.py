"""Prompt packs: what a folder must hold, and what is refused."""

import pytest

from verl_agentic.bridge.prompts import load_pack
from verl_agentic.core.environment import Passage
from verl_agentic.methods import discover, load_method

TEXTS = {
    "user": "Q: {question}\n",
    "passage": "{rank} {title} {text} {contents}\n",
    "observation": "<i>{passages}</i>\n",
    "correction": "no\n",
    "last_turn": "now\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / "pack").mkdir(exist_ok=True)
        (tmp_path / "pack" / f"{name}.txt").write_text(text)
    return tmp_path


def test_a_pack_is_read_without_the_files_final_newline(folder):
    pack = load_pack(folder, "pack")
    assert pack.user == "Q: {question}"
    assert pack.passage_separator == "\n"
    assert pack.observation_parts() == ("<i>", "</i>")
    assert pack.render_passage(1, Passage("7", '"T"\nx {y}', None, "T", "x {y}")) == '1 T x {y} "T"\nx {y}'


def test_a_pack_of_the_users_is_a_path(folder):
    assert load_pack(folder / "elsewhere", str(folder / "pack")).correction == "no"


def test_unknown_pack_names_the_nearest(folder):
    with pytest.raises(ValueError, match="no prompt pack 'pakc'; did you mean 'pack'"):
        load_pack(folder, "pakc")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("user", "no question\n", "placeholder .*question.* is missing"),
        ("user", "{question} {name}\n", "unknown placeholder .*name"),
        ("passage", "{oops}\n", "unknown placeholder .*oops.*allowed: .*contents"),
        ("passage", "a { b\n", "passage.txt: .*write a brace that is meant as such twice"),
        ("observation", "nothing\n", "passages. must occur once, it occurs 0 times"),
        ("observation", "{passages!r}\n", "passages. must occur once, it occurs 0 times"),
    ],
)
def test_placeholders_are_checked(folder, name, text, message):
    (folder / "pack" / f"{name}.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_pack(folder, "pack")


def test_braces_of_texts_that_are_not_formatted_are_just_braces(folder):
    (folder / "pack" / "correction.txt").write_text("{oops} {{x}}\n")
    assert load_pack(folder, "pack").correction == "{oops} {{x}}"


def test_a_missing_file_is_named(folder):
    (folder / "pack" / "last_turn.txt").unlink()
    with pytest.raises(ValueError, match=r"lacks the file .*last_turn\.txt"):
        load_pack(folder, "pack")


@pytest.mark.parametrize("method", discover())
@pytest.mark.parametrize("pack", ["natural", "demo"])
def test_every_method_ships_both_packs(method, pack):
    load_pack(load_method(method).prompts, pack)
