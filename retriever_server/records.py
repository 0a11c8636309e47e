"""Checking JSON values against the dataclass that they are to fill."""

from __future__ import annotations

from typing import Any, get_origin, get_type_hints


def misfits(record: type, values: dict[str, Any]) -> list[str]:
    """Return the names in `values` that `record` does not declare, or declares with another type."""
    hints = get_type_hints(record)
    return sorted(name for name, value in values.items() if name not in hints or not _fits(value, hints[name]))


def _fits(value: Any, declared: Any) -> bool:
    # exactly the type: True is no whole number; JSON writes 2.0 also as 2
    kind = get_origin(declared) or declared
    return type(value) is kind or (kind is float and type(value) is int)
