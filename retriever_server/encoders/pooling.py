"""From token states to one vector a text; written once for torch tensors and numpy arrays."""

from __future__ import annotations

from typing import Any


def pool(states: Any, mask: Any, pooling: str) -> Any:
    """Pool `states` (texts, tokens, dimension) under a 0/1 `mask` (texts, tokens) whose padding is on the right.

    `mean` is the mean of the tokens' states, `cls` the first token's, `last_token` the last one's that is not padding.
    """
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last_token":
        return states[range(len(states)), mask.sum(1) - 1]
    weights = mask[..., None]
    return (states * weights).sum(1) / weights.sum(1)
