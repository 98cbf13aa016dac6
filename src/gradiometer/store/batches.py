"""Records into tables: one transaction a batch.

Rows go in by the thousand per statement: `executemany` hands over the interpreter lock for every row, and beside a busy
training thread each hand-over costs a switch interval (measured: 4,000 points a second instead of 350,000).
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store import dynamics
from gradiometer.store.strictjson import to_json

__all__ = ["Batches", "Facts", "Record"]

ROWS_PER_STATEMENT = 1000

INTO_POINTS = "INSERT OR REPLACE INTO points VALUES {rows}"
INTO_STEPS = """INSERT INTO steps VALUES {rows} ON CONFLICT (step) DO UPDATE SET
    wall_time = excluded.wall_time,
    env_steps = coalesce(excluded.env_steps, env_steps),
    rollout = coalesce(excluded.rollout, rollout),
    epoch = coalesce(excluded.epoch, epoch)"""
INTO_SERIES = "INSERT INTO series VALUES {rows}"
INTO_TABLES = "INSERT OR REPLACE INTO tables VALUES {rows}"
INTO_VECTORS = "INSERT OR REPLACE INTO vectors VALUES {rows}"
INTO_EVENTS = "INSERT INTO events (step, wall_time, kind, message, detail) VALUES {rows}"
INTO_FINDINGS = """INSERT INTO findings (finding, block, since_step, json) VALUES {rows}
    ON CONFLICT (finding, block) DO UPDATE SET since_step = excluded.since_step, json = excluded.json"""
INTO_RUN = "INSERT OR REPLACE INTO run VALUES {rows}"

FORGET_VECTORS = """DELETE FROM vectors WHERE name = :name AND step <=
    (SELECT step FROM vectors WHERE name = :name ORDER BY step DESC LIMIT 1 OFFSET :keep)"""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the run by key, already JSON."""

    json: Mapping[str, str]


Record = Row | Event | Table | Vector | Finding | Facts


class Batches:
    """Writes batches of records; `keep` bounds the vectors of a name to its last steps."""

    def __init__(self, db: sqlite3.Connection, *, keep: int | None = None) -> None:
        self.db = db
        self._keep = keep
        self._ids: dict[str, int] = dict(db.execute("SELECT name, id FROM series"))

    def write(self, records: Iterable[Record]) -> None:
        """Keep all of them, or none and raise."""
        by_kind: dict[type, list[Any]] = {kind: [] for kind in get_args(Record)}
        for record in records:
            by_kind[type(record)].append(record)
        known_series = dict(self._ids)
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self._write_rows(by_kind[Row])
            self._write_tables(by_kind[Table])
            self._write_vectors(by_kind[Vector])
            self._write_events(by_kind[Event])
            self._write_findings(by_kind[Finding])
            self._write_facts(by_kind[Facts])
            self.db.execute("COMMIT")
        except BaseException:
            self._ids = known_series
            if self.db.in_transaction:  # after a full disk SQLite has often rolled back by itself
                self.db.execute("ROLLBACK")
            raise

    def _write_rows(self, rows: list[Row]) -> None:
        rows.sort(key=lambda row: row.step)
        self._name_series(rows)
        ids, cells = self._ids, defaultdict[int, list[Any]](list)
        for row in rows:
            step = row.step
            for name, value in row.values.items():
                number = ids[name]
                cells[number] += (number, step, float(value))
        # In the order of the key, which is three times as fast as in the order of arrival.
        _insert(self.db, INTO_POINTS, 3, [cell for number in sorted(cells) for cell in cells[number]])
        columns = ((row.step, row.wall_time, row.env_steps, row.rollout, row.epoch) for row in rows)
        _insert(self.db, INTO_STEPS, 5, [cell for row in columns for cell in row])

    def _name_series(self, rows: list[Row]) -> None:
        new = {name: None for row in rows for name in row.values if name not in self._ids}
        if not new:
            return
        first = max(self._ids.values(), default=0) + 1
        numbers = dict(zip(new, range(first, first + len(new)), strict=True))
        _insert(self.db, INTO_SERIES, 2, [cell for name, number in numbers.items() for cell in (number, name)])
        if experts := dynamics.experts_of(new):
            self._show_experts(experts, rows[0].step)
        self._ids.update(numbers)

    def _show_experts(self, experts: set[int], step: int) -> None:
        """New experts get their columns in the transaction that names their series, so no reader sees half of them."""
        known = dynamics.experts_of(self._ids)
        if experts <= known:
            return
        dynamics.recreate_view(self.db, experts | known)
        if dynamics.fitting(experts | known)[1] and not dynamics.fitting(known)[1]:
            self._write_events([_too_many(step)])

    def _write_tables(self, tables: list[Table]) -> None:
        tables.sort(key=lambda table: (table.step, table.name))
        cells = [cell for table in tables for cell in (table.step, table.name, to_json(table.content))]
        _insert(self.db, INTO_TABLES, 3, cells)

    def _write_vectors(self, vectors: list[Vector]) -> None:
        vectors.sort(key=lambda vector: (vector.name, vector.step))
        cells: list[Any] = []
        for vector in vectors:
            values = np.asarray(vector.values)
            cells += (vector.step, vector.name, values.dtype.str, to_json(values.shape), values.tobytes())
        _insert(self.db, INTO_VECTORS, 5, cells)
        if self._keep is not None:
            for name in {vector.name for vector in vectors}:
                forget_vectors(self.db, name, self._keep)

    def _write_events(self, events: list[Event]) -> None:
        now = time.time()
        columns = ((event.step, now, event.kind, event.message, to_json(event.detail)) for event in events)
        _insert(self.db, INTO_EVENTS, 5, [cell for event in columns for cell in event])

    def _write_findings(self, findings: list[Finding]) -> None:
        columns = ((finding.id, finding.block or "", finding.since_step, to_json(finding)) for finding in findings)
        _insert(self.db, INTO_FINDINGS, 4, [cell for finding in columns for cell in finding])

    def _write_facts(self, facts: list[Facts]) -> None:
        _insert(self.db, INTO_RUN, 2, [cell for some in facts for pair in some.json.items() for cell in pair])


def _too_many(step: int) -> Event:
    message = (
        f"more experts than the view `dynamics` can show: SQLite allows {dynamics.MOST_COLUMNS} columns; "
        "all of them are kept as series"
    )
    return Event(step=step, kind="dynamics-full", message=message)


def forget_vectors(db: sqlite3.Connection, name: str, keep: int) -> int:
    """Remove all but the last `keep` vectors of a name; how many went."""
    return db.execute(FORGET_VECTORS, {"name": name, "keep": keep}).rowcount


def _insert(db: sqlite3.Connection, statement: str, width: int, cells: Sequence[Any]) -> None:
    span = ROWS_PER_STATEMENT * width
    row = f"({', '.join('?' * width)})"
    for start in range(0, len(cells), span):
        chunk = cells[start : start + span]
        db.execute(statement.format(rows=", ".join([row] * (len(chunk) // width))), chunk)
