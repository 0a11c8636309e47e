"""Wheel, PEP 660 editable and compat editable installs each compose a recipe through verl's own command."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

PLACES = (
    "import verl_agentic, recipes, retriever_server;"
    "print(*(module.__file__ for module in (verl_agentic, recipes, retriever_server)), sep='\\n')"
)
FOUND_BY_HYDRA = (
    "from hydra._internal.core_plugins import importlib_resources_config_source as pkg;"
    "print(pkg.ImportlibResourcesConfigSource('test', 'pkg://recipes').is_config('recipe/search_r1'))"
)


def assert_composes(environment, own_place: Path) -> None:
    files = environment.python("-c", PLACES).stdout.split()
    assert [Path(file).is_relative_to(own_place) for file in files] == [True, True, True], files
    assert environment.python("-c", FOUND_BY_HYDRA).stdout.strip() == "True"
    shown = environment.main_ppo("+recipe=search_r1")
    assert shown.returncode == 0, shown.stderr
    assert "verl-agentic:" not in shown.stderr
    job = yaml.safe_load(shown.stdout)
    assert job["agentic"]["method"] == "search_r1"
    assert job["trainer"]["v1"]["trainer_mode"] == "agentic"
    assert job["actor_rollout_ref"]["rollout"]["name"] == "vllm"
    assert "recipe" not in job


def test_wheel_composes_the_recipe(wheel_environment):
    assert_composes(wheel_environment, wheel_environment.site_packages)


@pytest.mark.parametrize("mode", ["lenient", "compat"])
def test_editable_install_composes_the_recipe(editable_environment: Callable, mode: str, tmp_path: Path):
    environment = editable_environment(mode)
    installed = {entry.name for entry in environment.site_packages.iterdir()}
    assert not installed & {"verl_agentic", "recipes", "retriever_server"}
    finder = {name for name in installed if name.startswith("__editable___verl_agentic") and name.endswith(".py")}
    assert len(finder) == {"lenient": 1, "compat": 0}[mode]
    assert_composes(environment, environment.root.parent)


def test_recipe_and_keys_of_a_user_folder_are_known(wheel_environment, tmp_path: Path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("# @package _global_\nagentic:\n  mine:\n    weight: 1\n")
    shown = wheel_environment.main_ppo("--config-dir", str(tmp_path), "+recipe=mine", "agentic.mine.weight=3")
    assert shown.returncode == 0, shown.stderr
    assert yaml.safe_load(shown.stdout)["agentic"] == {"mine": {"weight": 3}}


def test_misspelt_recipe_is_refused_with_the_nearest_name(wheel_environment):
    refused = wheel_environment.main_ppo("+recipe=serch_r1")
    assert refused.returncode == 1
    assert refused.stdout == ""
    last_line = refused.stderr.strip().splitlines()[-1]
    assert last_line.startswith("verl-agentic: unknown recipe 'serch_r1'; did you mean 'search_r1'? (available: ")


def test_misspelt_key_is_refused_with_the_nearest_name(wheel_environment):
    refused = wheel_environment.main_ppo("+recipe@_global_=search_r1", "+agentic.budgt.turn_tokens=3")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "unknown key 'agentic.budgt.turn_tokens'; did you mean 'agentic.budget.turn_tokens'?" in refused.stderr
