"""From numbers per parameter to named values per block."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.gauge import SAMPLE_SIZE
from gradiometer.capture.reading import Fetched
from gradiometer.capture.rounds import Round, SeenTerms
from gradiometer.maths import gram
from gradiometer.maths.stats import stride_of

__all__ = ["Mask", "Numbers", "Sheet"]

Numbers: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


class Sheet:
    """Writes the values of a step, block by block. A block without any member present gets no value at all."""

    def __init__(self, blocks: Blocks, shapes: Sequence[tuple[int, ...]]) -> None:
        self.blocks = blocks
        self.sizes = np.array([math.prod(shape) for shape in shapes], dtype=np.float64)
        strides = np.array([stride_of(shape, SAMPLE_SIZE) for shape in shapes])
        self._sample_sizes = np.maximum(np.ceil(self.sizes / strides), 1.0)
        self._padding = SAMPLE_SIZE - self._sample_sizes
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

    def unscale(self, fetched: Fetched, current: Round) -> None:
        """Take out the loss scale of what was read before a fused optimizer took it out itself."""
        for indices, name in current.scaled:
            at = list(indices)
            for quantity in ("raw", "low", "high", "sum", "clipped", "previous_dot"):
                if quantity in fetched.values:
                    fetched.values[quantity][at] /= fetched.scalars[name]

    def light(self, values: dict[str, float], fetched: Fetched, current: Round) -> Numbers:
        """The values of tier `light`; returns the gradient norms as the optimizer saw them, by parameter."""
        raw, present = fetched.values["raw"], fetched.present["raw"]
        max_abs = np.maximum(np.abs(fetched.values["low"]), np.abs(fetched.values["high"]))
        there = self.any(present)
        self.write(values, "norm/raw", self.norms(raw, present), there)
        self.write(values, "max_abs", self.maxima(np.where(present, max_abs, 0.0)), there)
        self.write(values, "nonfinite", self.sums((present & ~np.isfinite(max_abs)).astype(np.float64)), there)
        factors, clipped = current.clip_factors(fetched, len(raw))
        with np.errstate(invalid="ignore"):
            seen: Numbers = raw * factors
        if "clipped" in fetched.values:  # measured again, because something else changed it after the clip
            seen = np.where(fetched.present["clipped"], fetched.values["clipped"], seen)
        if clipped.any():
            self.write(values, "norm/clipped", self.norms(seen, present), self.any(clipped & present))
        return seen

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

    def spread(self, values: dict[str, float], fetched: Fetched) -> None:
        """Mean, zeros, signs and participation; all but the mean from the strided samples, weighted by size."""
        present = fetched.present["raw"]
        there = self.any(present)
        number = self.sums(np.where(present, self.sizes, 0.0))
        if "sum" in fetched.values:
            self.write(values, "mean", _ratio(self.sums(np.where(present, fetched.values["sum"], 0.0)), number), there)
        weight = np.where(present, self.sizes / self._sample_sizes, 0.0)
        zeros = fetched.values["zeros"] - self._padding
        for name, counts in (("zero_fraction", zeros), ("positive_fraction", fetched.values["positives"])):
            self.write(values, name, _ratio(self.sums(weight * counts), number), there)
        if "compared" in fetched.values:
            self._agreement(values, fetched, weight)
        with np.errstate(over="ignore", invalid="ignore"):
            scale = np.where(present, fetched.values["sample_scale"], 0.0)
            squares = self.sums(weight * fetched.values["squares"] * scale**2)
            fourths = self.sums(weight * fetched.values["fourths"] * scale**4)
            participation = _ratio(squares**2, fourths)
        usable = (fourths > 0) & np.isfinite(participation)
        self.write(values, "participation", participation, usable)
        # Two independent gradients whose elements spread like this one's have a cosine of 0 ± 1/√(3·participation).
        noise = np.divide(1.0, np.sqrt(3 * participation), out=np.zeros_like(participation), where=usable)
        self.write(values, "cos_noise", noise, usable)

    def _agreement(self, values: dict[str, float], fetched: Fetched, weight: Numbers) -> None:
        weight = np.where(fetched.present["compared"], weight, 0.0)
        compared = self.sums(weight * fetched.values["compared"])
        agreeing = _ratio(self.sums(weight * fetched.values["agreeing"]), compared)
        self.write(values, "sign_agreement", agreeing, compared > 0)

    def terms(self, values: dict[str, float], fetched: Fetched, seen: SeenTerms | None) -> None:
        """What each loss term, and each reward, contributes by block; and whether the terms are all there is."""
        if seen is None:
            return
        values.update((f"grad/all/{key}", x) for key, x in fetched.scalars.items() if key.startswith("term/"))
        if seen.terms:
            self._products(values, "term", seen.terms, fetched.arrays["gram/term"], seen)
        if seen.rewards:
            size = len(seen.rewards)
            self._products(values, "reward", seen.rewards, fetched.arrays["gram/reward"][:, :size, :size], seen)
        if seen.cosine_error is not None:
            values["grad/all/term/cos_error"] = seen.cosine_error
        if "gram/raw" in fetched.arrays:
            pair = fetched.arrays["gram/raw"]
            error, scale = gram.additivity(pair)
            # Nothing against nothing has no error; a NaN of the gradients' own is recorded.
            if not (np.isnan(error) and np.isfinite(pair).all()):
                values["grad/all/term/additivity_error"], values["grad/all/term/scale"] = error, scale

    def _products(
        self, values: dict[str, float], kind: str, names: Sequence[str], products: Numbers, seen: SeenTerms
    ) -> None:
        """Norms, shares and cosines of each block, from inner products [parameters, n, n]."""
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = np.add.reduceat(products[self._order], self._starts, axis=0)
            norms, shares, cosines = gram.norms(blocks), gram.shares(blocks), gram.cosines(blocks)
        finite = np.isfinite(blocks).all((1, 2))
        there = [self.any(self._mask(seen.reached[f"{kind}/{name}"])) for name in names]
        for a, name in enumerate(names):
            self.write(values, f"{kind}/{name}/norm", norms[:, a], there[a])
            # A share of nothing and the direction of a zero are missing; what a NaN spoiled is a NaN.
            self.write(values, f"{kind}/{name}/share", shares[:, a], there[a] & ~(np.isnan(shares[:, a]) & finite))
            for b in range(a + 1, len(names)):
                cosine = cosines[:, a, b]
                both = there[a] & there[b] & ~(np.isnan(cosine) & finite)
                self.write(values, f"{kind}/{name}~{names[b]}/cos", cosine, both)

    def _mask(self, indices: Collection[int]) -> Mask:
        mask: Mask = np.zeros(len(self.sizes), dtype=np.bool_)
        mask[list(indices)] = True
        return mask

    def nonfinite(self, fetched: Fetched) -> list[int]:
        """The parameters whose raw gradient holds a NaN or an Inf."""
        if "raw" not in fetched.values:
            return []
        bad = ~np.isfinite(fetched.values["low"] + fetched.values["high"]) & fetched.present["raw"]
        return [int(i) for i in np.flatnonzero(bad)]


def _ratio(a: Numbers, b: Numbers) -> Numbers:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
