"""What a sink is: settings that are checked before a training, and a backend on its own thread."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from gradiometer.errors import MissingExtra, UsageError
from gradiometer.records import Event, Finding, Row, Table
from gradiometer.store.logs import is_table
from gradiometer.store.strictjson import plain, to_json

__all__ = [
    "EXTRA",
    "STEP",
    "AppendedFile",
    "Backend",
    "Note",
    "Sent",
    "Sink",
    "Start",
    "Steps",
    "event_text",
    "finding_text",
    "module",
    "place_of_row",
    "table_cells",
]

EXTRA = "trackers"
PLACES = ("env_steps", "rollout", "epoch")
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
    keep: int | None = None
    """Of each vector the last so many steps are kept."""
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
    """A tracker while it is written to. All of it runs on the sink's own thread and may raise."""

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
    takes_all: ClassVar[bool] = False
    """Whether it gets sketches, histograms and later facts too, as the run's own file does."""

    @abstractmethod
    def check(self, start: Start) -> None:
        """Raise what is wrong before a folder is made: a missing package, an existing file."""

    def place(self, option: str, start: Start, name: str) -> Path:
        """Where the option of that name says to write, else `name` in the run's folder."""
        given = getattr(self, option)
        if given is not None:
            return Path(given)
        if start.run is None:
            raise UsageError(f"the sink {self.name} needs {option}= where run=None keeps nothing")
        return start.run / name

    def users_run(self) -> Any:
        """The run that the user has open in this tracker, or None; asked on the training thread."""
        return None

    @abstractmethod
    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """Begin, on the sink's own thread."""


class Steps:
    """Puts rows of one step together: a step is measured, logged and probed in rows of their own.

    The newest step is held until the next one comes. A row of an earlier step, such as a tensor
    that waited for a sync, passes at once and by itself.
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


class AppendedFile:
    """A file that grows by whole pieces; `afresh` empties it first."""

    def __init__(self, path: Path, *, afresh: bool = True) -> None:
        self._file = path.open("wb" if afresh else "ab", buffering=0)
        self._good = self._file.seek(0, os.SEEK_END)

    def write(self, piece: bytes) -> None:
        """Write all of a piece or, where the disk is full, none of it."""
        try:
            left = memoryview(piece)
            while left:
                left = left[self._file.write(left) :]
            self._good += len(piece)
        except BaseException:
            with suppress(OSError):
                self._file.truncate(self._good)
                self._file.seek(self._good)
            raise

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def module(name: str, purpose: str, *, extra: str = EXTRA) -> ModuleType:
    """An optional package; the error says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        package = name.partition(".")[0]
        if (problem.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(package, extra, purpose) from problem


def place_of_row(row: Row) -> dict[str, Any]:
    """Where a row lies besides its step, under names of ours that no tracker uses."""
    where = {name: getattr(row, name) for name in PLACES}
    return {f"gradiometer/{name}": value for name, value in where.items() if value is not None}


def table_cells(content: Any) -> tuple[list[Any], list[Any]]:
    """Columns and rows of a table: as it stands, as names and values, or as a cell of JSON."""
    known = plain(content)
    if is_table(known):
        return known["columns"], known["data"]
    if isinstance(known, dict):
        cells = (
            to_json(cell) if isinstance(cell, dict | list) else cell for cell in known.values()
        )
        return ["name", "value"], [list(pair) for pair in zip(known, cells, strict=True)]
    return ["json"], [[to_json(known)]]


def event_text(event: Event) -> str:
    """An event in a line."""
    return f"{event.kind}: {event.message}"


def finding_text(finding: Finding) -> str:
    """A finding in a line."""
    where = "" if finding.block is None else f" in {finding.block}"
    since = "" if finding.since_step is None else f" since step {finding.since_step}"
    return f"{finding.severity} {finding.id}{where}{since}: {finding.title}"


def _joined(first: Row, second: Row) -> Row:
    known = {name: getattr(first, name) for name in PLACES}
    known |= {name: x for name in PLACES if (x := getattr(second, name)) is not None}
    wall_time = second.wall_time if math.isfinite(second.wall_time) else first.wall_time
    values = {**first.values, **second.values}
    return Row(step=first.step, wall_time=wall_time, values=values, **known)
