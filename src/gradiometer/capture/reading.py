"""What one measured step left on the devices, fetched in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Fetched", "Reading"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The numbers of a step on the host. A parameter a quantity was not taken from is absent, not zero."""

    values: dict[str, NDArray[np.float64]]
    """By quantity, one number per parameter; only meaningful where `present`."""
    present: dict[str, NDArray[np.bool_]]
    scalars: dict[str, float]


class Reading:
    """Collects 0-dim device tensors by quantity and parameter; `fetch` is the step's one sync."""

    def __init__(self, num_parameters: int) -> None:
        self._num_parameters = num_parameters
        self._parts: list[tuple[str, Sequence[int], list[Tensor]]] = []
        self._names: list[str] = []
        self._scalars: list[Tensor] = []

    def add(self, quantity: str, indices: Sequence[int], values: list[Tensor]) -> None:
        """One number for each of the parameters `indices`."""
        if values:
            self._parts.append((quantity, indices, values))

    def add_scalar(self, name: str, value: Tensor) -> None:
        """One number that belongs to no parameter."""
        self._names.append(name)
        self._scalars.append(value.detach().reshape(()))

    def fetch(self) -> Fetched:
        """Everything, on the host: one transfer for each device that took part."""
        flat = [value for _, _, values in self._parts for value in values] + self._scalars
        numbers = _transfer(flat)
        values: dict[str, NDArray[np.float64]] = {}
        present: dict[str, NDArray[np.bool_]] = {}
        start = 0
        for quantity, indices, tensors in self._parts:
            if quantity not in values:
                values[quantity] = np.zeros(self._num_parameters)
                present[quantity] = np.zeros(self._num_parameters, dtype=np.bool_)
            at = np.asarray(indices, dtype=np.int64)
            values[quantity][at] = numbers[start : start + len(tensors)]
            present[quantity][at] = True
            start += len(tensors)
        return Fetched(values, present, dict(zip(self._names, numbers[start:].tolist(), strict=True)))


def _transfer(tensors: list[Tensor]) -> NDArray[np.float64]:
    numbers = np.empty(len(tensors))
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault((tensor.device, tensor.dtype), []).append(place)
    by_device: dict[torch.device, list[tuple[list[int], Tensor]]] = {}
    for (device, _), where in places.items():
        stacked = torch.stack([tensors[place] for place in where])
        # MPS has no float64; elsewhere it keeps what a float64 model measured.
        wide = stacked.float() if device.type == "mps" else stacked.double()
        by_device.setdefault(device, []).append((where, wide))
    for stacks in by_device.values():
        joined = torch.cat([stack for _, stack in stacks]).tolist()  # the sync
        numbers[[place for where, _ in stacks for place in where]] = joined
    return numbers
