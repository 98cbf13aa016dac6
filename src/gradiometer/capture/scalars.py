"""The user's own scalars: numbers pass at once, tensors wait for the next sync."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from gradiometer.capture.distributed import is_sharded, is_spread, local
from gradiometer.capture.statistics import Fetched, Reading
from gradiometer.errors import GradiometerWarning
from gradiometer.store.strictjson import whole_text

__all__ = ["Scalars", "Waiting", "Where"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The step something was logged at, and where in the training that was."""

    step: int
    wall_time: float
    env_steps: int | None
    rollout: int | None
    epoch: int | None

    def as_row(self) -> dict[str, Any]:
        """The fields of a row."""
        return {
            name: getattr(self, name)
            for name in ("step", "wall_time", "env_steps", "rollout", "epoch")
        }


Waiting = list[tuple[Where, str, str]]

# Whole tensors that may be logged under these names, and what is kept of them.
SPREAD: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "std": torch.std,
    "max_abs": lambda x: x.abs().max(),
}
REDUCED: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "ratio": {"mean": torch.mean, "min": torch.min, "max": torch.max},
    "advantages": SPREAD,
    "returns": SPREAD,
    "observation": SPREAD,
}


class Scalars:
    """Device scalars that were logged and not yet read."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Where, str, Tensor]] = []
        self._refused: set[str] = set()

    def take(self, where: Where, values: Mapping[str, Any]) -> dict[str, float]:
        """The plain numbers among `values`; tensors are kept as a copy of what they hold now."""
        ready: dict[str, float] = {}
        for key, value in values.items():
            name = whole_text(str(key))  # {0: 1.5}: a number as a name
            if isinstance(value, Tensor) and is_sharded(value):
                if is_spread(value):
                    self._refuse(name, value, "spread over ranks: log its .full_tensor()")
                    continue
                value = local(value)
            if isinstance(value, Tensor) and value.numel() > 1 and name in REDUCED:
                x = value.detach()
                x = x if x.is_floating_point() else x.float()
                self._tensors += [
                    (where, f"{name}/{kind}", reduce(x)) for kind, reduce in REDUCED[name].items()
                ]
                continue
            if isinstance(value, Tensor) and value.numel() == 1:
                self._tensors.append((where, name, value.detach().clone()))
                continue
            try:
                ready[name] = float(value)
            except Exception:  # whatever a stranger's `__float__` does
                self._refuse(name, value)
        return ready

    @property
    def num_waiting(self) -> int:
        """How many tensors wait."""
        return len(self._tensors)

    def hand_over(self, reading: Reading) -> Waiting:
        """Put the waiting tensors into a reading; the list says where they will be found."""
        waiting: Waiting = []
        for number, (where, name, tensor) in enumerate(self._tensors):
            key = f"log/{number}"
            reading.add_scalar(key, tensor)
            waiting.append((where, name, key))
        self._tensors.clear()
        return waiting

    def collect(
        self, waiting: Waiting, fetched: Fetched
    ) -> Iterator[tuple[Where, dict[str, float]]]:
        """What was handed over, step by step."""
        for where, rows in groupby(waiting, key=lambda row: row[0]):
            yield where, {name: fetched.scalars[key] for _, name, key in rows}

    def _refuse(self, name: str, value: Any, why: str = "") -> None:
        if name not in self._refused:
            self._refused.add(name)
            found = (
                why or f"a tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else _shown(value)
            )
            message = (
                f"meter.log takes numbers and one-element tensors; {name!r} is {found[:80]} and is"
                " not kept"
            )
            warnings.warn(message, GradiometerWarning, stacklevel=5)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # a number of 5,000 digits has none
        return f"a {type(value).__name__} that cannot be shown"
