"""What a rank says of its pieces, as flat vectors: what is added over the ranks, its sketches, and what the largest counts of.

Their length depends on the model alone, not on the step, so that a rank that has nothing to say can say just that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture.gauge import SAMPLE_SIZE
from gradiometer.capture.reading import Fetched
from gradiometer.capture.shards import Piece
from gradiometer.maths.stats import stride_of

__all__ = ["Ledger", "digest_of"]

Numbers = NDArray[np.float64]

SQUARED = ("raw", "clipped", "update", "weight", "previous_norm")
"""Norms: their squares add up, in float64."""
ADDED = ("sum", "zeros", "positives", "agreeing", "compared", "previous_dot", "update_dot")
POWERS = {"squares": 2, "fourths": 4}
"""Of the samples, each divided by the largest element of its own piece."""
COLUMNS = (*SQUARED, *ADDED, *POWERS)
SKETCHES = ("sketch", "previous_sketch")


class Ledger:
    """Lays the numbers of a step out, by quantity and parameter, and reads what the ranks made of them together."""

    def __init__(self, pieces: Mapping[int, Piece], *, num_atoms: int, sketch_size: int, both_sketches: bool) -> None:
        in_order = [pieces[i] for i in range(len(pieces))]
        self._share = np.array([piece.share for piece in in_order])
        self._empty = np.array([piece.numel == 0 for piece in in_order])
        self._sampled = np.array([len(piece.sample_places(SAMPLE_SIZE)) for piece in in_order], dtype=np.float64)
        strides = np.array([stride_of(piece.shape, SAMPLE_SIZE) for piece in in_order])
        sizes = np.array([math.prod(piece.shape) for piece in in_order], dtype=np.float64)
        self._padding = SAMPLE_SIZE - np.maximum(np.ceil(sizes / strides), 1.0)
        self._num = len(in_order)
        self._shape = num_atoms, sketch_size
        self._sketches = SKETCHES if both_sketches else SKETCHES[:1]
        self.num_sums, self.num_largest = len(COLUMNS) * self._num, 3 * self._num
        self.num_sketched = len(self._sketches) * num_atoms * sketch_size

    def digest(self, fetched: Fetched) -> float:
        """Equal on all ranks when they read the same quantities of the same parameters."""
        there = [(name, mask.tobytes()) for name, mask in sorted(fetched.present.items())]
        return digest_of([*there, sorted(name for name in fetched.arrays if name in self._sketches)])

    def sums(self, fetched: Fetched) -> Numbers:
        """What is added over the ranks."""
        out = np.zeros(self.num_sums)
        table = out.reshape(len(COLUMNS), self._num)
        with np.errstate(over="ignore", invalid="ignore"):
            for row, name in zip(table, COLUMNS, strict=True):
                if name in fetched.values:
                    row[:] = np.where(fetched.present[name], self._addend(name, fetched), 0.0) * self._share
        return out

    def sketches(self, fetched: Fetched) -> NDArray[np.float32]:
        """The sketches of the pieces, which add up to those of the whole; float32, as they were made."""
        out = np.zeros(self.num_sketched, np.float32)
        for name, place in self._sketch_places():
            if name in fetched.arrays:
                out[place] = fetched.arrays[name].reshape(-1)
        return out

    def _addend(self, name: str, fetched: Fetched) -> Numbers:
        numbers = fetched.values[name]
        if name in SQUARED:
            return numbers**2
        if name in POWERS:
            return numbers * fetched.values["sample_scale"] ** POWERS[name]
        # A piece's sample is filled up with zeros that are nobody's.
        return numbers - (SAMPLE_SIZE - self._sampled) if name == "zeros" else numbers

    def largest(self, fetched: Fetched) -> Numbers:
        """What the largest is taken of: −low, high, and whether a NaN is among the elements."""
        out = np.full((3, self._num), -np.inf)
        if "raw" in fetched.values:
            there = fetched.present["raw"] & ~self._empty
            low, high = fetched.values["low"], fetched.values["high"]
            bad = np.isnan(low) | np.isnan(high)
            out[0] = np.where(there & ~bad, -low, -np.inf)
            out[1] = np.where(there & ~bad, high, -np.inf)
            out[2] = there & bad
        return out.reshape(-1)

    def together(self, fetched: Fetched, sums: Numbers, sketches: NDArray[np.float32], largest: Numbers) -> Fetched:
        """The numbers of the whole tensors, in the form one process would have read them."""
        table = sums.reshape(len(COLUMNS), self._num)
        values = dict(fetched.values)
        with np.errstate(invalid="ignore"):
            for row, name in zip(table, COLUMNS, strict=True):
                if name in values:
                    values[name] = np.sqrt(row) if name in SQUARED else row.copy()
        if "raw" in values:
            low, high, bad = largest.reshape(3, self._num)
            values["low"] = np.where(bad > 0, np.nan, np.where(low == -np.inf, 0.0, -low))
            values["high"] = np.where(bad > 0, np.nan, np.where(high == -np.inf, 0.0, high))
        if "zeros" in values:
            values["zeros"] = values["zeros"] + self._padding  # which the sheet takes out again
            values["sample_scale"] = np.ones(self._num)
        arrays = dict(fetched.arrays)
        for name, place in self._sketch_places():
            if name in arrays:
                arrays[name] = sketches[place].astype(np.float64).reshape(arrays[name].shape)
        return replace(fetched, values=values, arrays=arrays)

    def _sketch_places(self) -> list[tuple[str, slice]]:
        size = self._shape[0] * self._shape[1]
        return [(name, slice(n * size, (n + 1) * size)) for n, name in enumerate(self._sketches)]


def digest_of(parts: Sequence[object]) -> float:
    """A whole number below 2^48, which float64 holds exactly; the same in every process."""
    return float(int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "little"))
