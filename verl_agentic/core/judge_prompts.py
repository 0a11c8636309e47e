"""The prompt of a judge: a template of its kind of ask, filled with the ask's fields."""

from __future__ import annotations

import string
from collections.abc import Mapping

CUT = " [... cut: {} more characters]"


def placeholders(template: str) -> set[str]:
    """The names in braces of a template; `{{` and `}}` stand for braces.

    Raises:
        ValueError: a brace is left open, or holds anything but a name.
    """
    return {name for _, name in _parts(template) if name is not None}


def render(template: str, fields: Mapping[str, str], field_chars: int) -> str:
    """The template with each placeholder replaced by its field.

    Fields hold what policies and passages say: they are put in as they are, so that braces in them mean nothing, and
    one of more than `field_chars` characters is cut there and marked.

    Raises:
        KeyError: a placeholder is none of the fields.
    """
    return "".join(text if name is None else text + _cut(fields[name], field_chars) for text, name in _parts(template))


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Pairs of a literal text and the name of the placeholder after it."""
    parts = []
    for text, name, form, conversion in string.Formatter().parse(template):
        if name is not None and (form or conversion or not name.isidentifier()):
            raise ValueError(f"{{{name}}} is no plain placeholder like {{question}}")
        parts.append((text, name))
    return parts


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + CUT.format(len(text) - most)
