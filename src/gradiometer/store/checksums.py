"""Checksums of a run's cells, kept beside them in the same transaction.

SQLite checks how a file is built and not what its numbers are: one flipped bit reads as another
loss. The points of a series are summed in spans of at most `SPAN`, in order of their steps; the
last span of a series grows with each batch. The rows of `steps` are spans of the series 0.
Documents (tables, vectors, events, findings, facts) have a checksum in their row.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradiometer.store.statements import insert_rows

__all__ = [
    "DOCUMENTS",
    "NAN",
    "SPAN",
    "STEPS",
    "CheckedSpan",
    "Damage",
    "SpanSums",
    "broken_spans",
    "cover_all",
    "cut_spans",
    "row_sum",
]

SPAN = 512
"""Points of a span: what is lost with a flipped bit, and 0.1 byte of checksum a point."""
STEPS = 0
"""In the place of a series: the rows of `steps`."""
NAN = float("nan")
EVERY = slice(None)
INTO_CHECKS = "INSERT OR REPLACE INTO checks VALUES {rows}"
DOCUMENTS = {
    "run": ("key", "value"),
    "tables": ("step", "name", "json"),
    "vectors": ("step", "name", "dtype", "shape", "blob"),
    "events": ("step", "wall_time", "kind", "message", "detail"),
    "findings": ("finding", "block", "since_step", "json"),
}
"""The cells of each row that its checksum is of."""
POINTS_BETWEEN = """SELECT step, value FROM points
    WHERE series_id = ? AND step BETWEEN ? AND ? ORDER BY step"""
STEPS_BETWEEN = """SELECT step, wall_time, env_steps, rollout, epoch FROM steps
    WHERE step BETWEEN ? AND ? ORDER BY step"""

Cells = Sequence[Any]


class CheckedSpan(NamedTuple):
    """Rows of a series from one step to another, with how many they are and their checksum."""

    first_step: int
    last_step: int
    size: int
    sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is not what was written, and is left out."""

    kind: str
    """points, steps, tables, vectors, events, findings, run; structure: what SQLite found."""
    name: str
    first_step: int | None = None
    last_step: int | None = None
    count: int = 1
    why: str = "its checksum differs"

    def __str__(self) -> str:
        where = ""
        if self.first_step is not None:
            until = "" if self.last_step == self.first_step else f" to {self.last_step}"
            where = f", step{'s' if until else ''} {self.first_step}{until}"
        return f"{self.kind} {self.name!r}{where}: {self.why}"


def row_sum(*cells: Any) -> int:
    """The checksum of a row of a few cells, in whatever types SQLite gives them back."""
    total = 0
    for cell in cells:
        if isinstance(cell, float):
            cell = struct.pack("<d", cell + 0.0) if cell == cell else b"\0"
        elif isinstance(cell, int):
            cell = b"%d" % cell
        elif isinstance(cell, str):
            cell = cell.encode("utf-8", "surrogatepass")
        elif cell is None:
            cell = b"\0"
        total = zlib.crc32(cell, zlib.crc32(b"%d:" % len(cell), total))
    return total


