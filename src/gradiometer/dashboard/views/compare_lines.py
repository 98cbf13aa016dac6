"""The curves of Compare: runs read once and kept while they stand still, and means over runs that grow as their runs do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gradiometer.dashboard.desk import Desk, Open
from gradiometer.dashboard.points import points_of, spoken
from gradiometer.dashboard.shape import Line, Number, Points
from gradiometer.maths.ensembles import Ensemble
from gradiometer.store.comparison import Reading, Source, read
from gradiometer.store.thinning import Floats, Ints, Thinned, bucket_edges, thin, whole

__all__ = ["curve_of", "mean_of", "reading_of"]

MOST_KEPT = 4_000_000
"""Points kept between requests: 64 MB."""


class _Kept:
    """What was read, the least used first to go."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._readings: dict[tuple[object, ...], Reading | None] = {}
        self._size = 0

    def get(self, key: tuple[object, ...], make: Callable[[], Reading | None]) -> Reading | None:
        """The reading of that key; made when it is not there."""
        with self._guard:
            if key in self._readings:
                self._readings[key] = found = self._readings.pop(key)
                return found
        found = make()
        with self._guard:
            self._size += _length(found) - _length(self._readings.pop(key, None))
            self._readings[key] = found
            while self._size > MOST_KEPT and len(self._readings) > 1:
                self._size -= _length(self._readings.pop(next(iter(self._readings))))
        return found


_KEPT = _Kept()


def reading_of(desk: Desk, run: Open, source: Source) -> Reading | None:
    """A quantity of a run within the asked steps; kept as long as the run's file does not change."""
    # The card was read before the run was opened: what is kept is never older than its stamp.
    stamp = (desk.shelf.root, run.id, run.card.changed, run.card.newest_step)
    key = (*stamp, source.series, source.sign, desk.ask.first, desk.ask.last)
    return _KEPT.get(key, lambda: read(run.log, source, desk.ask.first, desk.ask.last))


def curve_of(desk: Desk, run: Open, source: Source, label: str, *, most: int, role: str = "", key: str = "") -> Line:
    """A run's own line."""

    def make(after: int | None) -> Line:
        reading = reading_of(desk, run, source)
        if reading is None:
            points = Points(steps=[], values=[])
        elif reading.buckets is None or after is None:
            points = _of_read(desk, run, reading, most, after)
        else:
            new = points_of(run.log, source.series, desk.ask, most=most, after=after, axis=partial(desk.axis, run))
            points = _signed(new, source.sign)
        return Line(run=run.id, name=source.series, label=label, role=role, key=key, points=points)

    return desk.grown(make)


def mean_of(
    desk: Desk, group: str, runs: Sequence[Open], quantity: str, label: str, found: Ensemble, *, most: int, log: bool
) -> Line:
    """The mean over a group with mean ± std as its band; on a log axis the band ends at the lowest run, not below zero."""

    def make(after: int | None) -> Line:
        new = slice(0 if after is None else int(np.searchsorted(found.steps, after, side="right")), None)
        low = np.where(found.low > 0, found.low, found.lowest) if log else found.low
        steps, (mean, low, high) = _averaged(found.steps[new], [found.mean[new], low[new], found.high[new]], most)
        x = None if desk.ask.x == "step" else spoken(_mean_axis(desk, runs, steps))
        points = Points(
            steps=steps.tolist(), values=spoken(mean), low=spoken(low), high=spoken(high), x=x,
            nans=steps[~np.isfinite(mean)].tolist(),
        )  # fmt: skip
        return Line(run=f"group:{group}", name=quantity, label=label, role="mean", key=f"group:{group}", points=points)

    return desk.grown(make)


def _of_read(desk: Desk, run: Open, reading: Reading, most: int, after: int | None) -> Points:
    """What `points_of` would have read, from what was read already."""
    new = slice(0 if after is None else int(np.searchsorted(reading.steps, after, side="right")), None)
    found = _thinned(reading.steps[new], reading.values[new], reading.buckets, most)
    bounds = {} if found.whole else {"low": spoken(found.low), "high": spoken(found.high)}
    return Points(
        steps=found.steps.tolist(),
        values=spoken(found.mean),
        **bounds,
        x=None if desk.ask.x == "step" else spoken(desk.axis(run, found.steps)),
        nans=found.steps[found.broken].tolist(),
    )


def _thinned(steps: Ints, values: Floats, buckets: Thinned | None, most: int) -> Thinned:
    """The points in at most so many buckets; what came in buckets already keeps their extremes."""
    if len(steps) <= most:
        return whole(steps, values) if buckets is None else buckets
    edges = bucket_edges(int(steps[0]), int(steps[-1]), most)
    found = thin(steps, values, edges)
    if buckets is None:
        return found
    low, high, broken = (thin(steps, part, edges) for part in (buckets.low, buckets.high, buckets.broken.astype(float)))
    return replace(found, low=low.low, high=high.high, broken=broken.high > 0)


def _averaged(steps: Ints, columns: Sequence[Floats], most: int) -> tuple[Ints, list[Floats]]:
    """Columns in buckets of steps, each by its mean: a band stays as wide as it is, the single runs show the spikes."""
    if len(steps) <= most:
        return steps, list(columns)
    edges = bucket_edges(int(steps[0]), int(steps[-1]), most)
    found = [thin(steps, column, edges) for column in columns]
    return found[0].steps, [each.mean for each in found]


def _mean_axis(desk: Desk, runs: Sequence[Open], steps: Ints) -> Floats:
    """Where the mean lies on an axis: the mean of where its runs lie, NaN where none of them says."""
    where = np.stack([desk.axis(run, steps) for run in runs])
    known = np.isfinite(where)
    mean = np.full(len(steps), np.nan)
    np.divide(np.where(known, where, 0.0).sum(axis=0), known.sum(axis=0), out=mean, where=known.any(axis=0))
    return mean


def _signed(points: Points, sign: int) -> Points:
    if sign > 0:
        return points
    low, high = (None if ends is None else _turned(ends) for ends in (points.high, points.low))
    return Points(steps=points.steps, values=_turned(points.values), low=low, high=high, x=points.x, nans=points.nans)


def _turned(values: Sequence[Number]) -> list[Number]:
    words = {"Infinity": "-Infinity", "-Infinity": "Infinity"}
    return [
        words.get(value, value) if isinstance(value, str) else None if value is None else -value for value in values
    ]


def _length(reading: Reading | None) -> int:
    return 1 if reading is None else len(reading.steps)
