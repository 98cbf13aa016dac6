"""Records into the tables of a run, one transaction a batch, and out of them again."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gradiometer.errors import NotARun, RunNotFound, UsageError
from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store import database, dynamics
from gradiometer.store.checksums import NAN, SpanSums, cut_spans, row_sum
from gradiometer.store.locks import WriterLock, told_plainly
from gradiometer.store.statements import insert_rows
from gradiometer.store.strictjson import to_json, whole_text

__all__ = ["Batches", "Facts", "Record", "is_step", "prune", "rewind", "sound_records"]

INTO_POINTS = "INSERT OR REPLACE INTO points VALUES {rows}"
INTO_STEPS = """INSERT INTO steps VALUES {rows} ON CONFLICT (step) DO UPDATE SET
    wall_time = excluded.wall_time,
    env_steps = coalesce(excluded.env_steps, env_steps),
    rollout = coalesce(excluded.rollout, rollout),
    epoch = coalesce(excluded.epoch, epoch)"""
INTO_SERIES = "INSERT INTO series VALUES {rows}"
INTO_TABLES = "INSERT OR REPLACE INTO tables VALUES {rows}"
INTO_VECTORS = "INSERT OR REPLACE INTO vectors VALUES {rows}"
INTO_EVENTS = "INSERT INTO events (step, wall_time, kind, message, detail, crc) VALUES {rows}"
INTO_FINDINGS = """INSERT INTO findings (finding, block, since_step, json, crc) VALUES {rows}
    ON CONFLICT (finding, block) DO UPDATE
    SET since_step = excluded.since_step, json = excluded.json, crc = excluded.crc"""
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
        self._sums = SpanSums(db)

    def write(self, records: Iterable[Record]) -> None:
        """Keep all of them, or none and raise."""
        by_kind: dict[type, list[Any]] = {kind: [] for kind in get_args(Record)}
        for record in records:
            by_kind[type(record)].append(record)
        known_series = dict(self._ids)
        try:
            with _transaction(self.db):
                self._write_rows(by_kind[Row])
                self._write_tables(by_kind[Table])
                self._write_vectors(by_kind[Vector])
                self._write_events(by_kind[Event])
                self._write_findings(by_kind[Finding])
                self._write_facts(by_kind[Facts])
        except BaseException:
            self._ids = known_series
            self._sums.forget()
            raise
        self._sums.keep()

    def _write_rows(self, rows: list[Row]) -> None:
        rows.sort(key=lambda row: row.step)
        self._name_series(rows)
        cells = self._points(rows)
        # In the order of the key, which is three times as fast as in the order of arrival.
        in_order = [
            cell for name in sorted(cells, key=self._ids.__getitem__) for cell in cells[name]
        ]
        insert_rows(self.db, INTO_POINTS, 3, in_order)
        columns = ((row.step, row.wall_time, row.env_steps, row.rollout, row.epoch) for row in rows)
        insert_rows(self.db, INTO_STEPS, 5, [cell for row in columns for cell in row])
        for name, of in cells.items():
            self._sums.add(self._ids[name], name, of)
        if rows:
            self._sums.add_steps(rows[0].step, rows[-1].step)
        self._sums.write()

    def _points(self, rows: list[Row]) -> dict[str, list[Any]]:
        """Of each series (number, step, value, number, step, value, ...), of a step the last."""
        ids, cells = self._ids, defaultdict[str, list[Any]](list)
        for row in rows:
            step = row.step
            for name, value in row.values.items():
                value = (
                    float(value) or 0.0
                )  # SQLite keeps no -0.0, and of a NaN only that it is one
                cells[name] += (ids[name], step, value if value == value else NAN)
        for name, of in cells.items():
            if len(set(of[1::3])) < len(of) // 3:
                last = dict(zip(of[1::3], of[2::3], strict=True))
                cells[name] = [cell for pair in last.items() for cell in (ids[name], *pair)]
        return cells

    def _name_series(self, rows: list[Row]) -> None:
        new = {name: None for row in rows for name in row.values if name not in self._ids}
        if not new:
            return
        first = max(self._ids.values(), default=0) + 1
        numbers = dict(zip(new, range(first, first + len(new)), strict=True))
        named = [cell for name, number in numbers.items() for cell in (number, name)]
        insert_rows(self.db, INTO_SERIES, 2, named)
        if experts := dynamics.experts_of(new):
            self._show_experts(experts, rows[0].step)
        self._ids.update(numbers)

    def _show_experts(self, experts: set[int], step: int) -> None:
        """In the transaction that names their series, so that no reader sees half of them."""
        known = dynamics.experts_of(self._ids)
        if experts <= known:
            return
        dynamics.recreate_view(self.db, experts | known)
        if dynamics.fitting(experts | known)[1] and not dynamics.fitting(known)[1]:
            self._write_events([_too_many(step)])

    def _write_tables(self, tables: list[Table]) -> None:
        tables.sort(key=lambda table: (table.step, table.name))
        rows = ((table.step, table.name, to_json(table.content)) for table in tables)
        insert_rows(self.db, INTO_TABLES, 4, _summed(rows))

    def _write_vectors(self, vectors: list[Vector]) -> None:
        vectors.sort(key=lambda vector: (vector.name, vector.step))
        arrays = ((vector, np.asarray(vector.values)) for vector in vectors)
        rows = (
            (vector.step, vector.name, array.dtype.str, to_json(array.shape), array.tobytes())
            for vector, array in arrays
        )
        insert_rows(self.db, INTO_VECTORS, 6, _summed(rows))
        if self._keep is not None:
            for name in {vector.name for vector in vectors}:
                forget_vectors(self.db, name, self._keep)

    def _write_events(self, events: list[Event]) -> None:
        now = time.time()
        rows = (
            (event.step, now, event.kind, event.message, to_json(event.detail)) for event in events
        )
        insert_rows(self.db, INTO_EVENTS, 6, _summed(rows))

    def _write_findings(self, findings: list[Finding]) -> None:
        rows = (
            (finding.id, finding.block or "", finding.since_step, to_json(finding))
            for finding in findings
        )
        insert_rows(self.db, INTO_FINDINGS, 5, _summed(rows))

    def _write_facts(self, facts: list[Facts]) -> None:
        pairs = (pair for some in facts for pair in some.json.items())
        insert_rows(self.db, INTO_RUN, 3, _summed(pairs))


def _summed(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The cells of all rows, each row with its checksum at the end."""
    return [cell for row in rows for cell in (*row, row_sum(*row))]


