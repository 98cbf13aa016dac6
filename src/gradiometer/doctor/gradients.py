"""What rules look for in gradients: layers in the order of the model, explosions, spikes, rhythms, a reward that never rose."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import began_trained, suffers
from gradiometer.doctor.progress import progress_of, shown
from gradiometer.doctor.signs import level, persists, robust_sigma, trend
from gradiometer.maths.health import BAND_SIGMAS, FALLBACK_HIGH, FALLBACK_LOW, SIGMA_FLOOR
from gradiometer.records import Evidence
from gradiometer.store.readable import Floats, Ints

__all__ = [
    "NORM",
    "at_rest",
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
    "vanished",
    "where",
    "worse_outcome",
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
RUNAWAY = 3.0
"""Decades, over the last twelfth alone: who waits for half of the run to be lost has nothing left to save."""
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
    if steps is None or not len(steps):
        return shown(series, reading)
    return Evidence(series=series.name, reading=reading, first_step=int(steps[0]), last_step=int(steps[-1]))


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


def items(table: Any) -> list[tuple[str, Any]]:
    """The entries of a table that is a mapping; none of anything else."""
    return list(table.items()) if isinstance(table, dict) else []


# The outcome


def stuck(chart: Chart) -> bool | None:
    """Whether the outcome neither rises, nor is at its maximum, nor ever rose out of its own noise; None: nobody can tell."""
    progress = progress_of(chart)
    return None if progress is None else progress.stuck


def at_rest(chart: Chart) -> bool:
    """Whether the training began with a trained policy, and lost nothing of it: it may have had nothing left to learn."""
    progress = progress_of(chart)
    return progress is not None and progress.state != "fell" and began_trained(chart)


def flat_outcome(chart: Chart) -> tuple[Evidence, ...]:
    """The outcome as evidence where it is stuck; nothing otherwise."""
    progress = progress_of(chart)
    return (progress.evidence,) if progress is not None and progress.stuck else ()


def worse_outcome(chart: Chart) -> tuple[Evidence, ...]:
    """The same, and where it rose and came down again."""
    fell = suffers(progress_of(chart))
    return flat_outcome(chart) if fell is None else (fell,)


# Shapes


def exploded(log: Series, looked: int) -> float | None:
    """The log10 of the norm it has passed for good: a hundred times its start with a trend, or 1e4, or lately a thousand times
    its start; None where it has not."""
    edge = math.log10(FALLBACK_HIGH)
    grown = level(log.first(1 / 6)) + GROWTH
    if stays(log, lambda x: x >= grown):
        rise = trend(log, min_change=GROWTH / 2)
        if rise.p_value is None or (rise.change > 0 and rise.p_value * looked < LEVEL):
            return grown
    if stays(log, lambda x: x >= edge):
        return edge
    runaway = level(log.first(1 / 6)) + RUNAWAY
    return grown if stays(log.last(1 / 6), lambda x: x >= runaway) else None


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
    for k in np.flatnonzero(out):
        out[k] = k > 0 and log.values[k] - np.median(log.values[max(0, k - half) : k]) >= np.log10(SPIKE_FACTOR)
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
