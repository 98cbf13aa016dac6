"""What the figures are made of: an axis of buckets, markers with intervals, and honest marks for what is not there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradiometer.plots.analysis import ALL, SAMPLES, AnalysisStep
from gradiometer.plots.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

__all__ = [
    "AXIS",
    "MANY",
    "Reading",
    "bucket_axis",
    "cells",
    "compact",
    "draw_readings",
    "hatched",
    "not_measured",
    "nothing",
    "positions",
    "thinned",
]

AXIS = "bucket, reward std low → high"
MANY = 12
"""With more buckets than this, not every one is labelled."""
HATCH = "/////"
GAP = 0.5
"""Between the last bucket and `all`, which is no bucket of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One mark: a value with its interval where there is one; None is not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


def positions(step: AnalysisStep) -> dict[str, float]:
    """Where each bucket stands on the axis."""
    buckets = step.buckets
    shift = {ALL: max(GAP, 0.03 * len(buckets))} if len(buckets) > 1 else {}
    return {bucket: place + shift.get(bucket, 0.0) for place, bucket in enumerate(buckets)}


def thinned(buckets: Sequence[str]) -> list[str]:
    """As many of the buckets as can be labelled, and always `all`."""
    stride = math.ceil(len(buckets) / MANY)
    return [bucket for number, bucket in enumerate(buckets) if number % stride == 0 or bucket == ALL]


def bucket_axis(ax: Axes, step: AnalysisStep, *, counts: bool = True, label: str = AXIS) -> None:
    """Buckets from low to high reward spread, with how many samples each holds."""
    places = positions(step)
    few = len(places) <= MANY
    shown = thinned(step.buckets)
    names = [bucket.removeprefix("bucket_") for bucket in shown]
    if counts and few:
        names = [f"{name}\n{compact(step.value(SAMPLES, bucket=b))}" for name, b in zip(names, shown, strict=True)]
    ax.set_xticks([places[bucket] for bucket in shown], names)
    ax.set_xlim(-0.6, max(places.values()) + 0.6)
    ax.tick_params(axis="x", length=0, pad=2)
    ax.grid(axis="y")
    ax.set_axisbelow(True)
    if ALL in places and len(places) > 1:
        ax.axvline((places[ALL] + len(places) - 2) / 2, color="#BDBDBD", linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
    if label:
        ax.set_xlabel(label + (" (below: samples)" if counts and few else ""))


def draw_readings(
    ax: Axes,
    readings: Mapping[str, Reading],
    step: AnalysisStep,
    *,
    shift: float = 0.0,
    width: float = 0.9,
    sure: bool = False,
    **look: Any,
) -> list[float]:
    """A marker for each bucket, its interval as a bar; what was not measured is hatched. Gives the numbers on the axis.

    With `sure`, an interval belongs to each value, and a marker that has none is half filled.
    """
    places = positions(step)
    size = look.pop("markersize", 4.0) * (1.0 if len(places) <= MANY else 0.55)
    look |= {"markersize": size}
    drawn: list[float] = []
    for bucket, reading in readings.items():
        x = places[bucket] + shift
        if reading.value is None:
            hatched(ax, x - width / 2, width)
        elif not math.isfinite(reading.value):
            _not_finite(ax, x, reading.value)
        else:
            half = {"fillstyle": "left", "markerfacecoloralt": "white"} if sure and reading.low is None else {}
            drawn += _mark(ax, x, reading.value, reading, look | half)
    return drawn


def _mark(ax: Axes, x: float, value: float, reading: Reading, look: Mapping[str, Any]) -> list[float]:
    drawn = [value]
    colour = look.get("color", INK)
    if reading.low is not None and reading.high is not None and math.isfinite(reading.low + reading.high):
        ax.vlines(x, reading.low, reading.high, color=colour, linewidth=0.28 * look["markersize"], zorder=2.5)
        ax.plot(
            [x, x],
            [reading.low, reading.high],
            linestyle="",
            marker="_",
            markersize=0.8 * look["markersize"],
            color=colour,
            zorder=2.5,
        )
        drawn += [reading.low, reading.high]
    ax.plot([x], [value], linestyle="", zorder=3, clip_on=False, **{"markeredgewidth": 0.8, **look})
    return drawn


def _not_finite(ax: Axes, x: float, value: float) -> None:
    word = "NaN" if math.isnan(value) else "Inf" if value > 0 else "−Inf"
    ax.text(
        x, 0.5, word, transform=ax.get_xaxis_transform(), rotation=90, ha="center", va="center", fontsize=6, color=INK
    )


def hatched(ax: Axes, left: float, width: float) -> None:
    """A place where a value would stand and none was measured."""
    from matplotlib.patches import Rectangle

    ax.add_patch(
        Rectangle(
            (left, 0.0), width, 1.0, transform=ax.get_xaxis_transform(),
            facecolor="#FAFAFA", edgecolor="#B5B5B5", linewidth=0.0, hatch=HATCH, zorder=0.5,
        )
    )  # fmt: skip


def not_measured() -> Patch:
    """The legend's line for a hatched place."""
    from matplotlib.patches import Patch

    return Patch(facecolor="#FAFAFA", edgecolor="#B5B5B5", linewidth=0, hatch=HATCH, label="not measured")


def nothing(ax: Axes, words: str) -> None:
    """A whole panel that has nothing to show, and says why."""
    from matplotlib.patches import Rectangle

    ax.add_patch(
        Rectangle(
            (0, 0), 1, 1, transform=ax.transAxes, facecolor="#FAFAFA", edgecolor="#B5B5B5", linewidth=0.0, hatch=HATCH
        )
    )
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "none"}
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=INK, fontsize=7, bbox=box)
    # Not set_yticks([]): panels that share the axis would lose their ticks too.
    ax.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)


def cells(
    ax: Axes, rows: Sequence[str], columns: Sequence[str], texts: Sequence[Sequence[str | None]],
    *, values: Sequence[Sequence[float | None]] | None = None, size: float = 6.3,
) -> None:  # fmt: skip
    """A table of cells: coloured by a value from −1 to 1 where values are given, hatched where there is none."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    shades = colormaps["PuOr_r"]
    for down, line in enumerate(texts):
        for along, text in enumerate(line):
            value = values[down][along] if values is not None else None
            known = value is not None and math.isfinite(value)
            fill = shades(0.5 + 0.5 * float(value or 0.0)) if known else ("#FAFAFA" if text is None else "white")
            ax.add_patch(
                Rectangle(
                    (along - 0.5, down - 0.5), 1, 1, facecolor=fill, edgecolor="#B5B5B5" if text is None else "white",
                    linewidth=0.8 if text is not None else 0.0, hatch=HATCH if text is None else None,
                )
            )  # fmt: skip
            if text:
                ink = "white" if known and abs(float(value or 0.0)) > 0.55 else INK
                ax.text(along, down, text, ha="center", va="center", fontsize=size, color=ink)
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        stride = math.ceil(len(names) / MANY)
        axis.set_ticks(range(0, len(names), stride), list(names[::stride]))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


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
