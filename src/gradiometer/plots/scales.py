"""The vertical axis: linear where that tells the story, logarithmic where the range asks, broken where logs meet negatives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["set_scale"]

Array = np.ndarray[Any, np.dtype[np.float64]]

DECADES = 1.5
"""A logarithmic axis from this range on."""
DEEPEST = 4
"""Decades below the largest number at which a broken axis stops being logarithmic."""
NEAR_ZERO, BELOW_ZERO = 0.12, 0.3
"""How much of a broken axis the two linear parts take, as shares of its logarithmic part."""


def set_scale(
    ax: Axes,
    drawn: Iterable[float],
    *,
    judged: Iterable[float] | None = None,
    decades: float = DECADES,
    from_zero: bool = True,
) -> str:
    """Choose the axis for the numbers on it, and give its name: linear, log, or function for a broken one.

    `judged` are the numbers whose range counts: a signal that is all but zero must not stretch the axis by decades.
    """
    numbers = _finite(drawn)
    if not numbers.size:
        return "linear"
    sizes = _finite(numbers if judged is None else judged)
    sizes = sizes[sizes > 0]
    wide = sizes.size > 0 and float(sizes.max() / sizes.min()) > 10**decades
    if not wide:
        _linear(ax, numbers, from_zero=from_zero)
    elif (numbers > 0).all():
        ax.set_yscale("log")
        ax.set_ylim(float(numbers.min()) / 1.6, float(numbers.max()) * 1.6)
    else:
        _broken_log(ax, numbers, sizes)
    low, high = ax.get_ylim()
    if low < 0 < high:
        ax.axhline(0.0, color=INK, linewidth=0.7, zorder=1.5)
    return ax.get_yscale()


def _finite(numbers: Iterable[float]) -> Array:
    return np.array([number for number in numbers if math.isfinite(number)], dtype=np.float64)


def _linear(ax: Axes, numbers: Array, *, from_zero: bool) -> None:
    low, high = float(numbers.min()), float(numbers.max())
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    ax.set_ylim(low if from_zero and low == 0 else low - room, high + room)


def _broken_log(ax: Axes, numbers: Array, sizes: Array) -> None:
    """Logarithmic above the decade of the smallest size; below it, shaded, linear to zero and linear again beneath."""
    top, deepest = float(numbers.max()), -min(float(numbers.min()), 0.0)
    floor = 10.0 ** math.floor(math.log10(max(1.5 * float(sizes.min()), float(sizes.max()) / 10**DEEPEST)))
    start = math.log10(floor)
    span = max(math.log10(max(top, float(sizes.max()))) - start, 1.0)
    near, below = NEAR_ZERO * span, BELOW_ZERO * span
    depth = deepest or floor

    def forward(value: Any) -> Array:
        y = np.asarray(value, dtype=np.float64)
        under = np.where(y >= 0, start - near * (1 - y / floor), start - near + below * y / depth)
        return np.where(y >= floor, np.log10(np.maximum(y, floor)), under)

    def inverse(value: Any) -> Array:
        at = np.asarray(value, dtype=np.float64)
        under = np.where(at >= start - near, floor * (1 - (start - at) / near), depth * (at - start + near) / below)
        return np.where(at >= start, 10 ** np.minimum(np.maximum(at, start), 300.0), under)

    ax.set_yscale("function", functions=(forward, inverse))
    powers = range(round(start), math.floor(math.log10(max(top, floor))) + 1)
    ticks = [10.0**power for power in powers]
    labels = [f"$10^{{{power}}}$" for power in powers]
    lowest = float(f"{-deepest:.0e}")
    ax.set_yticks([*([lowest] if deepest else []), 0.0, *ticks], [*([_minus(lowest)] if deepest else []), "0", *labels])
    ax.minorticks_off()
    ax.axhspan(-1.15 * depth, floor, color="#F4F4F4", zorder=0, linewidth=0)
    ax.set_ylim(-1.15 * depth if deepest else 0.0, max(top, floor) * 1.6)


def _minus(number: float) -> str:
    return f"{number:g}".replace("-", "−")
