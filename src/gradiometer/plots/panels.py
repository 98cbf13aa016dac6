"""What figures are made of: axes of buckets and of rows, markers with intervals, cells, and honest
marks for what is not there."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.charts.analysis import ALL
from gradiometer.charts.model import Bars, Dots, Number
from gradiometer.plots.style import INK
from gradiometer.store.thinning import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

__all__ = [
    "AXIS",
    "MANY",
    "absent",
    "bucket_axis",
    "bucket_places",
    "cells",
    "compact",
    "draw_bars",
    "floats",
    "hatch_cells",
    "label_numbers",
    "mark",
    "not_measured",
    "nothing",
    "readings",
    "row_axis",
    "row_grid",
    "side_by_side",
    "thinned",
    "unity",
    "whisker",
]

AXIS = "bucket, reward std low → high"
MANY = 12
"""With more buckets than this, not every one is labelled."""
HATCH = "/////"
MISSING: dict[str, Any] = {
    "facecolor": "#FAFAFA",
    "edgecolor": "#B5B5B5",
    "linewidth": 0.0,
    "hatch": HATCH,
}
GAP = 0.5
"""Between the last bucket and `all`, which is no bucket of its own."""
NAME_WIDTH = 28
Estimated = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval."""


def floats(values: Sequence[Number]) -> list[float | None]:
    """A chart's numbers, in which NaN and the infinities are words."""
    return [None if value is None else float(value) for value in values]


def readings(item: Bars | Dots) -> list[Estimated]:
    """Each value with the ends of its interval."""
    values = floats(item.values if isinstance(item, Bars) else item.y)
    ends = ([None] * len(values) if end is None else floats(end) for end in (item.low, item.high))
    return list(zip(values, *ends, strict=True))


def bucket_places(names: Sequence[str]) -> list[float]:
    """Where each bucket stands on the axis; `all` a little apart."""
    apart = max(GAP, 0.03 * len(names)) if len(names) > 1 else 0.0
    return [place + (apart if name == ALL else 0.0) for place, name in enumerate(names)]


def thinned(names: Sequence[str]) -> list[int]:
    """The places of as many buckets as can be labelled, and always of `all`."""
    stride = math.ceil(len(names) / MANY)
    return [place for place, name in enumerate(names) if place % stride == 0 or name == ALL]


