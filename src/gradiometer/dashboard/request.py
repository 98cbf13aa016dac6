"""What a view works on: the asked runs, opened for one request, and lines taken from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Self

import numpy as np

from gradiometer.charts.model import Line, Number, Points
from gradiometer.dashboard.diagnoses import Diagnoses, RunDiagnosis
from gradiometer.dashboard.query import METRIC, Query
from gradiometer.dashboard.run_index import RunIndex, Signature
from gradiometer.dashboard.shape import RunCard
from gradiometer.errors import RunNotFound, UsageError
from gradiometer.store import strictjson
from gradiometer.store.database import LAST_STEP
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats, Ints

__all__ = ["OpenRun", "PointsLater", "ViewRequest", "points_of", "spoken"]

FEW_STEPS, LOOK_LONG = 10, 1.0
ALWAYS_THERE = {"wall": "wall_time", "relative": "wall_time"}
ALWAYS_THERE |= {name: name for name in ("env_steps", "rollout", "epoch")}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that is being looked at."""

    card: RunCard
    log: Run | Log
    names: frozenset[str]
    signature: Signature = ()
    """Of the file before it was opened."""

    @property
    def id(self) -> str:
        """Its id, as in the URL."""
        return self.card.id

    @property
    def label(self) -> str:
        """What to call it in a legend."""
        return self.card.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsLater(Points):
    """Points that are read only if their chart is sent with its numbers."""

    steps: Sequence[int] = ()
    values: Sequence[Number] = ()
    read: Callable[[], Points]


class ViewRequest:
    """One request: use it as a context. Within it every run stands still."""

    def __init__(
        self, index: RunIndex, diagnoses: Diagnoses, query: Query, after: Sequence[int | None] = ()
    ) -> None:
        self.query = query
        self.index = index
        self._diagnoses = diagnoses
        self._deadline = time.monotonic() + diagnoses.patience
        self._after = after
        self._stack = ExitStack()
        self.runs: list[OpenRun] = []
        self._axes: dict[tuple[str, bytes], Floats] = {}
        self.lines: list[Line] = []
        """Every line that was read, in order."""
        self.lasts: list[int | None] = []
        """For each of them the last step the page now has."""

    @property
    def focus(self) -> OpenRun:
        """The run that views of a single run show."""
        return self.runs[0]

    def line(
        self,
        run: OpenRun,
        name: str,
        label: str = "",
        *,
        role: str = "",
        key: str = "",
        most: int | None = None,
        turned: bool = False,
    ) -> Line:
        """A series of a run, as far as the page does not have it yet; `turned`: with the other
        sign. Its points are read when its chart is sent."""
        most = most or self.query.most
        shown = {"run": run.id, "name": name, "label": label or run.label, "role": role, "key": key}

        def make(after: int | None) -> Line:
            points = self._points(run, name, most, after)
            return Line(**shown, points=_turned(points) if turned else points)

        return Line(**shown, points=PointsLater(read=cache(lambda: self.grown(make).points)))

    def _points(self, run: OpenRun, name: str, most: int, after: int | None) -> Points:
        def read() -> Points:
            axis = partial(self.axis, run)
            return points_of(run.log, name, self.query, most=most, after=after, axis=axis)

        if after is not None:
            return read()
        asked = (run.id, name, self.query.first, self.query.last, most, self.query.x)
        return self.index.points.get(asked, run.signature, read)

    def axis(self, run: OpenRun, steps: Ints) -> Floats:
        """Where steps of a run lie on the asked axis; most series share the same steps."""
        key = run.id, steps.tobytes()
        if key not in self._axes:
            self._axes[key] = axis_values(run.log, self.query.x, steps)
        return self._axes[key]

    def grown(self, make: Callable[[int | None], Line]) -> Line:
        """A computed line: `make(step)` gives its points beyond a step; earlier ones must stay."""
        place = len(self.lines)
        after = self._after[place] if place < len(self._after) else None
        made = make(after)
        self.lines.append(made)
        self.lasts.append(made.points.steps[-1] if made.points.steps else after)
        return made

    def latest_diagnosis(self, run: OpenRun) -> RunDiagnosis:
        """What the doctor has read of a run so far."""
        return self._diagnoses.latest(run.id, self._deadline - time.monotonic())

    def __enter__(self) -> Self:
        try:
            for id in self.query.runs or self._newest():
                card, signature = self.index.card(id), self.index.signature(id)
                if card.state == "unreadable":
                    raise UsageError(f"{id}: {card.problem}")
                log = self._stack.enter_context(self.index.open(id))
                self._stack.enter_context(log.still())
                names = frozenset(log.names())
                self.runs.append(OpenRun(card=card, log=log, names=names, signature=signature))
        except BaseException:
            self._stack.close()
            raise
        return self

    def _newest(self) -> tuple[str, ...]:
        newest = self.index.newest()
        if newest is None:
            raise RunNotFound("the runs of the served folder are gone")
        return (self._training(newest),)

    def _training(self, newest: str) -> str:
        """The newest run; where that is a probe of a step or two, the newest that went on."""
        card = self.index.card(newest)
        if card.kind != "run" or _went_on(card):  # another tool's log is costly to open
            return newest
        cards = [card for card in self.index.cards(LOOK_LONG) if card.state != "unreadable"]
        return next((card.id for card in cards if _went_on(card)), newest)

    def __exit__(self, *problem: object) -> None:
        self._stack.close()


def _turned(points: Points) -> Points:
    """With the other sign; what was lowest is then highest."""
    low, high = points.high, points.low
    return replace(
        points,
        values=[_minus(value) for value in points.values],
        low=None if low is None else [_minus(value) for value in low],
        high=None if high is None else [_minus(value) for value in high],
    )


def _minus(value: Number) -> Number:
    if isinstance(value, str):
        return {"Infinity": "-Infinity", "-Infinity": "Infinity"}.get(value, value)
    return None if value is None else -value


def _went_on(card: RunCard) -> bool:
    """Whether there is a curve to see."""
    return card.newest_step is not None and card.newest_step >= FEW_STEPS


def points_of(
    run: Run | Log,
    name: str,
    query: Query,
    *,
    most: int | None = None,
    after: int | None = None,
    axis: Callable[[Ints], Floats] | None = None,
) -> Points:
    """A series for a chart, beyond the step `after` if given; `axis` says where steps lie."""
    if after is not None and after >= LAST_STEP:
        return Points(steps=[], values=[])
    first = query.first
    if after is not None:
        first = after + 1 if first is None else max(after + 1, first)
    found = run.thinned(name, most or query.most, first, query.last)
    bounds = {} if found.whole else {"low": spoken(found.low), "high": spoken(found.high)}
    axis = axis or partial(axis_values, run, query.x)
    return Points(
        steps=found.steps.tolist(),
        values=spoken(found.mean),
        **bounds,
        x=None if query.x == "step" else spoken(axis(found.steps)),
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
    pairs = zip(values.tolist(), finite.tolist(), strict=True)
    return [value if fine else strictjson.spoken(value) for value, fine in pairs]
