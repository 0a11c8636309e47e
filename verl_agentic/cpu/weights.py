"""Loading new weights into a model in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch


class WeightLoader:
    """Replaces a model's weights in place, in one bucket or several.

    Attributes:
        mixed: whether the model holds weights of two versions: between buckets, and after an update that failed.

    Args:
        model: any torch module.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names: set[str] = set()
        self.mixed = False

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], last: bool) -> None:
        """Copy one bucket's tensors; a failure ends the update, and the next bucket starts another.

        A bucket is checked before its first tensor is copied.

        Args:
            tensors: (name, tensor) by the names of `model.state_dict()`; tied ones may come under any of their names.
            last: whether this completes the update.

        Raises:
            KeyError: the model has no such name.
            ValueError: the shapes differ; or, at the last bucket, a weight of the model did not come.
        """
        own = self._model.state_dict(keep_vars=True)
        bucket = list(tensors)
        arrived, self._names = self._names | {name for name, _ in bucket}, set()
        _check_fit(own, bucket)
        if last:
            _check_complete(own, arrived)
        self.mixed = True
        for name, tensor in bucket:
            own[name].copy_(tensor)
        self.mixed = not last
        if not last:
            self._names = arrived


def _check_fit(own: Mapping[str, torch.Tensor], bucket: Iterable[tuple[str, torch.Tensor]]) -> None:
    for name, tensor in bucket:
        if name not in own:
            raise KeyError(f"the rollout model has no weight {name!r}: it is not the model that is trained")
        if own[name].shape != tensor.shape:
            raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}")


def _check_complete(own: Mapping[str, torch.Tensor], arrived: set[str]) -> None:
    filled = {id(own[name]) for name in arrived}
    missing = [name for name, tensor in own.items() if id(tensor) not in filled]
    if missing:
        raise ValueError(
            f"{len(missing)} of the rollout model's {len(own)} weights did not come with the update, the first of them "
            f"{missing[0]!r}: send all of them"
        )
