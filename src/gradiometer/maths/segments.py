"""The statistics of maths/stats.py, of many small tensors at once: a call a tensor costs more than
its arithmetic.

The tensors lie one after the other in one vector, [L]; a statistic is a number a tensor, [n], on
the device and without a sync. Sums are taken in float64, so a norm neither overflows nor depends on
how the tensors were put together. On the host the vectors are numpy's, whose calls cost less than
torch's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.maths import stats

__all__ = ["SEGMENTED", "HostSegments", "Rows", "Segments", "silent"]

Array: TypeAlias = NDArray[np.floating[Any]]
P = ParamSpec("P")
R = TypeVar("R")


def silent(method: Callable[P, R]) -> Callable[P, R]:
    """Numbers say what is infinite or NaN, and numpy does not warn of it.

    Each call has a state of its own: one `errstate` that is entered twice at a time does not give
    back the user's before numpy 2. Within a silent call others are silent already.
    """

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if getattr(_inside, "silent", False):
            return method(*args, **kwargs)
        _inside.silent = True
        try:
            with np.errstate(all="ignore"):
                return method(*args, **kwargs)
        finally:
            _inside.silent = False

    return wrapper


_inside = threading.local()
"""Whether this thread is within a silent call."""


class Segments:
    """Where in the vector each tensor lies; none of them is empty."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.total = sum(lengths)
        self._lengths = torch.tensor(lengths, device=device)
        self._offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=device)
        torch.cumsum(self._lengths, 0, out=self._offsets[1:])

    def add(self, x: Tensor) -> Tensor:
        """Σ over each tensor, [L] to [n], in float64."""
        return self._reduced(x.double(), "sum")

    def norm(self, x: Tensor) -> Tensor:
        """‖x‖₂ of each."""
        return self.add(x.double().square()).sqrt_()

    def extreme(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest element of each; a NaN makes both NaN."""
        x = x.float() if x.dtype in stats.HALF else x
        return self._reduced(x, "min"), self._reduced(x, "max")

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """<x, y> of each."""
        return self.add(x.double() * y)

    def fourths(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m = max|x| and Σ(x/m)⁴ of each."""
        low, high = self.extreme(x)
        largest = torch.maximum(-low, high).clamp_min(torch.finfo(low.dtype).tiny)
        spread = torch.repeat_interleave(largest, self._lengths, output_size=self.total)
        return largest, self.add((x / spread).square().square())

    def _reduced(self, x: Tensor, how: str) -> Tensor:
        # unsafe: the offsets are ours, and to check them would be a sync
        return torch.segment_reduce(x, how, offsets=self._offsets, unsafe=True)


class HostSegments:
    """The same of float32 and float64 arrays of the host, in float64. What is infinite or NaN stays
    so; the caller silences numpy, once for all that is read."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = np.array(lengths)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._whose = np.repeat(np.arange(len(lengths)), self._lengths)
        self._wide, self._products = np.empty((2, int(self._lengths.sum())))

    def add(self, x: Array) -> Array:
        """Σ over each tensor, [L] to [n], in float64."""
        return np.add.reduceat(x.astype(np.float64, copy=False), self._starts)

    def norm(self, x: Array) -> Array:
        """‖x‖₂ of each."""
        np.copyto(self._wide, x)  # numpy squares and widens in one go at twice the price
        np.square(self._wide, out=self._wide)
        return np.sqrt(np.add.reduceat(self._wide, self._starts))

    def extreme(self, x: Array) -> tuple[Array, Array]:
        """Smallest and largest element of each; a NaN makes both NaN."""
        return np.minimum.reduceat(x, self._starts), np.maximum.reduceat(x, self._starts)

    def dot(self, x: Array, y: Array) -> Array:
        """<x, y> of each."""
        np.copyto(self._wide, x)
        np.copyto(self._products, y)
        np.multiply(self._wide, self._products, out=self._products)
        return np.add.reduceat(self._products, self._starts)

    def fourths(self, x: Array) -> tuple[Array, Array]:
        """m = max|x| and Σ(x/m)⁴ of each."""
        low, high = self.extreme(x)
        largest = np.maximum(np.maximum(-low, high), np.finfo(x.dtype).tiny)
        np.copyto(self._wide, x)
        np.divide(self._wide, largest.astype(np.float64).take(self._whose), out=self._products)
        np.square(self._products, out=self._products)
        np.square(self._products, out=self._products)
        return largest, np.add.reduceat(self._products, self._starts)


class Rows:
    """The same of tensors that are the rows of a table, [n, width], filled up with zeros."""

    def add(self, x: Tensor) -> Tensor:
        """Σ over each row."""
        return x.sum(1)

    def fourths(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m = max|x| and Σ(x/m)⁴ of each."""
        largest = x.abs().amax(1).clamp_min(torch.finfo(x.dtype).tiny)
        return largest, (x / largest[:, None]).square().square().sum(1)


SEGMENTED: dict[Callable[..., Any], str] = {
    stats.norm: "norm",
    stats.extreme: "extreme",
    stats.total: "add",
    stats.dot: "dot",
    stats.fourths: "fourths",
}
"""What reads one tensor, and the method that reads many."""
