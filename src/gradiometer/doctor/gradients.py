"""What rules look for in gradients: layers in the order of the model, explosions, spikes, rhythms, a reward that never rose."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.rule import Skipped
from gradiometer.doctor.signs import fmt, learning, level, outcome, persists, robust_sigma, trend
from gradiometer.maths.health import BAND_SIGMAS, FALLBACK_HIGH, FALLBACK_LOW, SIGMA_FLOOR
from gradiometer.records import Evidence
from gradiometer.store.readable import Floats, Ints

__all__ = [
    "NORM",
    "branches",
    "exploded",
    "flat_outcome",
    "items",
    "jumps",
    "layered",
    "log10",
    "over",
    "rhythm",
    "seen",
    "spikes",
    "stays",
    "stuck",
    "together",
    "too_short",
    "vanished",
    "where",
]

NORM = "grad/<block>/norm/raw"
SPIKE_SIGMAS, SPIKE_FACTOR = 8.0, 3.0
"""Failure catalogue F33. 5 robust σ of the log-norm are asked for too: a log-normal norm passes 8 linear ones by itself."""
SPIKE_WINDOW = 31
"""Measurements of the running median that a spike stands out of: it follows schedules and drifts, and not the spikes."""
COMPANION_FACTOR = 2.0
"""What doubles where the gradient spikes goes with it."""
LEVEL = 0.01
"""Over all blocks together, by Bonferroni: a run is read a few dozen times."""
GROWTH = 2.0
"""Decades. A return that grows from 20 to 500 makes a value gradient grow up to 600 times: growth alone accuses nobody."""
VANISHED = math.log10(0.05)
"""Of the early norm (public log doctors); a converged policy passes it too, hence the second signal."""
LARGEST = 1e300
"""Stands for a norm that overflowed."""
MIN_RHYTHM = 5
"""Equal distances that are no chance."""


def where(series: Series) -> str:
    """The block a series is of; `all` where another trainer logged the whole one only."""
    return series.parts.get("block") or "all"


def layered(series: Series) -> bool:
    """Whether it is of one layer."""
    return where(series).startswith("layer.")


def seen(series: Series, reading: str, *, steps: Ints | None = None) -> Evidence:
    """What a series reads, over all its steps or over these."""
    steps = series.steps if steps is None else steps
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (None, None)
    return Evidence(series=series.name, reading=reading, first_step=first, last_step=last)


def log10(series: Series) -> Series:
    """log10 of what is above zero. An infinite norm counts as the largest there is: the elements may be finite."""
    there = series.values > 0.0
    return replace(series, steps=series.steps[there], values=np.log10(np.minimum(series.values[there], LARGEST)))


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


def too_short(id: str, template: str, found: Iterable[Series], needed: int) -> Skipped:
    """The rule cannot say: so many points, so many needed."""
    most = max((len(series.finite) for series in found), default=0)
    return Skipped(rule=id, why=f"{template} has {most} points, {needed} needed", metric=template)


def items(table: Any) -> list[tuple[str, Any]]:
    """The entries of a table that is a mapping; none of anything else."""
    return list(table.items()) if isinstance(table, dict) else []


# The outcome


def stuck(chart: Chart) -> bool | None:
    """Whether the outcome neither rises, nor is at its maximum, nor ever rose out of its own noise; None: nobody can tell.

    A policy that learned and then stands still is told from one that never learned by what it gained since its first tenth.
    """
    reward, learns = outcome(chart), learning(chart)
    if reward is None or learns is None:
        return None
    finite = reward.finite
    settled = finite.last(1 / 3)
    start = float(np.median(finite.values[: max(3, len(finite) // 10)]))
    return not learns and level(settled) - start <= 2.0 * robust_sigma(settled.values)


def flat_outcome(chart: Chart) -> tuple[Evidence, ...]:
    """The outcome as evidence where it is stuck; nothing otherwise."""
    reward = outcome(chart)
    if reward is None or not stuck(chart):
        return ()
    start, end = level(reward.finite.first(0.1)), level(reward.finite.last(0.2))
    return (seen(reward.finite, f"from {fmt(start)} to {fmt(end)}: it does not rise"),)


# Shapes


def exploded(log: Series, looked: int) -> float | None:
    """The log10 of the norm it has passed for good: a hundred times its start with a trend, or 1e4; None where it has not."""
    edge = math.log10(FALLBACK_HIGH)
    grown = level(log.first(1 / 6)) + GROWTH
    if stays(log, lambda x: x >= grown):
        rise = trend(log, min_change=GROWTH / 2)
        if rise.p_value is None or (rise.change > 0 and rise.p_value * looked < LEVEL):
            return grown
    return edge if stays(log, lambda x: x >= edge) else None


def vanished(log: Series, looked: int) -> float | None:
    """The log10 of the norm it has fallen below for good; None where it has not."""
    edge, floor = level(log.first(1 / 3)) + VANISHED, math.log10(FALLBACK_LOW)
    if stays(log, lambda x: x <= edge):
        fall = trend(log, min_change=-VANISHED / 2)
        if fall.p_value is not None and fall.change < 0 and fall.p_value * looked < LEVEL:
            return edge
    return floor if stays(log, lambda x: x <= floor) else None


def spikes(log: Series) -> tuple[Ints, Floats]:
    """The steps at which a log-norm stands out of its running median of 31, and the factors by which it does."""
    padded = np.pad(log.values, SPIKE_WINDOW // 2, mode="reflect")
    rise = log.values - np.median(sliding_window_view(padded, SPIKE_WINDOW), axis=1)
    factor = 10.0 ** np.clip(rise, -300.0, 300.0)
    out = (factor - 1.0 > SPIKE_SIGMAS * robust_sigma(factor)) & (factor >= SPIKE_FACTOR)
    out &= rise > BAND_SIGMAS * max(robust_sigma(rise), SIGMA_FLOOR)
    half = SPIKE_WINDOW // 2  # a spike comes up from somewhere: a high start that decays is none
    earlier = np.array([np.median(log.values[max(0, k - half) : k]) if k else np.inf for k in range(len(log.values))])
    out &= log.values - earlier >= np.log10(SPIKE_FACTOR)
    return log.steps[out], factor[out]


def jumps(series: Series, steps: Ints) -> bool:
    """Whether it at least doubles at most of these steps."""
    size, known = np.abs(series.values), np.isfinite(series.values)
    there = np.isin(series.steps, steps) & known
    usual = float(np.median(size[known & ~there])) if (known & ~there).any() else 0.0
    return bool(there.sum() >= max(2, len(steps) / 2) and np.median(size[there]) >= COMPANION_FACTOR * usual > 0.0)


def rhythm(zero: Any) -> bool:
    """Whether what is not zero comes at even distances, at every k-th step from k = 2 on, up to the end."""
    there = np.flatnonzero(~np.asarray(zero, dtype=bool))
    gaps = np.diff(there)
    return len(gaps) >= MIN_RHYTHM and bool(len(zero) - there[-1] <= gaps[0] > 1 and (gaps == gaps[0]).all())


def branches(chart: Chart, template: str) -> list[list[Series]]:
    """The layers of each network, that is of each first part of a module path, in the order of the model.

    The order is that of the table `states`; without it numbers in the paths are taken for it.
    """
    modules = [name.rpartition(".")[0] for name, _ in items(chart.table("states"))]
    place = {f"layer.{module}": number for number, module in reversed(list(enumerate(modules)))}
    networks: dict[str, list[Series]] = {}
    layers = filter(layered, chart.every(template))
    for series in sorted(layers, key=lambda each: (place.get(where(each), 0), _natural(where(each)))):
        head = where(series).removeprefix("layer.").partition(".")[0]
        networks.setdefault(re.sub(r"\d+", "", head), []).append(series)
    return list(networks.values())


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
