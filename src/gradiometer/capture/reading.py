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
    arrays: dict[str, NDArray[np.float64]]


class Reading:
    """Collects device tensors by quantity and parameter; `fetch` is the step's one sync."""

    def __init__(self, num_parameters: int) -> None:
        self._num_parameters = num_parameters
        self._parts: list[tuple[str, Sequence[int], Tensor]] = []
        self._scalars: dict[str, Tensor] = {}
        self._arrays: dict[str, Tensor] = {}

    def add(self, quantity: str, indices: Sequence[int], values: list[Tensor]) -> None:
        """One number for each of the parameters `indices`."""
        if not values:
            return
        if len({value.device for value in values}) == 1:
            self.add_column(quantity, indices, torch.stack(values))
            return
        places: dict[torch.device, list[int]] = {}
        for place, value in enumerate(values):
            places.setdefault(value.device, []).append(place)
        for where in places.values():
            stacked = torch.stack([values[place] for place in where])
            self.add_column(quantity, [indices[place] for place in where], stacked)

    def add_column(self, quantity: str, indices: Sequence[int], values: Tensor) -> None:
        """The same, already stacked."""
        self._parts.append((quantity, indices, values))

    def add_scalar(self, name: str, value: Tensor) -> None:
        """One number that belongs to no parameter."""
        self._scalars[name] = value.detach().reshape(1)

    def add_array(self, name: str, value: Tensor) -> None:
        """Numbers that belong to no parameter; several of one name are added up."""
        held = self._arrays.get(name)
        self._arrays[name] = value if held is None else held + value.to(held.device)

    def of(self, quantity: str) -> list[tuple[Sequence[int], Tensor]]:
        """What has been added under that name so far, still on the device."""
        return [(indices, values) for name, indices, values in self._parts if name == quantity]

    def quantities(self) -> set[str]:
        """The names added so far."""
        return {name for name, _, _ in self._parts}

    def fetch(self) -> Fetched:
        """Everything, on the host: one transfer for each device that took part."""
        columns = [values for _, _, values in self._parts]
        numbers = _transfer([*columns, *self._scalars.values(), *(a.reshape(-1) for a in self._arrays.values())])
        values: dict[str, NDArray[np.float64]] = {}
        present: dict[str, NDArray[np.bool_]] = {}
        places: dict[int, NDArray[np.int64]] = {}  # most quantities are of one and the same list of parameters
        for (quantity, indices, _), column in zip(self._parts, numbers, strict=False):
            if quantity not in values:
                values[quantity] = np.zeros(self._num_parameters)
                present[quantity] = np.zeros(self._num_parameters, dtype=np.bool_)
            at = places.get(id(indices))
            if at is None:
                at = places[id(indices)] = np.asarray(indices, dtype=np.int64)
            values[quantity][at] = column
            present[quantity][at] = True
        single = numbers[len(columns) : len(columns) + len(self._scalars)]
        arrays = numbers[len(columns) + len(self._scalars) :]
        return Fetched(
            values,
            present,
            {name: float(x[0]) for name, x in zip(self._scalars, single, strict=True)},
            {name: x.reshape(a.shape) for (name, a), x in zip(self._arrays.items(), arrays, strict=True)},
        )


def _transfer(tensors: list[Tensor]) -> list[NDArray[np.float64]]:
    """Each 1-dim tensor on the host, joined on its device first: one copy per device, whatever their number."""
    by_device: dict[torch.device, dict[torch.dtype, list[int]]] = {}
    for place, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, {}).setdefault(tensor.dtype, []).append(place)
    numbers: list[NDArray[np.float64]] = [np.empty(0)] * len(tensors)
    for device, by_dtype in by_device.items():
        # float64 keeps what a float64 model measured and counts past 2^24; MPS has none.
        wide = torch.float32 if device.type == "mps" else torch.float64
        alike = [torch.cat([tensors[place] for place in places]).to(wide) for places in by_dtype.values()]
        host = torch.cat(alike).cpu().numpy().astype(np.float64, copy=False)  # the sync
        end = 0
        for place in (place for places in by_dtype.values() for place in places):
            start, end = end, end + len(tensors[place])
            numbers[place] = host[start:end]
    return numbers
