"""Keys and values of earlier requests: a prompt that begins as one of them did computes only what is new.

A session's next prompt is its last prompt, the answer to it and something new; a call beside the session and a context
that was edited share a beginning with an earlier prompt. Found by content alone: whoever asks, equal tokens have equal
keys and values while the weights stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

States = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, [tokens, heads, head_dim]."""


@dataclass(frozen=True)
class Prefix:
    """Tokens from the beginning of a context, and their states."""

    tokens: tuple[int, ...]
    states: States


class PrefixStore:
    """The states of the last used contexts.

    Args:
        max_tokens: most tokens kept, over all contexts; 0 keeps none.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._contexts: OrderedDict[int, Prefix] = OrderedDict()
        self._ends: dict[int, tuple[int, int]] = {}
        self._tokens = 0

    def keep(self, tokens: Sequence[int], ends: Sequence[int], states: States) -> None:
        """Keep a context.

        Args:
            tokens: all of it.
            ends: lengths at which a later prompt may branch off; the last is that of `tokens`.
            states: of `tokens`.
        """
        if len(tokens) > self._max_tokens:
            return
        hashes = _running_hashes(tokens)
        name = hashes[-1]
        self._drop(name)
        self._contexts[name] = Prefix(tuple(tokens), states)
        self._tokens += len(tokens)
        for end in ends:
            self._ends[hashes[end - 1]] = (name, end)
        while self._tokens > self._max_tokens:
            self._drop(next(iter(self._contexts)))

    def longest(self, prompt: Sequence[int]) -> tuple[int, States]:
        """How many of the prompt's tokens are known, at most all but the last, and the states of at least those."""
        for length, running in reversed(list(enumerate(_running_hashes(prompt[:-1]), start=1))):
            name, end = self._ends.get(running, (0, 0))
            found = self._contexts.get(name)
            if end == length and found is not None and found.tokens[:length] == tuple(prompt[:length]):
                self._contexts.move_to_end(name)
                return length, found.states
        return 0, []

    def forget(self) -> None:
        """Drop everything, as when the weights change."""
        self._contexts.clear()
        self._ends.clear()
        self._tokens = 0

    def _drop(self, name: int) -> None:
        dropped = self._contexts.pop(name, None)
        if dropped is not None:
            self._tokens -= len(dropped.tokens)
            for running in _running_hashes(dropped.tokens):
                if self._ends.get(running, (None, 0))[0] == name:
                    del self._ends[running]


def _running_hashes(tokens: Sequence[int]) -> list[int]:
    """A hash of each beginning of the tokens, from the first alone to all."""
    running, hashes = 0, []
    for token in tokens:
        running = hash((running, token))
        hashes.append(running)
    return hashes
