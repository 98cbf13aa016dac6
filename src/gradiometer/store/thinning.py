"""A long series in few points without losing a spike: buckets with mean, low and high."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Thinned", "bucket_edges", "thin", "whole"]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """A point stands for a bucket, or where nothing had to be thinned for itself.

    `mean`, `low` and `high` are of the finite values, NaN where a bucket has none; `broken` says it
    holds a NaN or Inf.
    """

    steps: Ints
    """The last step of each bucket that has any."""
    mean: Floats
    low: Floats
    high: Floats
    broken: Bools
    whole: bool
    """Nothing was thinned: `mean` are the values as they were recorded, NaN and Inf among them."""


def bucket_edges(first: int, last: int, most: int) -> Ints:
    """Steps at which buckets begin: at most `most` buckets of equal width from first to last."""
    width = -(-(last - first + 1) // most)
    # Not arange: the width may not fit 64 bits.
    return np.array(range(first, last + 1, width), dtype=np.int64)


def whole(steps: Ints, values: Floats) -> Thinned:
    """A series that is short enough."""
    broken = ~np.isfinite(values)
    return Thinned(steps=steps, mean=values, low=values, high=values, broken=broken, whole=True)


def thin(steps: Ints, values: Floats, edges: Ints) -> Thinned:
    """A series in the buckets that begin at the edges; the last one has no end."""
    if not len(steps):
        return whole(steps, values)
    bucket = np.searchsorted(edges, steps, side="right")
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    finite = np.isfinite(values)
    count = np.add.reduceat(finite.astype(np.float64), starts)
    some = count > 0
    with np.errstate(over="ignore"):
        total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    mean = np.full(len(starts), np.nan)
    np.divide(total, count, out=mean, where=some)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    return Thinned(
        steps=steps[np.append(starts[1:], len(steps)) - 1],
        # A sum may be too large for a float, a mean never is.
        mean=np.where(some, np.clip(mean, low, high), np.nan),
        low=np.where(some, low, np.nan),
        high=np.where(some, high, np.nan),
        broken=np.logical_or.reduceat(~finite, starts),
        whole=False,
    )