def is_step(step: Any) -> bool:
    """Whether SQLite can keep it as an integer."""
    whole = isinstance(step, int | np.integer)
    return whole and database.FIRST_STEP <= int(step) <= database.LAST_STEP


def sound_records(records: Iterable[Record]) -> tuple[list[Record], list[str]]:
    """What of these can be kept, and in words what cannot."""
    kept: list[Record] = []
    refused: list[str] = []
    for record in records:
        try:
            kept += _sound(record, refused)
        except Exception as problem:
            refused.append(f"{type(record).__name__} ({type(problem).__name__}: {problem!s:.100})")
    return kept, refused


def _sound(record: Record, refused: list[str]) -> list[Record]:
    step = getattr(record, "step", 0)
    if not is_step(step):
        raise ValueError(f"step {step!r:.40} does not fit into 64 bits")
    if isinstance(record, Row):
        return [_sound_row(record, refused)]
    if isinstance(record, Table):
        to_json(record.content)
    if isinstance(record, Table | Vector):
        return [replace(record, step=int(step), name=whole_text(record.name))]
    if isinstance(record, Event):
        to_json(record.detail)
        kind, message = whole_text(record.kind), whole_text(record.message)
        return [replace(record, step=int(step), kind=kind, message=message)]
    return [record]


def _sound_row(row: Row, refused: list[str]) -> Row:
    values = {}
    for name, value in row.values.items():
        try:
            values[whole_text(str(name))] = float(value)
        except Exception as problem:
            refused.append(f"{str(name)[:60]!r} ({type(problem).__name__}: {problem!s:.60})")
    places: dict[str, int | None] = {}
    for name in ("env_steps", "rollout", "epoch"):
        place = getattr(row, name)
        places[name] = int(place) if is_step(place) else None
        if place is not None and places[name] is None:
            refused.append(f"{name} {place!r:.40}")
    wall_time = float(row.wall_time)
    return Row(step=int(row.step), wall_time=wall_time, values=values, **places)


def _too_many(step: int) -> Event:
    message = (
        f"more experts than the view `dynamics` can show: SQLite allows {dynamics.MOST_COLUMNS}"
        " columns; all of them are kept as series"
    )
    return Event(step=step, kind="dynamics-full", message=message)


def forget_vectors(db: sqlite3.Connection, name: str, keep: int) -> int:
    """Remove all but the last `keep` vectors of a name; how many went."""
    return db.execute(FORGET_VECTORS, {"name": name, "keep": keep}).rowcount


def prune(path: str | os.PathLike[str], *, keep: int) -> int:
    """Remove all but the last `keep` vectors of each name, give the space back, and count them."""
    if keep < 0:
        raise UsageError(f"keep={keep}: how many vectors of each name to keep cannot be negative")
    file = _file(Path(path))
    with told_plainly(file.parent), WriterLock(file.parent):
        db = database.open_for_writing(file)
        try:
            removed = _forget_all(db, keep)
            db.execute("VACUUM")
        finally:
            database.finish(db)
    return removed


def rewind(db: sqlite3.Connection, step: int) -> dict[str, int]:
    """Remove everything beyond `step`; how much of each kind went."""
    removed = {"steps": 0, "points": 0, "tables": 0, "vectors": 0, "events": 0, "findings": 0}
    with _transaction(db):
        # By series, because the key of points begins with it.
        for (series,) in db.execute("SELECT id FROM series").fetchall():
            removed["points"] += db.execute(
                "DELETE FROM points WHERE series_id = ? AND step > ?", (series, step)
            ).rowcount
        db.execute(
            "DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM points WHERE series_id = series.id)"
        )
        dynamics.recreate_view(
            db, dynamics.experts_of(name for (name,) in db.execute("SELECT name FROM series"))
        )
        for table in ("steps", "tables", "vectors", "events"):
            removed[table] = db.execute(f"DELETE FROM {table} WHERE step > ?", (step,)).rowcount
        done = db.execute("DELETE FROM findings WHERE since_step > ?", (step,))
        removed["findings"] = done.rowcount
        cut_spans(db, step)
    return removed


def _file(path: Path) -> Path:
    file = path / database.DATABASE_NAME if path.is_dir() else path
    if not path.exists():
        raise RunNotFound(f"no run at {path}")
    if not file.exists() or not file.stat().st_size:
        raise NotARun(f"{path} is not a run: there is nothing in it to prune")
    return file


def _forget_all(db: sqlite3.Connection, keep: int) -> int:
    names = [name for (name,) in db.execute("SELECT DISTINCT name FROM vectors")]
    with _transaction(db):
        return sum(forget_vectors(db, name, keep) for name in names)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # after a full disk SQLite has often rolled back by itself
            db.execute("ROLLBACK")
        raise
