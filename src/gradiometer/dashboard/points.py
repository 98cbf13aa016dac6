"""A series as the page gets it: within the asked steps, thinned without losing a spike, on the asked axis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import partial

import numpy as np

from gradiometer.dashboard.ask import METRIC, Ask
from gradiometer.dashboard.shape import Number, Points
from gradiometer.store.database import LAST_STEP
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats, Ints

__all__ = ["PointCache", "axis_values", "points_of", "spoken"]

CAPACITY = 3_000_000
"""Numbers held for pages that ask again: about 100 MB."""

ALWAYS_THERE = {
    "wall": "wall_time",
    "relative": "wall_time",
    "env_steps": "env_steps",
    "rollout": "rollout",
    "epoch": "epoch",
}


class PointCache:
    """Series as they were last sent, so that another tab or another page costs no second reading. Any thread may ask.

    Of a run that is being written only the state last asked for is held: nobody will ask for an older one.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._held = 0
        self._guard = threading.Lock()
        self._points: dict[Hashable, tuple[Hashable, Points]] = {}

    def get(self, key: Hashable, state: Hashable, read: Callable[[], Points]) -> Points:
        """What is held under a key, or what `read` gives when that is of another state of the file."""
        with self._guard:
            known = self._take(key)
            if known is not None and known[0] == state:
                self._put(key, known)  # the newest again
                return known[1]
        made = read()
        with self._guard:
            self._take(key)
            self._put(key, (state, made))
            while self._held > self._capacity and self._points:
                self._take(next(iter(self._points)))
        return made

    def _take(self, key: Hashable) -> tuple[Hashable, Points] | None:
        known = self._points.pop(key, None)
        self._held -= 0 if known is None else _weight(known[1])
        return known

    def _put(self, key: Hashable, known: tuple[Hashable, Points]) -> None:
        self._points[key] = known
        self._held += _weight(known[1])


def _weight(points: Points) -> int:
    return 1 + len(points.steps) * (2 + 2 * (points.low is not None) + (points.x is not None))


def points_of(
    run: Run | Log,
    name: str,
    ask: Ask,
    *,
    most: int | None = None,
    after: int | None = None,
    axis: Callable[[Ints], Floats] | None = None,
) -> Points:
    """A series for a chart; with `after` only what lies beyond that step. `axis` says where steps lie, if that is known."""
    if after is not None and after >= LAST_STEP:
        return Points(steps=[], values=[])
    first = ask.first if after is None else max(after + 1, ask.first if ask.first is not None else after + 1)
    found = run.thinned(name, most or ask.most, first, ask.last)
    bounds = {} if found.whole else {"low": spoken(found.low), "high": spoken(found.high)}
    return Points(
        steps=found.steps.tolist(),
        values=spoken(found.mean),
        **bounds,
        x=None if ask.x == "step" else spoken((axis or partial(axis_values, run, ask.x))(found.steps)),
        nans=found.steps[found.broken].tolist(),
    )


def axis_values(run: Run | Log, axis: str, steps: Ints) -> Floats:
    """Where steps lie on an axis; NaN where that is not known."""
    if axis.startswith(METRIC):
        name = axis.removeprefix(METRIC)
        return run.latest(name, steps) if name in run.names() else np.full(len(steps), np.nan)
    values = run.where(ALWAYS_THERE[axis], steps)
    return values - _beginning(run) if axis == "relative" else values


def _beginning(run: Run | Log) -> float:
    """The wall time of the first step that has one."""
    first = run.first_step
    if first is None:
        return float("nan")
    began = float(run.where("wall_time", np.array([first], dtype=np.int64))[0])
    if np.isfinite(began):
        return began
    times = run.steps()["wall_time"]
    return float(next(iter(times[np.isfinite(times)]), np.nan))


def spoken(values: Floats) -> list[Number]:
    """Numbers for JSON: NaN and the infinities as strings, as everywhere in our JSON."""
    finite = np.isfinite(values)
    if finite.all():
        listed: list[Number] = values.tolist()
        return listed
    words = {True: "Infinity", False: "-Infinity"}
    return [
        value if fine else "NaN" if value != value else words[value > 0]
        for value, fine in zip(values.tolist(), finite.tolist(), strict=True)
    ]
