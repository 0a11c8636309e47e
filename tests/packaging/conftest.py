"""Virtual environments that hold this package, installed in one way each, beside the packages already on this machine.

Installing torch and verl anew would take minutes an environment. Each environment instead sees links to everything
installed for the running interpreter, except to this package itself.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOP_LEVEL = ("recipes", "retriever_server", "verl_agentic")
BUILD_FILES = ("setup.py", "pyproject.toml", "LICENSE", "README.md")
OWN_ENTRIES = (*TOP_LEVEL, "verl_agentic-", "__editable__", "_verl_agentic", "__pycache__")


@dataclass(frozen=True)
class Environment:
    """A virtual environment to run commands in; its working directory is empty and outside the repository."""

    root: Path

    @property
    def site_packages(self) -> Path:
        return next((self.root / "venv" / "lib").glob("python*/site-packages"))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter from the empty directory and return the finished process."""
        work = self.root / "work"
        work.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VERL_"))}
        return subprocess.run(
            [str(self.root / "venv" / "bin" / "python"), *arguments],
            cwd=work,
            env=environment | {"OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "0"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def main_ppo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Show the configuration that verl's trainer would run with."""
        return self.python("-m", "verl.trainer.main_ppo", *arguments, "--cfg", "job")


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY.parent)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def _link_installed_packages(links: Path) -> None:
    links.mkdir()
    for place in map(Path, sys.path):
        if place.name in ("site-packages", "dist-packages") and place.is_dir():
            for entry in place.iterdir():
                if not entry.name.startswith(OWN_ENTRIES) and not (links / entry.name).exists():
                    (links / entry.name).symlink_to(entry)


def _new_environment(root: Path) -> Environment:
    root.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    _link_installed_packages(root / "links")
    environment = Environment(root)
    (environment.site_packages / "installed_here.pth").write_text(f"{root / 'links'}\n")
    return environment


@pytest.fixture(scope="session")
def copy_of_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Returns a function that copies what a build reads, so that nothing is written into the repository."""

    def copy() -> Path:
        target = tmp_path_factory.mktemp("source")
        for name in TOP_LEVEL:
            shutil.copytree(REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in BUILD_FILES:
            if (REPOSITORY / name).is_file():
                shutil.copy(REPOSITORY / name, target / name)
        return target

    return copy


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, copy_of_source: Callable[[], Path]) -> Path:
    """The built wheel."""
    target = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(copy_of_source()))
    return next(target.glob("verl_agentic-*.whl"))


@pytest.fixture(scope="session")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """An environment with the wheel installed by pip."""
    environment = _new_environment(tmp_path_factory.mktemp("wheel_environment"))
    _pip("--python", str(environment.root / "venv"), "install", "--no-deps", "--ignore-installed", str(wheel))
    return environment


@pytest.fixture(scope="session")
def editable_environment(
    tmp_path_factory: pytest.TempPathFactory, copy_of_source: Callable[[], Path]
) -> Callable[[str], Environment]:
    """Returns a function that makes an environment with an editable install of the given mode (lenient, compat)."""

    def make(mode: str) -> Environment:
        environment = _new_environment(tmp_path_factory.mktemp(f"{mode}_environment"))
        options = [
            "--no-deps",
            "--no-build-isolation",
            "--ignore-installed",
            "--config-settings",
            f"editable_mode={mode}",
        ]
        target = str(environment.root / "venv")
        _pip("--python", target, "install", *options, "--editable", str(copy_of_source()))
        return environment

    return make


@pytest.fixture
def unpacked_environment(tmp_path: Path, wheel: Path) -> Environment:
    """An environment of one test's own, into which the wheel is unpacked: free to be broken."""
    environment = _new_environment(tmp_path)
    zipfile.ZipFile(wheel).extractall(environment.site_packages)
    return environment
