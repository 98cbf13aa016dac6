"""The vertical axis: linear where that tells the story, logarithmic where the range asks, broken
where logs meet negatives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gradiometer.plots.style import INK
from gradiometer.words import typeset

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["around_one", "log_scale", "row_scale", "set_scale", "signed_scale"]

Array = np.ndarray[Any, np.dtype[np.float64]]

DECADES = 1.5
"""A logarithmic axis from this range on."""
DEEPEST = 4
"""Decades below the largest number at which a broken axis stops being logarithmic."""
MAX_TICKS = 5
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
    """Choose the axis for the numbers on it, and give its name: linear, log, or function for a
    broken one.

    `judged` are the numbers whose range counts: a signal that is all but zero must not stretch the
    axis by decades.
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
    """Logarithmic above the smallest size; below it, shaded, linear to zero and beneath."""
    top, deepest = float(numbers.max()), -min(float(numbers.min()), 0.0)
    floor = 10.0 ** math.floor(
        math.log10(max(1.5 * float(sizes.min()), float(sizes.max()) / 10**DEEPEST))
    )
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
        under = np.where(
            at >= start - near,
            floor * (1 - (start - at) / near),
            depth * (at - start + near) / below,
        )
        return np.where(at >= start, 10 ** np.minimum(np.maximum(at, start), 300.0), under)

    ax.set_yscale("function", functions=(forward, inverse))
    powers = range(round(start), math.floor(math.log10(max(top, floor))) + 1)
    ticks = [10.0**power for power in powers]
    labels = [f"$10^{{{power}}}$" for power in powers]
    lowest = float(f"{-deepest:.0e}")
    ax.set_yticks(
        [*([lowest] if deepest else []), 0.0, *ticks],
        [*([_minus(lowest)] if deepest else []), "0", *labels],
    )
    ax.minorticks_off()
    ax.axhspan(-1.15 * depth, floor, color="#F4F4F4", zorder=0, linewidth=0)
    ax.set_ylim(-1.15 * depth if deepest else 0.0, max(top, floor) * 1.6)


def _minus(number: float) -> str:
    return f"{number:g}".replace("-", "−")


def around_one(snr: Sequence[float]) -> dict[str, Any]:
    """How SNRs choose their axis: a twenty must not push the others onto the line at one."""
    return {"judged": [max(value, 0.5) for value in snr], "decades": 1.0}


class _Lying:
    """What `set_scale` does to a vertical axis, done to the horizontal one."""

    def __init__(self, ax: Axes) -> None:
        self.set_yscale: Any = ax.set_xscale
        self.get_yscale = ax.get_xscale
        self.set_ylim: Any = ax.set_xlim
        self.get_ylim = ax.get_xlim
        self.set_yticks = ax.set_xticks
        self.axhline = ax.axvline
        self.axhspan = ax.axvspan
        self.minorticks_off = ax.minorticks_off


def row_scale(ax: Axes, drawn: Iterable[float], **choice: Any) -> str:
    """`set_scale` for the horizontal axis, with ticks that do not run into each other."""
    scale = set_scale(cast("Axes", _Lying(ax)), drawn, **choice)
    if scale == "log":
        _log_ticks(ax)
    elif scale == "linear":
        ax.locator_params(axis="x", nbins=MAX_TICKS - 1)
    else:
        _room_for_zero(ax)
    return scale


def _room_for_zero(ax: Axes) -> None:
    """The lowest power of a broken axis stands so close to zero that both cannot be written."""
    words = {
        float(tick): label.get_text()
        for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
    }
    powers = [tick for tick in words if tick > 0]
    if len(powers) > 1:
        words[min(powers)] = ""
    ax.set_xticks(list(words), list(words.values()))


def log_scale(ax: Axes, drawn: Sequence[float]) -> str:
    """Logarithmic whatever the range; broken where an interval reaches below zero."""
    if not drawn or min(drawn) <= 0:
        return row_scale(ax, drawn, decades=0.0)
    ax.set_xscale("log")
    ax.set_xlim(min(drawn) / 1.6, max(drawn) * 1.6)
    _log_ticks(ax)
    return "log"


def signed_scale(ax: Axes, groups: Sequence[Sequence[float]]) -> str:
    """Linear, or logarithmic to both sides when one group is decades larger."""
    numbers = np.array([number for group in groups for number in group if math.isfinite(number)])
    sizes = [
        max((abs(number) for number in group if math.isfinite(number)), default=0.0)
        for group in groups
    ]
    sizes = [size for size in sizes if size > 0]
    if not sizes or max(sizes) <= min(sizes) * 10**DECADES:
        return row_scale(ax, numbers, decades=math.inf)
    start, end = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
    ax.set_xscale("symlog", linthresh=10.0**start, linscale=0.5)
    ax.axvspan(-(10.0**start), 10.0**start, color="#F4F4F4", zorder=0, linewidth=0)
    ax.axvline(0.0, color=INK, linewidth=0.7, zorder=1.5)
    bottom, top = float(numbers.min()), float(numbers.max())
    ax.set_xlim(min(1.6 * bottom, -(10.0**start)), max(1.6 * top, 10.0**start))
    powers = range(end - 1, start, -math.ceil((end - 1 - start) / 3))
    ticks = {
        sign * 10.0**power: f"${'-' if sign < 0 else ''}10^{{{power}}}$"
        for power in powers
        for sign in (-1, 1)
    }
    shown = {tick: text for tick, text in ticks.items() if 1.6 * bottom <= tick <= 1.6 * top}
    ax.set_xticks([0.0, *shown], ["0", *shown.values()])
    ax.minorticks_off()
    return "symlog"


def _log_ticks(ax: Axes) -> None:
    """Powers of ten, or 1, 2 and 5 in each decade when there are few of them."""
    low, high = ax.get_xlim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = [10.0**power for power in powers if low <= 10.0**power <= high]
    if len(wide) >= 3:
        stride = math.ceil(len(wide) / MAX_TICKS)
        ax.set_xticks(
            wide[::stride], [f"$10^{{{round(math.log10(tick))}}}$" for tick in wide[::stride]]
        )
        ax.minorticks_off()
        return
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= (2 if high / low > 4 else 3):
            break
    ax.set_xticks(ticks, [typeset(tick) for tick in ticks])
    ax.minorticks_off()
