"""What a sink is: settings that can be checked before a training, and a backend that lives on a thread of its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from gradiometer.errors import MissingExtra
from gradiometer.records import Event, Finding, Row, Table
from gradiometer.store.strictjson import to_json

__all__ = [
    "EXTRA",
    "STEP",
    "Backend",
    "Note",
    "Sent",
    "Sink",
    "Start",
    "Steps",
    "cell_of",
    "event_text",
    "finding_text",
    "module",
]

EXTRA = "trackers"
STEP = "gradiometer/step"
"""The name of our step axis where a tracker has one of its own, which belongs to the user."""

Sent = Row | Table | Event | Finding
"""What sinks get: all the writer gets but sketches and histograms."""
Note = Callable[[str], None]
"""Says something once, on the training thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a sink is told of the training that begins."""

    run: Path | None
    """The run's folder; None when nothing is kept."""
    resume: int | None = None
    overwrite: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call the run."""
        return "gradiometer" if self.run is None else self.run.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """The user's settings as the run keeps them: secrets are blotted out."""
        config = self.facts.get("config")
        return dict(config) if isinstance(config, Mapping) else {}


class Backend(ABC):
    """A tracker while it is written to. Everything here runs on the sink's own thread and may raise."""

    takes_logged = True
    """Whether it gets the user's own scalars; not where the user's loop sends them there itself."""

    @property
    def held(self) -> int:
        """Records that were taken and wait to be sent."""
        return 0

    @abstractmethod
    def write(self, records: Sequence[Sent]) -> None:
        """Send records, in the order they came."""

    def flush(self) -> None:
        """Hold nothing back."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go; a run that the user began stays open."""


class Sink(ABC):
    """Where a run goes besides its own file: the settings, immutable and without a connection."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, start: Start) -> None:
        """Raise what can be known to be wrong before a folder is made: a missing package, a file that is there."""

    def users_run(self) -> Any:
        """The run that the user has open in this tracker, asked on the training's thread; None when there is none."""
        return None

    @abstractmethod
    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """Begin, on the sink's own thread."""


class Steps:
    """Puts rows of one step together: a step is measured, logged and probed in rows of their own.

    The newest step is held until the next one comes. A row of an earlier step, such as a tensor that waited for a sync,
    passes at once and by itself.
    """

    def __init__(self) -> None:
        self._held: Row | None = None
        self.held = 0
        """Rows that wait, counted as they came."""

    def take(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The steps that are complete."""
        for row in rows:
            if self._held is None:
                self._held, self.held = row, 1
            elif row.step == self._held.step:
                self._held, self.held = _joined(self._held, row), self.held + 1
            elif row.step > self._held.step:
                yield self._held
                self._held, self.held = row, 1
            else:
                yield row

    def rest(self) -> Iterator[Row]:
        """The step that was held."""
        if self._held is not None:
            yield self._held
        self._held, self.held = None, 0


def module(name: str, purpose: str, *, extra: str = EXTRA) -> ModuleType:
    """An optional package; the error says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        package = name.partition(".")[0]
        if (problem.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(package, extra, purpose) from problem


def cell_of(value: Any) -> Any:
    """What a tracker's table shows of a value: structure as text."""
    return to_json(value) if isinstance(value, dict | list) else value


def event_text(event: Event) -> str:
    """An event in a line."""
    return f"{event.kind}: {event.message}"


def finding_text(finding: Finding) -> str:
    """A finding in a line."""
    where = "" if finding.block is None else f" in {finding.block}"
    since = "" if finding.since_step is None else f" since step {finding.since_step}"
    return f"{finding.severity} {finding.id}{where}{since}: {finding.title}"


def _joined(first: Row, second: Row) -> Row:
    known = {
        name: getattr(first if getattr(second, name) is None else second, name)
        for name in ("env_steps", "rollout", "epoch")
    }
    wall_time = second.wall_time if math.isfinite(second.wall_time) else first.wall_time
    return Row(step=first.step, wall_time=wall_time, values={**first.values, **second.values}, **known)
