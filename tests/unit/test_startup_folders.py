"""Which folders count when recipes and keys are looked up, and what their files define."""

from pathlib import Path

import pytest

from verl_agentic.startup.config_folders import RECIPES, visible_folders
from verl_agentic.startup.known_keys import all_paths, is_known, known_keys


def test_installed_recipes_lie_beside_the_package():
    assert (RECIPES / "recipe" / "search_r1.yaml").is_file()
    assert (RECIPES / "agentic" / "base.yaml").is_file()


def test_search_path_entries_of_each_scheme(tmp_path: Path):
    entries = [
        f"file://{tmp_path}",
        "pkg://hydra.conf",
        "structured://",
        "pkg://no_such_package.at_all",
        "file:///no/such",
    ]
    first, second = visible_folders(entries, [])
    assert first == tmp_path
    assert (second / "__init__.py").is_file()
    assert second.parts[-2:] == ("hydra", "conf")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-dir", "{}"],
        ["--config-dir={}"],
        ["-cd", "{}"],
        ["hydra.searchpath=[file://{}]"],
        ["+recipe=x", "++hydra.searchpath=['pkg://no_such_package', \"{}\"]"],
    ],
)
def test_folders_named_on_the_command_line(tmp_path: Path, arguments: list[str]):
    assert visible_folders([], [argument.format(tmp_path) for argument in arguments]) == [tmp_path]


def test_search_path_set_in_the_users_own_config_file(tmp_path: Path):
    (tmp_path / "more").mkdir()
    (tmp_path / "mine.yaml").write_text(f"hydra:\n  searchpath: [file://{tmp_path / 'more'}]\n")
    arguments = ["--config-dir", str(tmp_path), "--config-name", "mine"]
    assert visible_folders([], arguments) == [tmp_path, tmp_path / "more"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("agentic/base.yaml", "memory: {size: 3}"),
        ("agentic/base.yaml", "# comment\n# @package _global_\nagentic: {memory: {size: 3}}"),
        ("agentic/part.yaml", "# @package agentic.memory\nsize: 3"),
        ("agentic/memory/stack.yaml", "size: 3"),
        ("agentic/memory/stack.yaml", "# @package _group_\nsize: 3"),
        ("recipe/x.yaml", "# @package _global_\ndefaults: [{override /model: m}]\nagentic: {memory: {size: 3}}"),
    ],
)
def test_keys_are_read_at_the_package_of_their_file(tmp_path: Path, file: str, text: str):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert known_keys([tmp_path]) == {"memory": {"size": 3}}


def test_paths_and_membership():
    tree = {"budget": {"turn_tokens": 5}, "headers": {}, "judge": None, "urls": ["a"]}
    assert list(all_paths(tree)) == [
        "agentic.budget",
        "agentic.budget.turn_tokens",
        "agentic.headers",
        "agentic.judge",
        "agentic.urls",
    ]
    assert is_known(tree, ["budget"])
    assert is_known(tree, ["headers", "any", "depth"])
    assert is_known(tree, ["judge", "url"])
    assert is_known(tree, ["urls", "0"])
    assert not is_known(tree, ["budget", "turn_tokens", "x"])
    assert not is_known(tree, ["Budget"])
