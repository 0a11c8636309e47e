"""Loading new weights into a model in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


@torch.no_grad()
def load_weights(model: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy tensors into the model's parameters and buffers; tied parameters may come under each of their names.

    All are checked before the first is copied.

    Args:
        model: any torch module.
        tensors: (name, tensor) by the names of `model.state_dict()`.

    Raises:
        KeyError: the model has no such name.
        ValueError: the shapes differ.
    """
    own = model.state_dict(keep_vars=True)
    named = list(tensors)
    for name, tensor in named:
        if name not in own:
            raise KeyError(f"the rollout model has no weight {name!r}: it is not the model that is trained")
        if own[name].shape != tensor.shape:
            raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}")
    for name, tensor in named:
        own[name].copy_(tensor)
