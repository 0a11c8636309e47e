"""The room plan: which package may import which."""

import ast
import subprocess
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CORE = sorted((REPOSITORY / "verl_agentic" / "core").rglob("*.py"))

# frameworks, input and output, the clock: core holds pure functions and frozen records
FORBIDDEN_IN_CORE = {
    *("verl", "ray", "torch", "transformers", "hydra", "tensordict", "httpx", "requests", "flask", "faiss"),
    *("asyncio", "io", "os", "shutil", "socket", "subprocess", "tempfile", "threading", "urllib"),
    *("datetime", "time", "logging", "sys"),
}


def imported_modules(file: Path) -> set[str]:
    """Top-level names of everything a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_contracts_of_the_room_plan_hold():
    command = Path(sysconfig.get_path("scripts")) / "lint-imports"
    linted = subprocess.run([str(command), "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "Contracts: 6 kept, 0 broken." in linted.stdout


@pytest.mark.parametrize("file", CORE, ids=lambda file: file.stem)
def test_core_imports_no_framework_no_io_and_no_clock(file: Path):
    assert imported_modules(file) & FORBIDDEN_IN_CORE == set()


def test_core_is_not_empty():
    assert "grammar" in {file.stem for file in CORE}
