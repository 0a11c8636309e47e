"""The working memory: a LIFO stack of actions, and the edits that the policy may make.

The question lies below the stack and can never be popped. An action and its observation are one entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What stands before the first "|" is the count where it looks like a number; else it belongs to the text.
_COUNT = re.compile(r"\s*([+-]?[0-9][0-9.,_^e+-]*)\s*\|(.*)", re.DOTALL)
_DIGITS_OF_ANY_COUNT = 6


class InvalidEditError(ValueError):
    """An edit that cannot be done; `notice` names the text that tells the policy."""

    def __init__(self, notice: str):
        super().__init__(notice)
        self.notice = notice


STACK_EMPTY = "stack_empty"
COUNT_TOO_LARGE = "count_too_large"
COUNT_INVALID = "count_invalid"
EDIT_WITHOUT_TEXT = "edit_without_text"
NOTICES = (STACK_EMPTY, COUNT_TOO_LARGE, COUNT_INVALID, EDIT_WITHOUT_TEXT)


@dataclass(frozen=True)
class Edit:
    """What a `backtrack` or `summary` asks for: to pop `count` entries and push one that says `text`."""

    count: int
    text: str


def parse_edit(body: str) -> Edit:
    """Read the body of an edit: `text`, or `count | text`; the count is 1 where none is given.

    Raises:
        InvalidEditError: the count is no whole number of at least 1, or no text is given.
    """
    found = _COUNT.fullmatch(body)
    count, text = (_count(found.group(1)), found.group(2).strip()) if found else (1, body.strip())
    if not text:
        raise InvalidEditError(EDIT_WITHOUT_TEXT)
    return Edit(count, text)


def _count(digits: str) -> int:
    if not digits.isdigit() or int(digits[:_DIGITS_OF_ANY_COUNT]) == 0:
        raise InvalidEditError(COUNT_INVALID)
    if len(digits.lstrip("0")) > _DIGITS_OF_ANY_COUNT:
        raise InvalidEditError(COUNT_TOO_LARGE)  # more than any stack holds, and never turned into a number
    return int(digits)


@dataclass(frozen=True)
class Stack:
    """Numbers of the session's executed actions that lie on the stack, the bottom first; never changed in place."""

    entries: tuple[int, ...] = ()

    def push(self, number: int) -> Stack:
        return Stack((*self.entries, number))

    def pop(self, count: int) -> Stack:
        """Without the `count` top entries.

        Raises:
            InvalidEditError: the stack is empty, or holds fewer (below them lies the question).
        """
        if not self.entries:
            raise InvalidEditError(STACK_EMPTY)
        if count > len(self.entries):
            raise InvalidEditError(COUNT_TOO_LARGE)
        return Stack(self.entries[: len(self.entries) - count])
