"""The statistics of maths/stats.py, of many small tensors at once: a call a tensor costs more than
its arithmetic.

The tensors lie one after the other in one vector, [L]; a statistic is a number a tensor, [n], on
the device and without a sync. Sums are taken in float64, so a norm neither overflows nor depends on
how the tensors were put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradiometer.maths import stats

__all__ = ["SEGMENTED", "Segments"]


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


SEGMENTED: dict[Callable[..., Any], Callable[..., Any]] = {
    stats.norm: Segments.norm,
    stats.extreme: Segments.extreme,
    stats.total: Segments.add,
    stats.dot: Segments.dot,
    stats.fourths: Segments.fourths,
}
"""What reads one tensor, and the same of many."""
