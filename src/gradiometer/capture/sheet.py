"""From numbers per parameter to named values per block."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.reading import Fetched

__all__ = ["Sheet"]

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Sheet:
    """Writes the values of a step, block by block. A block without any member present gets no value at all."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._order = blocks.order()
        self._starts = blocks.starts()
        self._names = cache(lambda quantity: tuple(f"grad/{block}/{quantity}" for block in blocks.names))

    def sums(self, numbers: Numbers) -> Numbers:
        """Σ over the members of each block."""
        return np.add.reduceat(numbers[self._order], self._starts)

    def maxima(self, numbers: Numbers) -> Numbers:
        """Largest over the members of each block; a NaN stays."""
        return np.maximum.reduceat(numbers[self._order], self._starts)

    def any(self, mask: Mask) -> Mask:
        """Which blocks have a member in `mask`."""
        return np.logical_or.reduceat(mask[self._order], self._starts)

    def norms(self, numbers: Numbers, present: Mask) -> Numbers:
        """Norm of each block from the norms of its members: sqrt(Σ n_p²), in float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.where(present, numbers, 0.0) ** 2
            total: Numbers = np.sqrt(self.sums(squares))
        return total

    def write(self, values: dict[str, float], quantity: str, numbers: Numbers, where: Mask) -> None:
        """Add `grad/<block>/<quantity>` for the blocks in `where`."""
        names = self._names(quantity)
        if where.all():
            values.update(zip(names, numbers.tolist(), strict=True))
        else:
            values.update((names[i], float(numbers[i])) for i in np.flatnonzero(where))

    def light(self, fetched: Fetched, clip_factor: Numbers, clipped: Mask) -> dict[str, float]:
        """The values of tier `light`. `clip_factor` is what the clips seen multiplied each parameter's gradient by."""
        values: dict[str, float] = {}
        if "raw" not in fetched.values:
            return values
        raw, present = fetched.values["raw"], fetched.present["raw"]
        max_abs = np.maximum(np.abs(fetched.values["low"]), np.abs(fetched.values["high"]))
        there = self.any(present)
        self.write(values, "norm/raw", self.norms(raw, present), there)
        self.write(values, "max_abs", self.maxima(np.where(present, max_abs, 0.0)), there)
        self.write(values, "nonfinite", self.sums((present & ~np.isfinite(max_abs)).astype(np.float64)), there)
        if clipped.any():
            with np.errstate(invalid="ignore"):
                seen = raw * clip_factor
            if "clipped" in fetched.values:  # measured again, because something else changed it after the clip
                seen = np.where(fetched.present["clipped"], fetched.values["clipped"], seen)
            self.write(values, "norm/clipped", self.norms(seen, present), self.any(clipped & present))
        return values

    def update(self, values: dict[str, float], fetched: Fetched) -> None:
        """What the step did to the weights: `norm/update` and `update_ratio`."""
        if "update" not in fetched.values:
            return
        present = fetched.present["update"]
        moved = self.norms(fetched.values["update"], present)
        size = self.norms(fetched.values["weight"], present)
        there = self.any(present)
        self.write(values, "norm/update", moved, there)
        # A block of zeros (fresh biases) has no ratio: missing, not infinite.
        sized = there & (size > 0)
        self.write(values, "update_ratio", np.divide(moved, size, out=np.zeros_like(moved), where=sized), sized)

    def terms(self, values: dict[str, float], fetched: Fetched) -> None:
        """Norm of each loss term's gradient by block, and its value."""
        for quantity in [key for key in fetched.values if key.startswith("term/")]:
            present = fetched.present[quantity]
            self.write(values, f"{quantity}/norm", self.norms(fetched.values[quantity], present), self.any(present))
        values.update((f"grad/all/{key}", x) for key, x in fetched.scalars.items() if key.startswith("term/"))

    def nonfinite(self, fetched: Fetched) -> list[int]:
        """The parameters whose raw gradient holds a NaN or an Inf."""
        if "raw" not in fetched.values:
            return []
        bad = ~np.isfinite(fetched.values["low"] + fetched.values["high"]) & fetched.present["raw"]
        return [int(i) for i in np.flatnonzero(bad)]
