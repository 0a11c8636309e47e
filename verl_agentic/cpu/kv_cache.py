"""Key-value memory in rows that requests enter and leave at any step.

Row r, column c holds the key and value of the token at position c of the request in row r. Active requests always
occupy rows [0, n). Columns past the length of such a row are zero: the attention mask gives them weight 0, and 0 times
a NaN left behind by an earlier request would be NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from verl_agentic.cpu.prefixes import States

_COLUMNS = 64
"""Columns are allocated in multiples of this, so that a growing sequence does not copy the cache at every token."""


class RowLayer(CacheLayerMixin):
    """One layer's keys and values, [rows, columns, heads, head_dim] each."""

    is_sliding = False

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        window = self._window
        self.keys = key_states.new_zeros(window.rows, window.columns, key_states.shape[1], key_states.shape[3])
        self.values = value_states.new_zeros(window.rows, window.columns, value_states.shape[1], value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new states, [n, heads, t, head_dim]; returns the window's, [n, heads, width, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._store(self.keys, key_states), self._store(self.values, value_states)

    def _store(self, memory: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        window = self._window
        memory.view(-1, *memory.shape[2:]).index_copy_(0, window.targets, states.transpose(1, 2).flatten(0, 1))
        return memory[window.first : window.last, : window.width].transpose(1, 2)

    def grown(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values in memory of the given size; None where there are none yet."""
        if not self.is_initialized:
            return None
        return _grown(self.keys, rows, columns), _grown(self.values, rows, columns)

    def get_seq_length(self) -> int:
        return self._window.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._window.width, 0

    def get_max_cache_shape(self) -> int:
        return -1


def _grown(memory: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    larger = memory.new_zeros(rows, columns, *memory.shape[2:])
    larger[: memory.shape[0], : memory.shape[1]] = memory
    return larger


class Window:
    """The rows and columns that one forward pass reads and writes, shared by all layers."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns = 0
        self.first = 0
        self.last = 0
        self.width = 0
        self.targets = torch.empty(0, dtype=torch.long)


class RowCache(Cache):
    """Key-value memory for a decoder-only model; grows as needed.

    Args:
        num_layers: attention layers of the model.
    """

    def __init__(self, num_layers: int) -> None:
        self._window = Window()
        super().__init__(layers=[RowLayer(self._window) for _ in range(num_layers)])

    def aim(self, first: int, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Prepare the next forward pass.

        Args:
            first: row of the batch's first request.
            positions: [n, t] positions of the new tokens; a position given twice must be the same token.
            dtype: of the model.

        Returns:
            [n, 1, t, width] additive attention mask: 0 where a token sees a column, else the smallest number.
        """
        window = self._window
        window.first, window.last = first, first + positions.shape[0]
        window.width = int(positions.max()) + 1
        self.reserve(window.last, window.width)
        rows = torch.arange(window.first, window.last)[:, None]
        window.targets = (rows * window.columns + positions).flatten()
        hidden = (torch.arange(window.width) > positions[:, :, None])[:, None]
        # Additive and not bool: transformers' eager attention adds the mask, whatever its type.
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)

    def clear(self, first: int, last: int) -> None:
        """Zero the rows [first, last), which requests are about to enter."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys[first:last].zero_()
                layer.values[first:last].zero_()

    def move(self, source: int, target: int) -> None:
        """Copy row `source` to row `target`, with the zeros past its length."""
        for layer in self.layers:
            for memory in (layer.keys, layer.values):
                memory[target] = memory[source]

    def free(self) -> None:
        """Give the memory back; the next forward pass allocates anew."""
        self._window.rows = self._window.columns = 0
        for layer in self.layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    def read(self, row: int, length: int) -> States:
        """Copies of the first `length` columns of a row."""
        return [(layer.keys[row, :length].clone(), layer.values[row, :length].clone()) for layer in self.layers]

    def write(self, row: int, states: States, length: int) -> None:
        """Put the first `length` tokens of `states` into a row for which memory is reserved."""
        for layer, (keys, values) in zip(self.layers, states, strict=True):
            layer.keys[row, :length] = keys[:length]
            layer.values[row, :length] = values[:length]

    def reserve(self, rows: int, columns: int) -> None:
        """See to it that there is memory for so many rows and columns."""
        window = self._window
        if rows <= window.rows and columns <= window.columns:
            return
        rows = window.rows if rows <= window.rows else max(rows, 2 * window.rows)
        if columns <= window.columns:
            columns = window.columns
        else:
            columns = -(-max(columns, window.columns * 3 // 2) // _COLUMNS) * _COLUMNS
        # All layers first: if memory runs out at one of them, the requests that run keep a cache of one size.
        memories = [layer.grown(rows, columns) for layer in self.layers]
        window.rows, window.columns = rows, columns
        for layer, memory in zip(self.layers, memories, strict=True):
            if memory is not None:
                layer.keys, layer.values = memory
