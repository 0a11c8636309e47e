"""The tag grammar of a method, and the parser of one turn.

The parser reads what one generation call produced and nothing else, so an action of an earlier turn can never be found
again. Rules, in this order:

1. Text between the thinking tags is free: tags in it do not count (they do not open or close anything).
2. The first action opened outside the thinking is the turn's action; the first closing tag of the same name completes
   it; what follows is dropped by the caller.
3. A turn cut by the token limit is never executed, whatever it holds unfinished.
4. A role marker or an observation tag written by the policy is forged markup, inside the thinking too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from verl_agentic.core.outcomes import FaultCode
from verl_agentic.core.suggest import did_you_mean

_MARKUP = re.compile(r"</?[A-Za-z_]\w*>")


@dataclass(frozen=True)
class ActionTag:
    """One action of a grammar.

    Args:
        name: the tag, without brackets (`search`).
        terminal: whether it ends the trajectory.
        may_be_empty: whether a blank body is valid.
    """

    name: str
    terminal: bool = False
    may_be_empty: bool = False

    @property
    def opening(self) -> str:
        return f"<{self.name}>"

    @property
    def closing(self) -> str:
        return f"</{self.name}>"


@dataclass(frozen=True)
class Action:
    """A completed action: its tag, its stripped body, and the characters [start, end) of the turn that it takes, tags
    included."""

    tag: ActionTag
    body: str
    start: int
    end: int


@dataclass(frozen=True)
class Parsed:
    """What one turn's text holds: an action, or a fault, never both.

    Attributes:
        action: the completed action, if any.
        fault: why there is none.
        tags_seen: count of markup outside the thinking, of this grammar or not (alarm of a wrong tag family).
    """

    action: Action | None = None
    fault: FaultCode | None = None
    tags_seen: int = 0


@dataclass(frozen=True)
class Grammar:
    """The tags a method's policy may write.

    Args:
        actions: the action tags.
        think: name of the thinking tag, or None where a method has none.
        observation: names of the tags that only the environment writes.
        role_markers: strings of the chat template that the policy must not write, the end-of-turn token excepted.
    """

    actions: tuple[ActionTag, ...]
    think: str | None = "think"
    observation: tuple[str, ...] = ("information",)
    role_markers: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|endoftext|>")

    def __post_init__(self) -> None:
        names = [a.name for a in self.actions] + list(self.observation) + ([self.think] if self.think else [])
        if len(set(names)) != len(names):
            raise ValueError(f"a grammar needs distinct tag names, got {names}")
        if not any(a.terminal for a in self.actions):
            raise ValueError(f"a grammar needs a terminal action, got {[a.name for a in self.actions]}")

    def without(self, names: Collection[str]) -> Grammar:
        """This grammar less the actions `names`, whose tags are plain text then.

        Raises:
            ValueError: a name is no action of this grammar, or no terminal action would be left.
        """
        known = [a.name for a in self.actions]
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"unknown action {unknown[0]!r}{did_you_mean(unknown[0], known)} (available: {known})")
        return replace(self, actions=tuple(a for a in self.actions if a.name not in names))

    @property
    def stop_strings(self) -> list[str]:
        """Closing tags at which generation of a turn stops."""
        return [a.closing for a in self.actions]

    @cached_property
    def _openings(self) -> dict[str, ActionTag]:
        return {a.opening: a for a in self.actions}

    @cached_property
    def _tag_pattern(self) -> re.Pattern[str]:
        names = [a.name for a in self.actions] + ([self.think] if self.think else [])
        return re.compile("|".join(re.escape(t) for name in names for t in (f"<{name}>", f"</{name}>")))

    @cached_property
    def _forged_pattern(self) -> re.Pattern[str]:
        tags = [t for name in self.observation for t in (f"<{name}>", f"</{name}>")]
        return re.compile("|".join(map(re.escape, (*tags, *self.role_markers))))

    def parse(self, text: str, truncated: bool = False) -> Parsed:
        """Find the action of one turn.

        Args:
            text: the decoded new tokens of this turn, the end-of-turn token stripped.
            truncated: the token limit ended the turn (finish reason "length").

        Returns:
            The completed action, or the fault that stands in its place.
        """
        visible, think_open = self._hide_thinking(text)
        action = self._first_action(visible)
        kept = text[: action.end] if action else text
        seen = len(_MARKUP.findall(visible))
        if self._forged_pattern.search(kept):
            return Parsed(fault=FaultCode.FORGED_MARKUP, tags_seen=seen)
        if action is None:
            return Parsed(fault=self._missing(visible, think_open, truncated), tags_seen=seen)
        if self._tag_pattern.search(action.body):
            return Parsed(fault=FaultCode.NESTED_TAG, tags_seen=seen)
        if not action.body and not action.tag.may_be_empty:
            return Parsed(fault=FaultCode.EMPTY_ACTION, tags_seen=seen)
        return Parsed(action=action, tags_seen=seen)

    def completes(self, text: str) -> int | None:
        """Index just past the first completed action of `text`, valid or not, or None: where the turn ends."""
        action = self._first_action(self._hide_thinking(text)[0])
        return action.end if action else None

    def _hide_thinking(self, text: str) -> tuple[str, bool]:
        """`text` with its thinking blanked out at equal length, and whether the last thinking is left open.

        An action that is already open keeps its body: a thinking tag inside it hides nothing.
        """
        if self.think is None:
            return text, False
        out, position, opening, closing = [], 0, f"<{self.think}>", f"</{self.think}>"
        while (start := text.find(opening, position)) >= 0:
            if any(action in text[position:start] for action in self._openings):
                break
            end = text.find(closing, start + len(opening))
            stop = len(text) if end < 0 else end + len(closing)
            out.append(text[position:start] + " " * (stop - start))
            position = stop
            if end < 0:
                return "".join(out), True
        return "".join(out) + text[position:], False

    def opened(self, text: str) -> ActionTag | None:
        """The first action that is opened outside the thinking, completed or not."""
        found = self._first_opened(self._hide_thinking(text)[0])
        return found[1] if found else None

    def _first_opened(self, visible: str) -> tuple[int, ActionTag] | None:
        found = [(visible.find(opening), tag) for opening, tag in self._openings.items() if opening in visible]
        return min(found, key=lambda pair: pair[0], default=None)

    def _first_action(self, visible: str) -> Action | None:
        found = self._first_opened(visible)
        if found is None:
            return None
        start, tag = found
        body_start = start + len(tag.opening)
        body_end = visible.find(tag.closing, body_start)
        if body_end < 0:
            return None
        body = visible[body_start:body_end].strip()
        return Action(tag=tag, body=body, start=start, end=body_end + len(tag.closing))

    def _missing(self, visible: str, think_open: bool, truncated: bool) -> FaultCode:
        opened = any(opening in visible for opening in self._openings)
        if truncated and (opened or think_open):
            return FaultCode.TRUNCATED
        if think_open:
            return FaultCode.THINK_UNCLOSED
        return FaultCode.ACTION_UNCLOSED if opened else FaultCode.NO_ACTION