def bucket_axis(
    ax: Axes, names: Sequence[str], *, counts: Sequence[str] = (), label: str = AXIS
) -> None:
    """Buckets from low to high reward spread, with how many of something each holds."""
    places, shown = bucket_places(names), thinned(names)
    said = [names[place].removeprefix("bucket ") for place in shown]
    if counts and len(names) <= MANY:
        said = [f"{name}\n{counts[place]}" for name, place in zip(said, shown, strict=True)]
    ax.set_xticks([places[place] for place in shown], said)
    ax.set_xlim(-0.6, max(places) + 0.6)
    ax.tick_params(axis="x", length=0, pad=2)
    ax.grid(axis="y")
    ax.set_axisbelow(True)
    if ALL in names and len(names) > 1:
        middle = (places[names.index(ALL)] + len(names) - 2) / 2
        ax.axvline(middle, color="#BDBDBD", linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
    if label:
        ax.set_xlabel(label)


def draw_bars(
    ax: Axes,
    bars: Bars,
    *,
    shift: float = 0.0,
    width: float = 0.9,
    only: Sequence[bool] | None = None,
    hatched: bool = True,
    sure: bool = False,
    **look: Any,
) -> list[float]:
    """A marker for each bucket with its interval; what was not measured is hatched. Gives the
    numbers on the axis.

    `only` says which buckets are drawn. With `sure`, an interval belongs to each value, and a
    marker that has none is half filled.
    """
    places = bucket_places(bars.categories)
    size = look.pop("markersize", 4.0) * (1.0 if len(places) <= MANY else 0.55)
    drawn: list[float] = []
    for number, (place, reading) in enumerate(zip(places, readings(bars), strict=True)):
        if only is not None and not only[number]:
            continue
        if reading[0] is not None:
            drawn += mark(
                ax, place + shift, reading, upright=True, sure=sure, markersize=size, **look
            )
        elif hatched:
            absent(ax, place + shift, upright=True, width=width)
    return drawn


def side_by_side(number: int, count: int, room: float) -> dict[str, Any]:
    """The shift and width of one of several marks in a bucket."""
    width = room / max(count, 1)
    return {"shift": (number - (count - 1) / 2) * width, "width": width}


def mark(
    ax: Axes,
    at: float,
    reading: Estimated,
    *,
    upright: bool = False,
    sure: bool = True,
    **look: Any,
) -> list[float]:
    """A marker with its interval; half filled when it should have one and has not. Gives the
    numbers on the axis.

    `at` is the row, or with `upright` the place on the horizontal axis.
    """
    value, low, high = reading
    assert value is not None
    if not math.isfinite(value):
        word = "NaN" if math.isnan(value) else "Inf" if value > 0 else "−Inf"
        _words(ax, at, word, upright=upright)
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


def whisker(
    ax: Axes, at: float, low: float, high: float, *, upright: bool, color: str, size: float
) -> None:
    """An interval with its ends."""
    along, across = [low, high], [at, at]
    place = (across, along) if upright else (along, across)
    ax.plot(*place, color=color, linewidth=0.28 * size, zorder=2.5, solid_capstyle="butt")
    caps: dict[str, Any] = {
        "marker": "_" if upright else "|",
        "markersize": 0.9 * size,
        "color": color,
    }
    ax.plot(*place, linestyle="", zorder=2.5, **caps)


def _words(ax: Axes, at: float, words: str, *, upright: bool) -> None:
    place = (at, 0.5) if upright else (0.5, at)
    ax.text(
        *place,
        words,
        transform=ax.get_xaxis_transform() if upright else ax.get_yaxis_transform(),
        ha="center",
        va="center",
        fontsize=6,
        color=INK,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none"},
        zorder=4,
        rotation=90 if upright else 0,
    )


def absent(
    ax: Axes, at: float, words: str = "", *, upright: bool = False, width: float = 0.8
) -> None:
    """A place where a value would stand and none does, with the reason."""
    from matplotlib.patches import Rectangle

    corner, sides = (
        ((at - width / 2, 0.0), (width, 1.0)) if upright else ((0.0, at - width / 2), (1.0, width))
    )
    transform = ax.get_xaxis_transform() if upright else ax.get_yaxis_transform()
    ax.add_patch(Rectangle(corner, *sides, transform=transform, zorder=0.5, **MISSING))
    if words:
        _words(ax, at, words, upright=upright)


def not_measured() -> Patch:
    """The legend's line for a hatched place."""
    from matplotlib.patches import Patch

    return Patch(label="not measured", **MISSING)


def nothing(ax: Axes, words: str) -> None:
    """A whole panel that has nothing to show, and says why."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, **MISSING))
    ax.text(
        0.5,
        0.5,
        words,
        transform=ax.transAxes,
        ha="center",
        va="center",
        color=INK,
        fontsize=7,
        bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "none"},
    )
    # Not set_yticks([]): panels that share the axis would lose their ticks too.
    ax.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)


def row_axis(ax: Axes, names: Sequence[str]) -> None:
    """The first estimator at the top; long names are readable and written once for all panels."""
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


def label_numbers(ax: Axes, words: str, drawn: Sequence[float]) -> None:
    """An axis on which nothing stands has no numbers either."""
    ax.set_xlabel(words)
    if not drawn:
        ax.tick_params(axis="x", bottom=False, labelbottom=False)
        ax.grid(visible=False, axis="x")


def unity(ax: Axes, *, upright: bool = False) -> None:
    """The line at one: as much signal as noise, or as much variance as the first."""
    draw = ax.axhline if upright else ax.axvline
    draw(1.0, color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)


def cells(
    ax: Axes,
    rows: Sequence[str],
    columns: Sequence[str],
    texts: Sequence[Sequence[str | None]],
    *,
    values: Sequence[Sequence[float | None]] | None = None,
    size: float = 6.3,
) -> None:
    """A table of cells, coloured by values from −1 to 1, hatched where there is none."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    shades = colormaps["PuOr_r"]
    for down, line in enumerate(texts):
        for along, text in enumerate(line):
            value = values[down][along] if values is not None else None
            known = value if value is not None and math.isfinite(value) else None
            fill = "white" if known is None else shades(0.5 + 0.5 * known)
            look = {"facecolor": fill, "edgecolor": "white", "linewidth": 0.8}
            corner = (along - 0.5, down - 0.5)
            ax.add_patch(Rectangle(corner, 1, 1, **(MISSING if text is None else look)))
            if text:
                ink = "white" if known is not None and abs(known) > 0.55 else INK
                ax.text(along, down, text, ha="center", va="center", fontsize=size, color=ink)
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        stride = math.ceil(len(names) / MANY)
        axis.set_ticks(range(0, len(names), stride), list(names[::stride]))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def hatch_cells(
    ax: Axes, missing: np.ndarray[Any, np.dtype[np.bool_]], *, edges: Floats | None = None
) -> None:
    """Hatches over runs of cells without a value; `edges` are where the columns begin and end."""
    from matplotlib.patches import Rectangle

    edges = np.arange(missing.shape[1] + 1) - 0.5 if edges is None else edges
    for down, line in enumerate(missing):
        for first, last in _stretches(line):
            left, right = float(edges[first]), float(edges[last])
            place = ((left, down - 0.5), right - left, 1)
            ax.add_patch(Rectangle(*place, zorder=0.5, **MISSING))


def _stretches(line: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[tuple[int, int]]:
    """Where each stretch of True begins and ends."""
    padded = np.concatenate([[False], line, [False]]).astype(np.int8)
    changes = np.flatnonzero(np.diff(padded))
    yield from zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True)


def compact(number: float | None) -> str:
    """A count in at most four characters or so: 940, 1.2k, 35k, 1.1M."""
    if number is None:
        return "?"
    if not math.isfinite(number):
        return "NaN"
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            scaled = number / size
            return f"{scaled:.1f}{letter}" if scaled < 10 else f"{scaled:.0f}{letter}"
    return f"{number:g}" if number == int(number) else f"{number:.3g}"
