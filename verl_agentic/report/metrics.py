"""Reading what a run logged: verl's file logger writes one JSON object a step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LoggedStep:
    """One record: the trainer step (0 is the validation before training) and its scalars."""

    step: int
    data: dict[str, Any]


def read_log(path: Path) -> list[LoggedStep]:
    """All records of a log, in step order; the last one wins where a step was logged twice.

    Raises:
        ValueError: the file is missing or empty, or a line is not a record.
    """
    if not path.is_file():
        raise ValueError(f"there is no metrics log {path}; run with trainer.logger=[console,file]")
    steps: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            steps.setdefault(int(record["step"]), {}).update(record["data"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} of {path} is not a record of verl's file logger: {error}") from None
    if not steps:
        raise ValueError(f"the metrics log {path} is empty; the run ended before its first step")
    return [LoggedStep(step, steps[step]) for step in sorted(steps)]


def series(log: list[LoggedStep], name: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, wherever it was logged."""
    return [(record.step, _number(record.data[name])) for record in log if name in record.data]


def not_finite(log: list[LoggedStep]) -> list[str]:
    """`step N: NAME` of every logged value that is no finite number; verl's file logger writes null for them."""
    return [
        f"step {record.step}: {name}"
        for record in log
        for name, value in record.data.items()
        if not math.isfinite(_number(value))
    ]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def validated(log: list[LoggedStep], source: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of a validation metric of one data source; verl files the headline `acc` under val-core."""
    for group in ("val-core", "val-aux"):
        found = series(log, f"{group}/{source}/{name}/mean@1")
        if found:
            return found
    return []
