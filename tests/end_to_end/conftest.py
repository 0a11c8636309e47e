"""Real runs of verl's own command line."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class MainPPO:
    """A finished `python -m verl.trainer.main_ppo`."""

    status: int
    log: str
    metrics: list[dict]
    rows: list[dict]
    losses: dict[int, float]

    def sentence(self) -> str:
        """The one line of ours in the output."""
        return next(line for line in self.log.splitlines() if line.startswith("verl-agentic:"))


@pytest.fixture
def main_ppo(tmp_path):
    """Runs verl's command line with some overrides and reads back what it logged."""

    def run(*overrides: str, timeout: float = 600, environment: dict[str, str] | None = None) -> MainPPO:
        rows, metrics = tmp_path / f"rows{len(list(tmp_path.iterdir()))}.jsonl", tmp_path / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "verl.trainer.main_ppo", *overrides],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "VERL_FILE_LOGGER_PATH": str(metrics),
                "VERL_USE_EXTERNAL_MODULES": "row_recorder",
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
                "ROW_RECORD": str(rows),
                **(environment or {}),
            },
        )
        records = _read(rows)
        return MainPPO(
            status=done.returncode,
            log=done.stdout + done.stderr,
            metrics=_read(metrics),
            rows=[r for r in records if "responses" in r],
            losses={r["step"]: r["loss"] for r in records if "loss" in r},
        )

    return run


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
