"""One curve from several runs: their mean and spread at steps that all of them cover.

Plain numpy: reading a run needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

__all__ = ["Ensemble", "ensemble"]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

ENOUGH_COMMON = 0.5
"""Of the points of the shortest run: with so many at common steps nothing is interpolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Mean and sample standard deviation over n runs by step; NaN where a run has one."""

    steps: Ints
    mean: Floats
    std: Floats
    lowest: Floats
    """The smallest of the runs."""
    count: int
    interpolated: bool
    """The runs were measured at different steps: each was read off between its own points."""

    @property
    def low(self) -> Floats:
        """mean − std."""
        return np.asarray(self.mean - self.std)

    @property
    def high(self) -> Floats:
        """mean + std."""
        return np.asarray(self.mean + self.std)


def ensemble(members: Sequence[tuple[Ints, Floats]]) -> Ensemble:
    """m_t = Σ x_i(t)/n, s_t² = Σ (x_i(t) − m_t)²/(n − 1) over n runs, each (steps, values).

    t are the steps all runs have. Where these are few because the cadences differ, t are the steps
    of any run and x_i(t) lies on the straight line between the neighbours of t. Never outside what
    all runs cover, so a step that was there stays as it is while the runs grow. A run without
    points must be left out before.
    """
    first = max(int(steps[0]) for steps, _ in members)
    last = min(int(steps[-1]) for steps, _ in members)
    grid, interpolated = _grid([steps[(steps >= first) & (steps <= last)] for steps, _ in members])
    values = np.stack([_at(grid, *member) for member in members])
    with np.errstate(all="ignore"):
        std = values.std(axis=0, ddof=1) if len(members) > 1 else np.full(len(grid), np.nan)
        return Ensemble(
            steps=grid,
            mean=values.mean(axis=0),
            std=std,
            lowest=values.min(axis=0),
            count=len(members),
            interpolated=interpolated,
        )


def _grid(inside: Sequence[Ints]) -> tuple[Ints, bool]:
    one = inside[0]
    if all(np.array_equal(one, other) for other in inside[1:]):
        return one, False
    common: Ints = reduce(lambda a, b: np.intersect1d(a, b, assume_unique=True), inside)
    if len(common) and len(common) >= ENOUGH_COMMON * min(len(steps) for steps in inside):
        return common, False
    return np.unique(np.concatenate(inside)), True


def _at(grid: Ints, steps: Ints, values: Floats) -> Floats:
    """A run at steps of its range: its own values, else on the line between its neighbours."""
    if np.array_equal(grid, steps):
        return values
    with np.errstate(all="ignore"):
        between = np.asarray(np.interp(grid, steps, values))
    places = np.clip(np.searchsorted(steps, grid), 0, len(steps) - 1)
    return np.where(steps[places] == grid, values[places], between)