def seed(series: int, name: str) -> int:
    """What the checksum of a span begins with: whose it is."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass"), series)


class SpanSums:
    """The last span of each series, as the writer's thread knows it.

    `add` says which points a batch writes, `write` keeps the checksums in the same transaction;
    then `keep` or, when the transaction failed, `forget`.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        newest = "SELECT series_id, max(first_step), last_step, points, crc FROM checks"
        found = db.execute(f"{newest} GROUP BY series_id")
        self._known = {series: CheckedSpan(*span) for series, *span in found}
        self._new: dict[int, CheckedSpan] = {}
        self._ended: list[Any] = []
        self._late: list[tuple[int, str, int, int]] = []

    def add(self, series: int, name: str, cells: list[Any]) -> None:
        """Points of a series as (series, step, value, series, step, value, ...), in order."""
        last = self._new.get(series) or self._known.get(series)
        if last is not None and cells[1] <= last.last_step:
            self._late.append((series, name, cells[1], cells[-2]))
            return
        while cells:
            if last is None or last.size >= SPAN:
                last = CheckedSpan(cells[1], cells[1], 0, seed(series, name))
            room = 3 * (SPAN - last.size)
            part, cells = cells[:room], cells[room:] if len(cells) > room else []
            total = zlib.crc32(_packer(len(part) // 3).pack(*part), last.sum)
            last = CheckedSpan(last.first_step, part[-2], last.size + len(part) // 3, total)
            if cells or last.size >= SPAN:
                self._ended += _cells(series, last)
        assert last is not None
        self._new[series] = last

    def add_steps(self, first: int, last: int) -> None:
        """Rows of `steps` are merged by SQLite, so they are read back."""
        self._late.append((STEPS, "steps", first, last))

    def write(self) -> None:
        """Into the table, after the points."""
        for series, name, first, last in self._late:
            self._new[series] = cover(self._db, series, name, first, last)
        growing = [cell for series, span in self._new.items() for cell in _cells(series, span)]
        insert_rows(self._db, INTO_CHECKS, 5, [*self._ended, *growing])

    def keep(self) -> None:
        """The transaction is on disk."""
        self._known.update(self._new)
        self.forget()

    def forget(self) -> None:
        """It is not."""
        self._new, self._ended, self._late = {}, [], []


def cover(db: sqlite3.Connection, series: int, name: str, first: int, last: int) -> CheckedSpan:
    """Sum anew the spans that a range of steps touches; the last span of the series."""
    touched = "series_id = ? AND last_step >= ? AND first_step <= ?"
    low, high = db.execute(
        f"SELECT min(first_step), max(last_step) FROM checks WHERE {touched}", (series, first, last)
    ).fetchone()
    growing = db.execute(
        "SELECT first_step, last_step, points FROM checks WHERE series_id = ? AND first_step <= ?"
        " ORDER BY first_step DESC LIMIT 1",
        (series, first),
    ).fetchone()
    if growing is not None and growing[2] < SPAN and growing[1] < first:
        low = growing[0]  # it has room: a file of small spans would be a slow one
    low, high = _least(low, first), max(last, last if high is None else high)
    db.execute(
        "DELETE FROM checks WHERE series_id = ? AND first_step BETWEEN ? AND ?", (series, low, high)
    )
    rows = _between(db, series, low, high)
    _insert(db, series, _spans(series, name, rows))
    newest = "SELECT first_step, last_step, points, crc FROM checks WHERE series_id = ?"
    return CheckedSpan(
        *db.execute(f"{newest} ORDER BY first_step DESC LIMIT 1", (series,)).fetchone()
    )


def cover_all(db: sqlite3.Connection) -> None:
    """Sum everything that is in a file."""
    db.execute("DELETE FROM checks")
    everything = (-(2**63), 2**63 - 1)
    names = db.execute("SELECT id, name FROM series").fetchall()
    for series, name in [(STEPS, "steps"), *names]:
        _insert(db, series, _spans(series, name, _between(db, series, *everything)))


def cut_spans(db: sqlite3.Connection, step: int) -> None:
    """After everything beyond a step was removed."""
    cut = "SELECT series_id, first_step FROM checks WHERE last_step > ? AND first_step <= ?"
    cuts = db.execute(cut, (step, step)).fetchall()
    names = dict(db.execute("SELECT id, name FROM series").fetchall()) | {STEPS: "steps"}
    db.execute("DELETE FROM checks WHERE last_step > ?", (step,))
    for series, first in cuts:
        if series in names:
            rows = _between(db, series, first, step)
            _insert(db, series, _spans(series, names[series], rows))


def broken_spans(
    series: int,
    name: str,
    spans: Sequence[CheckedSpan],
    steps: Any,
    values: Any,
    *,
    whole: bool = True,
) -> tuple[Any, list[CheckedSpan]]:
    """Of rows that were read, which are what was written, and the spans that are not.

    `values` has a row of float64 for each step. Spans that were read in part are not looked at; of
    a series that was read whole every row belongs to a span.
    """
    records = np.empty((len(steps), 2 + values.shape[1]), dtype="<i8")
    records[:, 0] = series
    records[:, 1] = steps
    records[:, 2:] = values.view(np.int64)
    begin = seed(series, name)
    if (
        len(spans) == 1
        and spans[0].size == len(steps)
        and zlib.crc32(records.data, begin) == spans[0].sum
    ):
        return EVERY, []
    good, broken = np.full(len(steps), not whole), []
    starts = np.searchsorted(steps, [span.first_step for span in spans])
    ends = np.searchsorted(steps, [span.last_step for span in spans], side="right")
    low, high = (steps[0], steps[-1]) if len(steps) else (0, -1)
    for span, start, end in zip(spans, starts.tolist(), ends.tolist(), strict=True):
        if not whole and (span.first_step < low or span.last_step > high):
            continue
        same = end - start == span.size and zlib.crc32(records[start:end].data, begin) == span.sum
        good[start:end] = same
        broken += [] if same else [span]
    if whole and not broken and not good.all():
        stray = steps[~good]
        broken.append(CheckedSpan(int(stray[0]), int(stray[-1]), len(stray), 0))
    return good, broken


def _spans(series: int, name: str, rows: Iterable[Cells]) -> Iterator[CheckedSpan]:
    rows, begin = list(rows), seed(series, name)
    for start in range(0, len(rows), SPAN):
        part = rows[start : start + SPAN]
        cells = [cell for row in part for cell in (series, row[0], *map(_float, row[1:]))]
        width = 1 + len(part[0])
        total = zlib.crc32(_packer(len(part), width).pack(*cells), begin)
        yield CheckedSpan(part[0][0], part[-1][0], len(part), total)


def _between(db: sqlite3.Connection, series: int, first: int, last: int) -> list[Cells]:
    if series == STEPS:
        return db.execute(STEPS_BETWEEN, (first, last)).fetchall()
    return db.execute(POINTS_BETWEEN, (series, first, last)).fetchall()


def _insert(db: sqlite3.Connection, series: int, spans: Iterable[CheckedSpan]) -> None:
    insert_rows(db, INTO_CHECKS, 5, [cell for span in spans for cell in _cells(series, span)])


def _cells(series: int, span: CheckedSpan) -> tuple[int, ...]:
    return series, span.first_step, span.last_step, span.size, span.sum


@lru_cache(maxsize=2 * SPAN)
def _packer(rows: int, width: int = 3) -> struct.Struct:
    return struct.Struct("<" + ("qq" + "d" * (width - 2)) * rows)


def _float(cell: Any) -> float:
    return NAN if cell is None else float(cell) + 0.0


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
