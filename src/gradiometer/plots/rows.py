"""Estimators as rows, numbers along the horizontal axis: long names are readable and written once for all panels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gradiometer.plots.panels import HATCH, Reading
from gradiometer.plots.scales import set_scale
from gradiometer.plots.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "absent",
    "around_one",
    "log_scale",
    "mark",
    "row_axis",
    "row_grid",
    "row_scale",
    "signed_scale",
    "spoken",
    "unity",
    "whisker",
]

NAME_WIDTH = 28
MAX_TICKS = 5
DECADES = 1.5


def row_axis(ax: Axes, names: Sequence[str]) -> None:
    """The first estimator at the top."""
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), [textwrap.fill(name, NAME_WIDTH) for name in names])
    row_grid(ax, len(names))


def row_grid(ax: Axes, count: int) -> None:
    """Lines between the rows, also on a panel that shares them."""
    ax.tick_params(axis="y", length=0, pad=4)
    ax.grid(visible=True, axis="x")
    ax.set_axisbelow(True)
    for line in range(1, count):
        ax.axhline(line - 0.5, color="#E3E3E3", linewidth=0.5, zorder=0)


def mark(
    ax: Axes, at: float, reading: Reading, *, upright: bool = False, sure: bool = True, **look: Any
) -> list[float]:
    """A marker with its interval; half filled when it should have one and has not. Gives the numbers on the axis.

    `at` is the row, or with `upright` the place on the horizontal axis.
    """
    value, low, high = reading.value, reading.low, reading.high
    assert value is not None
    if not math.isfinite(value):
        _word(ax, at, "NaN" if math.isnan(value) else "Inf" if value > 0 else "−Inf", upright=upright)
        return []
    size, colour = look.setdefault("markersize", 4.5), look.get("color", INK)
    drawn = [value]
    if low is not None and high is not None and math.isfinite(low + high):
        whisker(ax, at, low, high, upright=upright, color=colour, size=size)
        drawn += [low, high]
    elif sure:
        look |= {"fillstyle": "left", "markerfacecoloralt": "white"}
    place = ([at], [value]) if upright else ([value], [at])
    ax.plot(*place, linestyle="", zorder=3, clip_on=False, **{"markeredgewidth": 0.8, **look})
    return drawn


def whisker(ax: Axes, at: float, low: float, high: float, *, upright: bool, color: str, size: float) -> None:
    """An interval with its ends."""
    along, across = [low, high], [at, at]
    place = (across, along) if upright else (along, across)
    ax.plot(*place, color=color, linewidth=0.28 * size, zorder=2.5, solid_capstyle="butt")
    ax.plot(*place, linestyle="", marker="_" if upright else "|", markersize=0.9 * size, color=color, zorder=2.5)


def _word(ax: Axes, at: float, word: str, *, upright: bool) -> None:
    place = (at, 0.5) if upright else (0.5, at)
    transform = ax.get_xaxis_transform() if upright else ax.get_yaxis_transform()
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"}
    ax.text(*place, word, transform=transform, ha="center", va="center", fontsize=6, color=INK, bbox=box, zorder=4)


def absent(ax: Axes, at: float, words: str, *, upright: bool = False, width: float = 0.8) -> None:
    """A place where a value would stand and none does, with the reason."""
    from matplotlib.patches import Rectangle

    corner, sides = ((at - width / 2, 0.0), (width, 1.0)) if upright else ((0.0, at - width / 2), (1.0, width))
    transform = ax.get_xaxis_transform() if upright else ax.get_yaxis_transform()
    ax.add_patch(
        Rectangle(
            corner, *sides, transform=transform, facecolor="#FAFAFA", edgecolor="#B5B5B5", linewidth=0.0, hatch=HATCH,
            zorder=0.5,
        )
    )  # fmt: skip
    place = (at, 0.5) if upright else (0.5, at)
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none"}
    ax.text(
        *place, words, transform=transform, ha="center", va="center", fontsize=6, color=INK, bbox=box, zorder=4,
        rotation=90 if upright else 0,
    )  # fmt: skip


def unity(ax: Axes, *, upright: bool = False) -> None:
    """The line at one: as much signal as noise, or as much variance as the first."""
    draw = ax.axhline if upright else ax.axvline
    draw(1.0, color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)


def around_one(snr: Sequence[float]) -> dict[str, Any]:
    """How SNRs choose their axis: the distance to one matters, and a twenty must not push the others onto that line."""
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
    words = {float(tick): label.get_text() for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)}
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
    """For numbers of either sign: linear, or logarithmic to both sides when one group is decades larger than another."""
    numbers = np.array([number for group in groups for number in group if math.isfinite(number)])
    sizes = [max((abs(number) for number in group if math.isfinite(number)), default=0.0) for group in groups]
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
    ticks = {sign * 10.0**power: f"${'-' if sign < 0 else ''}10^{{{power}}}$" for power in powers for sign in (-1, 1)}
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
        ax.set_xticks(wide[::stride], [f"$10^{{{round(math.log10(tick))}}}$" for tick in wide[::stride]])
        ax.minorticks_off()
        return
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= (2 if high / low > 4 else 3):
            break
    ax.set_xticks(ticks, [spoken(tick) for tick in ticks])
    ax.minorticks_off()


def spoken(number: float, digits: int = 2) -> str:
    """As a paper writes it: 0.031, 42, 1.3 × 10⁻⁵."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if 1e-4 <= abs(number) < 1e4:
        whole = abs(number) >= 10**digits
        return (f"{number:.0f}" if whole else f"{number:.{digits}g}").replace("-", "−")
    mantissa, power = f"{number:.{digits - 1}e}".split("e")
    shown = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"${shown}\\times10^{{{int(power)}}}$"
