"""What a view works on: the asked runs, opened once for the request, and the ways to take something from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from gradiometer.dashboard.ask import Ask
from gradiometer.dashboard.consultant import Consultant, Opinion
from gradiometer.dashboard.points import axis_values, points_of
from gradiometer.dashboard.shape import Info, Line, Points, RunCard
from gradiometer.dashboard.shelf import Shelf, Signature
from gradiometer.errors import RunNotFound, UsageError
from gradiometer.metrics import resolve
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats, Ints

__all__ = ["Desk", "Open", "info_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
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


class Desk:
    """One request: use it as a context. Within it every run stands still."""

    def __init__(self, shelf: Shelf, consultant: Consultant, ask: Ask, after: Sequence[int | None] = ()) -> None:
        self.ask = ask
        self.shelf = shelf
        self._consultant = consultant
        self._deadline = time.monotonic() + consultant.patience
        self._after = after
        self._stack = ExitStack()
        self.runs: list[Open] = []
        self._axes: dict[tuple[str, bytes], Floats] = {}
        self.lines: list[Line] = []
        """Every line that was taken, in order."""
        self.lasts: list[int | None] = []
        """For each of them the last step the page now has."""

    @property
    def focus(self) -> Open:
        """The run that views of a single run show."""
        return self.runs[0]

    def line(
        self, run: Open, name: str, label: str = "", *, role: str = "", key: str = "", most: int | None = None
    ) -> Line:
        """A series of a run, as far as the page does not have it yet."""
        place = len(self.lines)
        after = self._after[place] if place < len(self._after) else None
        if after is None:
            points = self._points(run, name, most or self.ask.most)
        else:
            points = points_of(run.log, name, self.ask, most=most, after=after, axis=partial(self.axis, run))
        made = Line(run=run.id, name=name, label=label or run.label, role=role, key=key, points=points)
        self.lines.append(made)
        self.lasts.append(points.steps[-1] if points.steps else after)
        return made

    def _points(self, run: Open, name: str, most: int) -> Points:
        asked = (run.id, name, self.ask.first, self.ask.last, most, self.ask.x)
        return self.shelf.points.get(asked, run.signature, lambda: self._read(run, name, most))

    def _read(self, run: Open, name: str, most: int) -> Points:
        return points_of(run.log, name, self.ask, most=most, axis=partial(self.axis, run))

    def axis(self, run: Open, steps: Ints) -> Floats:
        """Where steps of a run lie on the asked axis; most of its series were measured at the same ones."""
        key = run.id, steps.tobytes()
        if key not in self._axes:
            self._axes[key] = axis_values(run.log, self.ask.x, steps)
        return self._axes[key]

    def grown(self, make: Callable[[int | None], Line]) -> Line:
        """A line that is worked out: `make` gives its points beyond a step, all of them for None. What was there must stay."""
        place = len(self.lines)
        after = self._after[place] if place < len(self._after) else None
        made = make(after)
        self.lines.append(made)
        self.lasts.append(made.points.steps[-1] if made.points.steps else after)
        return made

    def opinion(self, run: Open) -> Opinion:
        """What the doctor thinks of a run."""
        return self._consultant.opinion(run.id, self._deadline - time.monotonic())

    def __enter__(self) -> Self:
        try:
            for id in self.ask.runs or self._newest():
                card, signature = self.shelf.card(id), self.shelf.signature(id)
                if card.state == "unreadable":
                    raise UsageError(f"{id}: {card.problem}")
                log = self._stack.enter_context(self.shelf.open(id))
                self._stack.enter_context(log.still())
                self.runs.append(Open(card=card, log=log, names=frozenset(log.names()), signature=signature))
        except BaseException:
            self._stack.close()
            raise
        return self

    def _newest(self) -> tuple[str, ...]:
        newest = self.shelf.newest()
        if newest is None:
            raise RunNotFound("the runs of the served folder are gone")
        return (newest,)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def info_of(*names: str) -> tuple[Info, ...]:
    """What the catalogue says about metrics or series, each entry once; what it does not know is left out."""
    found = {known[0].name: known[0] for name in names if (known := resolve(name))}
    return tuple(
        Info(
            name=metric.name, meaning=metric.meaning, unit=metric.unit, healthy=metric.healthy, source=metric.source,
            remedy=metric.remedy,
        )
        for metric in found.values()
    )  # fmt: skip
