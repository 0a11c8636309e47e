"""Checking JSON values against the dataclass that they are to fill, and reading them from a user's file."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any, get_origin, get_type_hints

FILE_ENDINGS = (".yaml", ".yml", ".json")


def misfits(record: type, values: dict[str, Any]) -> list[str]:
    """Return the names in `values` that `record` does not declare, or declares with another type."""
    hints = get_type_hints(record)
    return sorted(name for name, value in values.items() if name not in hints or not _fits(value, hints[name]))


def refuse_unfit(record: type, values: dict[str, Any], required: set[str], what: str, error: type[Exception]) -> None:
    """Raise `error`, whose sentence begins with `what`, unless `values` can fill `record` and lack nothing `required`.

    Strings with lone surrogates, which no UTF-8 file can hold, do not fit.
    """
    unknown = sorted(str(name) for name in set(values) - set(get_type_hints(record)))
    missing = sorted(required - set(values))
    if unknown or missing:
        raise error(f"{what}: unknown keys {unknown}, missing keys {missing}.")
    wrong = misfits(record, values)
    if wrong:
        found = ", ".join(f"{name} {_shown(values[name])}" for name in wrong)
        raise error(f"{what} {_shown(values['id'])}: {found} is not of the right type.")
    broken = sorted(name for name, value in values.items() if isinstance(value, str) and not _encodable(value))
    if broken:
        raise error(f"{what} {_shown(values['id'])}: {', '.join(broken)} holds a lone surrogate.")


def read_object(path: Path, what: str, error: type[Exception]) -> dict[str, Any]:
    """Read the object that a .json or .yaml file holds; raises `error` with one sentence when it holds none."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError, RecursionError) as cause:
        raise error(f"The {what} {path} cannot be read: {' '.join(str(cause).split())}.") from cause
    if not isinstance(values, dict):
        raise error(f"The {what} {path} is not {'a JSON object' if path.suffix == '.json' else 'a mapping'}.")
    return values


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _shown(value: Any) -> str:
    # in a few characters, though a yaml's aliases may make it astronomic
    return f"a {type(value).__name__}" if value and isinstance(value, list | dict | set) else reprlib.repr(value)


def _encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _fits(value: Any, declared: Any) -> bool:
    # exactly the type: True is no whole number; JSON writes 2.0 also as 2
    kind = get_origin(declared) or declared
    return type(value) is kind or (kind is float and type(value) is int)
