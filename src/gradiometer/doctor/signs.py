"""What rules look for in a series: its level, its trend, what persists in it, and since when.

Robust statistics only. A trend is Mann–Kendall on block means (`maths.trends.drift`), never on raw
measurements; a level is a median with an interval from blocks (`maths.means`); a condition counts
when it holds in three disjoint windows at the end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.rundata import NORM, Series
from gradiometer.maths import trends
from gradiometer.records import Evidence
from gradiometer.store.reader import Floats, Ints
from gradiometer.words import fmt

__all__ = [
    "NORM",
    "both_ends",
    "ends",
    "enough",
    "in_words",
    "layered",
    "level",
    "log10",
    "mapping",
    "newest",
    "number",
    "over",
    "persists",
    "power",
    "reads",
    "robust_sigma",
    "shown",
    "since",
    "stays",
    "together",
    "trend",
    "where",
]

limits = thresholds.group("signs")


Direction = Literal["rises", "falls", "flat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Where a series goes. `direction` is None when it is too short or wanders too slowly."""

    direction: Direction | None
    change: float
    """Over the window, along the robust slope, in the series' own unit."""
    p_value: float | None


def level(series: Series) -> float:
    """The median of the finite values; NaN without any."""
    values = series.finite.values
    if not len(values):
        return math.nan
    middle = float(np.median(values))
    # the mean of two near 1e308
    return middle if math.isfinite(middle) else 2.0 * float(np.median(values / 2.0))


def robust_sigma(values: Floats) -> float:
    """1.4826 × the median absolute deviation: σ of a normal, and blind to a few outliers."""
    finite = values[np.isfinite(values)]
    return (
        float(1.4826 * np.median(np.abs(finite - np.median(finite)))) if len(finite) else math.nan
    )


def trend(series: Series, *, min_change: float | None = None) -> Trend:
    """Mann–Kendall on block means. `min_change` is the smallest change that counts, in the unit of
    the series; unless told a tenth of its typical size or spread, whichever is larger."""
    finite = series.finite
    if len(finite) < trends.MIN_VALUES:
        return Trend(direction=None, change=math.nan, p_value=None)
    if min_change is None:
        spread = float(np.subtract(*np.percentile(finite.values, [90, 10])))
        min_change = limits.flat_share * max(abs(level(finite)), spread)
    # squares of values near 1e±300 would leave the range of floats
    size = float(np.abs(finite.values).max()) or 1.0
    found = trends.drift(finite.steps, finite.values / size, min_effect=min_change / size)
    if found is None or found.p_value is None:
        return Trend(
            direction=None, change=math.nan if found is None else found.change * size, p_value=None
        )
    direction: Direction = "flat"
    if found.significant:
        direction = "rises" if found.change > 0 else "falls"
    return Trend(direction=direction, change=found.change * size, p_value=found.p_value)


def persists(
    series: Series, holds: Callable[[float], bool], *, windows: int | None = None
) -> bool | None:
    """Whether the median satisfies `holds` in each of the last windows; None if too short."""
    values = series.finite.values
    windows = int(limits.windows) if windows is None else windows
    size = max(int(limits.min_window), int(len(values) * limits.window_share))
    if len(values) < windows * size:
        return None
    parts = [values[len(values) - (k + 1) * size : len(values) - k * size] for k in range(windows)]
    return all(holds(float(np.median(part))) for part in parts)


def since(series: Series, holds: Callable[[float], bool]) -> int | None:
    """The first step of the last stretch in which the running median of five satisfies `holds`."""
    finite = series.finite
    if not len(finite):
        return None
    padded = np.pad(finite.values, 2, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    good = np.array([holds(float(x)) for x in smooth])
    if not good[-1]:
        return None
    broken = np.flatnonzero(~good)
    return int(finite.steps[broken[-1] + 1 if len(broken) else 0])


def power(decades: float) -> float:
    """10 to that power, kept within the range of floats: two norms may be 600 decades apart."""
    return float(10.0 ** min(max(decades, -300.0), 300.0))


def newest(series: Series) -> float:
    """The last finite value."""
    return float(series.finite.values[-1])


def enough(series: Series, count: float) -> bool:
    """Whether there are that many finite measurements."""
    return len(series.finite) >= count


def number(value: object) -> float | None:
    """A fact that is a finite number, else None: facts hold anything, also huge integers."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= sys.float_info.max
    ):
        return None
    return float(value)


def where(series: Series) -> str:
    """The block a series is of; `all` where another trainer logged the whole one only."""
    return series.parts.get("block") or "all"


def in_words(block: str) -> str:
    """A block as a sentence has it."""
    return "the whole model" if block == "all" else block


def layered(series: Series) -> bool:
    """Whether it is of one layer."""
    return where(series).startswith("layer.")


def log10(series: Series) -> Series:
    """log10 of what is above zero; an infinite norm counts as the largest there is."""
    there = series.values > 0.0
    return replace(
        series,
        steps=series.steps[there],
        values=np.log10(np.minimum(series.values[there], limits.largest)),
    )


def together(a: Series, b: Series) -> tuple[Series, Series]:
    """Both at the steps that both have."""
    steps, i, j = np.intersect1d(a.steps, b.steps, return_indices=True)
    return replace(a, steps=steps, values=a.values[i]), replace(b, steps=steps, values=b.values[j])


def over(a: Series, b: Series) -> Series:
    """a/b at the steps that have both; NaN and Inf where b is 0."""
    a, b = together(a, b)
    with np.errstate(all="ignore"):
        return replace(a, values=a.values / b.values)


def stays(series: Series, holds: Callable[[float], bool]) -> bool:
    """Whether it holds in three windows at the end, and there are enough measurements to say so."""
    return persists(series, holds) is True


def mapping(given: Any) -> Mapping[str, Any]:
    """What a table holds, where it is what it should be; nothing otherwise."""
    return given if isinstance(given, Mapping) else {}


def ends(series: Series) -> tuple[float, float]:
    """The medians of the first fifth and of the last."""
    return level(series.finite.first(0.2)), level(series.finite.last(0.2))


def both_ends(series: Series) -> Evidence:
    """The same as evidence."""
    first, last = ends(series)
    return reads(series, f"{fmt(first)} in the first fifth, {fmt(last)} in the last (medians)")


def shown(
    series: Series, reading: str, *, first_step: int | None = None, steps: Ints | None = None
) -> Evidence:
    """What a series reads, over all its steps or over these."""
    at = series.steps if steps is None or not len(steps) else steps
    if not len(at):
        return Evidence(series=series.name, reading=reading)
    first = int(at[0]) if first_step is None else first_step
    return Evidence(series=series.name, reading=reading, first_step=first, last_step=int(at[-1]))


def reads(series: Series, reading: str) -> Evidence:
    """What a series reads over the steps it has."""
    return shown(series.finite, reading)
