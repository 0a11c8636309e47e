"""What the wheel holds and says about itself."""

import re
import subprocess
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import verl_agentic
from verl_agentic.startup.registration import SUPPORTED_VERL

REPOSITORY = Path(__file__).resolve().parents[2]
TOP_LEVEL = ("recipes", "retriever_server", "verl_agentic")


def files_in_tree() -> set[str]:
    files = {file for name in TOP_LEVEL for file in (REPOSITORY / name).rglob("*") if file.is_file()}
    return {str(file.relative_to(REPOSITORY)) for file in files if "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: set[str]) -> Message:
    name = next(name for name in names if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())


def all_requirements(metadata: Message) -> list[Requirement]:
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def requirements(metadata: Message, extra: str) -> set[str]:
    added = [each for each in all_requirements(metadata) if each.marker and each.marker.evaluate({"extra": extra})]
    return {str(each).partition(";")[0].strip() for each in added}


def test_wheel_holds_every_file_of_the_packages_and_no_other(names: set[str]):
    held = {name for name in names if ".dist-info/" not in name}
    assert held == files_in_tree()
    assert {
        "recipes/agentic/base.yaml",
        "recipes/recipe/search_r1.yaml",
        "verl_agentic/demo/checkpoints/search_r1/model.safetensors",
        "verl_agentic/methods/search_r1/prompts/demo/user.txt",
        "verl_agentic/plugin.py",
    } <= held


def test_every_folder_with_modules_is_a_package():
    folders = {REPOSITORY / Path(name).parent for name in files_in_tree() if name.endswith(".py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_tests_are_no_package():
    """verl's wheel installs a top-level package `tests`; one of that name here would hide it or be hidden by it."""
    assert not (REPOSITORY / "tests" / "__init__.py").exists()


def test_version_comes_from_the_package(metadata: Message):
    assert metadata["Version"] == verl_agentic.__version__ == "0.1.0"


def test_no_extra_pins_torch(metadata: Message):
    names = {each.name for each in all_requirements(metadata)}
    assert "verl" in names
    assert "torch" not in names


def test_all_is_every_extra_except_those_that_are_installed_apart(metadata: Message):
    extras = {"train", "retriever", "onnx", "judge", "report", "embedded", "dev"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras | {"all", "ray", "vllm"}
    assert requirements(metadata, "all") == set().union(*(requirements(metadata, extra) for extra in extras))
    assert requirements(metadata, "vllm") == {"verl[vllm]<0.10,>=0.9"}


def test_checked_range_of_verl_is_the_required_one(metadata: Message):
    verl = next(each for each in all_requirements(metadata) if each.name == "verl")
    assert verl.specifier == SpecifierSet(SUPPORTED_VERL)


def test_entry_points(wheel: Path, names: set[str]):
    name = next(name for name in names if name.endswith("entry_points.txt"))
    lines = zipfile.ZipFile(wheel).read(name).decode().split("\n")
    assert [line for line in lines if line] == [
        "[console_scripts]",
        "verl-agentic = verl_agentic.cli:main",
        "verl-agentic-retriever = retriever_server.cli:main",
        "[verl.plugins]",
        "verl_agentic = verl_agentic.plugin",
    ]


def test_changelog_names_the_version():
    headings = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == verl_agentic.__version__


def test_console_scripts_show_their_help(wheel_environment):
    for script in ("verl-agentic", "verl-agentic-retriever"):
        path = wheel_environment.root / "venv" / "bin" / script
        shown = subprocess.run([str(path), "--help"], capture_output=True, text=True, cwd=wheel_environment.root)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith("usage: ")
