"""Prismatic's own `dynamics.db`, a row a step while the training runs: the same table that
`gradiometer export --to dynamics-db` writes of a finished run."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gradiometer.errors import UsageError
from gradiometer.records import Row
from gradiometer.store.dynamics import columns_of, experts_of, fitting
from gradiometer.store.sinks.sink import Backend, Note, Sent, Sink, Start

__all__ = ["DynamicsBackend", "DynamicsSink"]

FILE_NAME = "dynamics.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicsSink(Sink):
    """The experts' norms and divergences as `dynamics.db`; `path` is in the run's folder unless
    told. Nothing is made while no expert is measured."""

    name: ClassVar[str] = "dynamics"
    path: str | os.PathLike[str] | None = None

    def check(self, start: Start) -> None:
        """Raise where the file would be mixed with another's."""
        path = self.place("path", start, FILE_NAME)
        if path.is_dir():
            raise UsageError(
                f"the sink dynamics writes a file, and {path} is a folder: name a file in it"
            )
        if start.resume is None and not start.overwrite and path.exists():
            raise UsageError(
                f"{path} already exists: give the sink another path=, or start afresh with"
                " overwrite=True"
            )

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """The file; what lies beyond the step of a resume is taken out of it."""
        path = self.place("path", start, FILE_NAME)
        path.parent.mkdir(parents=True, exist_ok=True)
        if start.resume is None:
            path.unlink(missing_ok=True)
        elif path.exists():
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("DELETE FROM dynamics WHERE step > ?", (start.resume,))
        return DynamicsBackend(path, note)


class DynamicsBackend(Backend):
    """The table; a column is added with the first measurement of its expert."""

    def __init__(self, path: Path, note: Note) -> None:
        self._path, self._note = path, note
        self._db: sqlite3.Connection | None = None
        self._columns: dict[str, str] = {}
        self._experts: set[int] = set()

    def write(self, records: Sequence[Sent]) -> None:
        """Put the values of the table's columns into the row of their step, all or none."""
        rows = [(record.step, record.values) for record in records if isinstance(record, Row)]
        self._extend(experts_of(name for _, values in rows for name in values))
        if self._db is None:
            return
        with self._db:
            for step, values in rows:
                told = {
                    self._columns[name]: x for name, x in values.items() if name in self._columns
                }
                if told:
                    self._put(step, told)

    def close(self) -> None:
        """Let go of the file."""
        if self._db is not None:
            self._db.close()

    def _put(self, step: int, told: dict[str, float]) -> None:
        assert self._db is not None
        names = ", ".join(told)
        fresh = ", ".join(f"{name} = excluded.{name}" for name in told)
        marks = ", ".join("?" * (len(told) + 1))
        self._db.execute(
            f"INSERT INTO dynamics (step, {names}) VALUES ({marks})"
            f" ON CONFLICT (step) DO UPDATE SET {fresh}",
            (step, *told.values()),
        )

    def _extend(self, experts: Iterable[int]) -> None:
        wanted = self._experts | set(experts)
        shown, left_out = fitting(wanted)
        if left_out and not set(left_out) <= self._experts:
            self._note(f"dynamics: {len(left_out)} experts are beyond what a table can hold")
        self._experts = wanted
        new = [expert for expert in shown if columns_of(expert).keys() - self._columns.values()]
        if not new:
            return
        with self._opened() as db:
            there = {row[1] for row in db.execute("PRAGMA table_info(dynamics)")}
            for column, series in (pair for each in new for pair in columns_of(each).items()):
                if column not in there:
                    db.execute(f"ALTER TABLE dynamics ADD COLUMN {column} REAL")
                self._columns[series] = column

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = sqlite3.connect(self._path)
            self._db.execute("CREATE TABLE IF NOT EXISTS dynamics (step INTEGER PRIMARY KEY)")
        return self._db
