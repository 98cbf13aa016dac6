"""What rules look for in a series: its level, its trend, whether something persists, and since when.

Robust statistics only. A trend is Mann–Kendall on block means (`maths.trends.drift`), never on raw measurements; a level is a
median with an interval from blocks (`maths.means`); a condition counts when it holds in three disjoint windows at the end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.maths import trends
from gradiometer.store.readable import Floats

__all__ = [
    "NEAR_BEST",
    "Trend",
    "enough",
    "learning",
    "level",
    "near_best",
    "number",
    "outcome",
    "persists",
    "robust_sigma",
    "since",
    "told_best",
    "trend",
]

WINDOWS = 3
"""Disjoint windows at the end of a series in which a condition must hold: one bad stretch is not a state."""
WINDOW_SHARE = 1 / 6
"""Of the measurements, each window: together they are the last half of the run."""
MIN_WINDOW = 3
"""Measurements of a window below which its median is any one of them."""
FLAT_SHARE = 0.1
"""A change of less than a tenth of its own size or spread is no change worth acting on."""

NEAR_BEST = 0.05
"""Of the way from the start to the known maximum: what a policy that samples its actions keeps losing."""

Direction = Literal["rises", "falls", "flat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Where a series goes. `direction` is None when it is too short or wanders too slowly for a verdict."""

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
    return middle if math.isfinite(middle) else 2.0 * float(np.median(values / 2.0))  # the mean of two near 1e308


def robust_sigma(values: Floats) -> float:
    """1.4826 × the median absolute deviation: σ of a normal, and blind to a few outliers."""
    finite = values[np.isfinite(values)]
    return float(1.4826 * np.median(np.abs(finite - np.median(finite)))) if len(finite) else math.nan


def trend(series: Series, *, min_change: float | None = None) -> Trend:
    """Mann–Kendall on block means. `min_change` is the smallest change that counts, in the unit of the series; unless told
    a tenth of its typical size or spread, whichever is larger."""
    finite = series.finite
    if len(finite) < trends.MIN_VALUES:
        return Trend(direction=None, change=math.nan, p_value=None)
    if min_change is None:
        spread = float(np.subtract(*np.percentile(finite.values, [90, 10])))
        min_change = FLAT_SHARE * max(abs(level(finite)), spread)
    size = float(np.abs(finite.values).max()) or 1.0  # squares of values near 1e±300 would leave the range of floats
    found = trends.drift(finite.steps, finite.values / size, min_effect=min_change / size)
    if found is None or found.p_value is None:
        return Trend(direction=None, change=math.nan if found is None else found.change * size, p_value=None)
    direction: Direction = "flat"
    if found.significant:
        direction = "rises" if found.change > 0 else "falls"
    return Trend(direction=direction, change=found.change * size, p_value=found.p_value)


def persists(series: Series, holds: Callable[[float], bool], *, windows: int = WINDOWS) -> bool | None:
    """Whether the median satisfies `holds` in each of the last windows; None when there are too few measurements."""
    values = series.finite.values
    size = max(MIN_WINDOW, int(len(values) * WINDOW_SHARE))
    if len(values) < windows * size:
        return None
    parts = [values[len(values) - (k + 1) * size : len(values) - k * size] for k in range(windows)]
    return all(holds(float(np.median(part))) for part in parts)


def since(series: Series, holds: Callable[[float], bool]) -> int | None:
    """The first step of the last unbroken stretch in which the running median of five satisfies `holds`."""
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


def enough(series: Series, count: int) -> bool:
    """Whether there are that many finite measurements."""
    return len(series.finite) >= count


def outcome(chart: Chart) -> Series | None:
    """What the training is for: the reward, or else the success rate."""
    return chart.get("reward") or chart.get("success_rate")


def learning(chart: Chart) -> bool | None:
    """Whether the outcome rises, or stands at its known maximum; None when nobody can tell."""
    reward = outcome(chart)
    if reward is None:
        return None
    best = told_best(chart)
    if best is not None and near_best(level(reward.last(0.2)), best, level(reward.first(0.1))):
        return True
    direction = trend(reward).direction
    return None if direction is None else direction == "rises"


def number(value: object) -> float | None:
    """A fact that is a finite number, else None: facts hold whatever somebody wrote, also integers of 400 digits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def told_best(chart: Chart) -> float | None:
    """The most a policy can earn, where the run wrote it down."""
    return number(chart.fact("max_reward", "max_return", "reward_threshold"))


def near_best(end: float, best: float, start: float, *, within: float = NEAR_BEST) -> bool:
    """Whether the end is so close to the maximum, by shares of the way from the start. A maximum may be below zero."""
    return end >= best - within * max(abs(best), best - start)
