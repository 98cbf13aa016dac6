"""The team's store: a PostgreSQL database that `gm.load`, the doctor and the page read back.

Points go in by binary COPY, a transaction a batch. A writer holds a lock on its run, which goes
with its connection; a lost connection is made again, and the batch sent again.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gradiometer.errors import GradiometerError, RunExists, RunLocked, UsageError
from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store.batches import Facts, Record, sound_records
from gradiometer.store.postgres import Address, address_of, connect, create_tables, driver
from gradiometer.store.sinks.sink import Backend, Note, Sink, Start
from gradiometer.store.strictjson import to_json

__all__ = ["PostgresBackend", "PostgresSink"]

AGAIN_SECONDS = 60.0
"""How long a lost server is looked for before a batch is given up."""
LOCK = "pg_try_advisory_lock(hashtext('gradiometer run'), %s)"
VALUE = np.dtype(
    [
        *(("cells", ">i2"), ("a", ">i4"), ("series", ">i8"), ("b", ">i4"), ("step", ">i8")),
        *(("c", ">i4"), ("value", ">f8")),
    ]
)
"""A row of a binary COPY into `points`."""
NULL = np.dtype(VALUE.descr[:-1])
"""The same without a value, as a NaN is kept."""
COPY_BEGINS = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_ENDS = struct.pack(">h", -1)

INTO_STEPS = """
INSERT INTO steps SELECT %s, * FROM
    unnest(%s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (run_id, step) DO UPDATE SET
    wall_time = coalesce(excluded.wall_time, steps.wall_time),
    env_steps = coalesce(excluded.env_steps, steps.env_steps),
    rollout = coalesce(excluded.rollout, steps.rollout),
    epoch = coalesce(excluded.epoch, steps.epoch)
"""
INTO_TABLES = """INSERT INTO tables VALUES (%s, %s, %s, %s)
ON CONFLICT (run_id, name, step) DO UPDATE SET json = excluded.json"""
INTO_VECTORS = """INSERT INTO vectors VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (run_id, name, step) DO UPDATE
SET dtype = excluded.dtype, shape = excluded.shape, blob = excluded.blob"""
INTO_EVENTS = """INSERT INTO events (run_id, step, wall_time, kind, message, detail)
VALUES (%s, %s, %s, %s, %s, %s)"""
INTO_FINDINGS = """INSERT INTO findings (run_id, finding, block, since_step, json)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT (run_id, finding, block) DO UPDATE
SET since_step = excluded.since_step, json = excluded.json"""
INTO_RUN = """INSERT INTO run VALUES (%s, %s, %s)
ON CONFLICT (run_id, key) DO UPDATE SET value = excluded.value"""
FORGET_VECTORS = """DELETE FROM vectors WHERE run_id = %(run)s AND name = %(name)s AND step <=
(SELECT step FROM vectors WHERE run_id = %(run)s AND name = %(name)s
    ORDER BY step DESC LIMIT 1 OFFSET %(keep)s)"""
CHANGED = """UPDATE runs SET changed = clock_timestamp(), closed = false,
newest_step = greatest(newest_step, %s) WHERE id = %s"""
COPY_POINTS = "COPY {table} (series_id, step, value) FROM STDIN (FORMAT BINARY)"
MERGE_POINTS = """INSERT INTO points SELECT series_id, step, value FROM again
ON CONFLICT (series_id, step) DO UPDATE SET value = excluded.value"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink(Sink):
    """The whole run, sketches included, in PostgreSQL: `url` is `postgresql://USER@HOST/DATABASE`,
    or what libpq reads from PGHOST, PGDATABASE and the like. A name behind it is the run's."""

    name: ClassVar[str] = "postgres"
    takes_all: ClassVar[bool] = True
    url: str = field(default="", repr=False)

    def check(self, start: Start) -> None:
        """Raise where the server cannot be reached, or has a run of this name with steps."""
        address = self._address(start)
        db = connect(address, reading=False)
        try:
            create_tables(db, address)
            asked = "SELECT newest_step FROM runs WHERE name = %s"
            row = db.execute(asked, (address.run,)).fetchone()
        finally:
            db.close()
        if row is not None and row[0] is not None and start.resume is None and not start.overwrite:
            raise RunExists(
                f"{address} already holds steps up to {row[0]}: resume={row[0]} goes on from there,"
                " overwrite=True starts afresh, or choose another name"
            )

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """The run; what lies beyond the step of a resume is taken out of it."""
        return PostgresBackend(self._address(start), start, note)

    def _address(self, start: Start) -> Address:
        address = address_of(self.url or "postgresql://")
        if address is None:
            raise UsageError(
                "url= of the sink postgres is no address of PostgreSQL: write it as"
                " postgresql://USER@HOST:PORT/DATABASE"
            )
        return address if address.run else address.of(start.name)


class PostgresBackend(Backend):
    """The connection of a run that is written."""

    def __init__(self, address: Address, start: Start, note: Note) -> None:
        self._address, self._note, self._keep = address, note, start.keep
        self._series: dict[str, int] = {}
        self._lost = driver().OperationalError
        self._connect(afresh=start.overwrite)
        try:
            if start.resume is not None:
                self._rewind(start.resume)
            facts = {str(key): to_json(value) for key, value in start.facts.items()}
            self._write([Facts(facts)])
            self._db.execute(
                "UPDATE runs SET started = %s WHERE id = %s",
                (_text(start.facts.get("started", "")), self._id),
            )
        except BaseException:
            self._db.close()
            raise

    def write(self, records: Sequence[Record]) -> None:
        """Keep all of them; a lost connection is made again."""
        try:
            self._write(records)
        except self._lost:
            self._connect_again()
            self._write(records)
        except GradiometerError:
            raise
        except Exception:
            kept, refused = sound_records(records)
            self._write(kept)
            if refused:
                self._note(f"postgres: {len(refused)} values were refused, first {refused[0]}")

    def close(self) -> None:
        """Say that the run is over, and let go."""
        try:
            asked = "UPDATE runs SET closed = true, changed = clock_timestamp() WHERE id = %s"
            self._db.execute(asked, (self._id,))
        finally:
            self._db.close()

    def _connect(self, *, afresh: bool = False) -> None:
        db = connect(self._address, reading=False)
        try:
            create_tables(db, self._address)
            name = (_text(self._address.run),)
            db.execute("INSERT INTO runs (name) VALUES (%s) ON CONFLICT (name) DO NOTHING", name)
            (self._id,) = db.execute("SELECT id FROM runs WHERE name = %s", name).fetchone()
            if not db.execute(f"SELECT {LOCK}", (self._id,)).fetchone()[0]:
                raise RunLocked(
                    f"{self._address} is being written by another process: close that run first, or"
                    " give this one another name"
                )
            if afresh:
                _empty(db, self._id)
            asked = "SELECT name, id FROM series WHERE run_id = %s"
            self._series = dict(db.execute(asked, (self._id,)).fetchall())
        except BaseException:
            db.close()
            raise
        self._db: Any = db

    def _connect_again(self) -> None:
        """A server that is restarted is back in seconds, and the queue holds minutes."""
        until = time.monotonic() + AGAIN_SECONDS
        while True:
            self._db.close()
            try:
                return self._connect()
            except (self._lost, UsageError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def _rewind(self, step: int) -> None:
        """Remove everything beyond a step."""
        removed = {}
        with self._db.transaction():
            mine = "series_id IN (SELECT id FROM series WHERE run_id = %s)"
            beyond = (self._id, step)
            done = self._db.execute(f"DELETE FROM points WHERE {mine} AND step > %s", beyond)
            removed["points"] = done.rowcount
            for table in ("steps", "tables", "vectors", "events"):
                asked = f"DELETE FROM {table} WHERE run_id = %s AND step > %s"
                removed[table] = self._db.execute(asked, beyond).rowcount
            asked = "DELETE FROM findings WHERE run_id = %s AND since_step > %s"
            removed["findings"] = self._db.execute(asked, beyond).rowcount
            empty = "DELETE FROM series WHERE run_id = %s AND NOT EXISTS"
            empty += " (SELECT 1 FROM points WHERE series_id = series.id) RETURNING name"
            for (name,) in self._db.execute(empty, (self._id,)).fetchall():
                self._series.pop(name, None)
            asked = "SELECT max(step) FROM steps WHERE run_id = %s"
            asked = f"UPDATE runs SET newest_step = ({asked}) WHERE id = %s"
            self._db.execute(asked, (self._id, self._id))
        message = f"resumed at step {step}; removed {removed['steps']} steps beyond it"
        self._write([Event(step=step, kind="resumed", message=message, detail=removed)])

    # Records into tables

    def _write(self, records: Iterable[Record]) -> None:
        of: dict[type, list[Any]] = {}
        for record in records:
            of.setdefault(type(record), []).append(record)
        known = dict(self._series)
        try:
            with self._db.transaction():
                newest = self._write_rows(of.get(Row, []))
                self._write_documents(of)
                self._db.execute(CHANGED, (newest, self._id))
        except BaseException:
            self._series = known
            raise

    def _write_rows(self, rows: list[Row]) -> int | None:
        if not rows:
            return None
        self._name_series(dict.fromkeys(name for row in rows for name in row.values))
        places: dict[int, list[Any]] = {}
        points: dict[tuple[int, int], float] = {}
        ids = self._series
        for row in rows:
            step = int(row.step)
            for name, value in row.values.items():
                points[ids[name], step] = float(value)
            wall_time = row.wall_time if math.isfinite(row.wall_time) else None
            told = [wall_time, row.env_steps, row.rollout, row.epoch]
            before = places.setdefault(step, [None] * 4)
            places[step] = [y if x is None else x for x, y in zip(told, before, strict=True)]
        self._copy_points(points)
        columns = zip(*((step, *where) for step, where in sorted(places.items())), strict=True)
        self._db.execute(INTO_STEPS, (self._id, *map(list, columns)))
        return max(places)

    def _name_series(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self._series]
        if new:
            spelled = {_text(name): None for name in new}
            asked = "INSERT INTO series (run_id, name) SELECT %s, unnest(%s::text[])"
            asked += " ON CONFLICT (run_id, name) DO UPDATE SET name = excluded.name"
            cursor = self._db.execute(f"{asked} RETURNING name, id", (self._id, list(spelled)))
            ids = dict(cursor.fetchall())
            self._series.update((name, ids[_text(name)]) for name in new)

    def _copy_points(self, points: dict[tuple[int, int], float]) -> None:
        """COPY takes no step twice; where one was sent before, it is merged by way of a table."""
        if not points:
            return
        content = _copied(points)
        try:
            with self._db.transaction():
                self._copy("points", content)
        except driver().errors.UniqueViolation:
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS again (LIKE points)")
            self._db.execute("TRUNCATE again")
            self._copy("again", content)
            self._db.execute(MERGE_POINTS)

    def _copy(self, table: str, content: bytes) -> None:
        with self._db.cursor() as cursor, cursor.copy(COPY_POINTS.format(table=table)) as copy:
            copy.write(content)

    def _write_documents(self, of: dict[type, list[Any]]) -> None:
        run, now = self._id, time.time()
        tables: list[Table] = of.get(Table, [])
        vectors: list[Vector] = of.get(Vector, [])
        events: list[Event] = of.get(Event, [])
        findings: list[Finding] = of.get(Finding, [])
        facts = (pair for each in of.get(Facts, []) for pair in each.json.items())
        self._many(INTO_TABLES, ((run, x.step, _text(x.name), to_json(x.content)) for x in tables))
        self._many(INTO_VECTORS, ((run, *_vector(x)) for x in vectors))
        self._many(
            INTO_EVENTS,
            (
                (run, x.step, now, _text(x.kind), _text(x.message), to_json(x.detail))
                for x in events
            ),
        )
        self._many(
            INTO_FINDINGS,
            ((run, x.id, _text(x.block or ""), x.since_step, to_json(x)) for x in findings),
        )
        self._many(INTO_RUN, ((run, _text(key), value) for key, value in facts))
        for name in {vector.name for vector in vectors} if self._keep is not None else ():
            told = {"run": run, "name": _text(name), "keep": self._keep}
            self._db.execute(FORGET_VECTORS, told)

    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        if listed := list(rows):
            with self._db.cursor() as cursor:
                cursor.executemany(statement, listed)


def _copied(points: dict[tuple[int, int], float]) -> bytes:
    """In the order of the key, and a NaN as NULL, which `run.db` has there too."""
    keys = np.array(list(points), dtype=np.int64)
    values = np.fromiter(points.values(), dtype=np.float64, count=len(points))
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    keys, values = keys[order], values[order]
    nan = np.isnan(values)
    parts = [COPY_BEGINS]
    for which, kind in ((~nan, VALUE), (nan, NULL)):
        rows = np.zeros(int(which.sum()), dtype=kind)
        rows["cells"], rows["a"], rows["b"] = 3, 8, 8
        rows["series"], rows["step"] = keys[which, 0], keys[which, 1]
        rows["c"] = 8 if kind is VALUE else -1
        if kind is VALUE:
            rows["value"] = values[which]
        parts.append(rows.tobytes())
    return b"".join((*parts, COPY_ENDS))


def _empty(db: Any, run: int) -> None:
    """Everything of a run, but that it is there."""
    with db.transaction():
        mine = "series_id IN (SELECT id FROM series WHERE run_id = %s)"
        db.execute(f"DELETE FROM points WHERE {mine}", (run,))
        for table in ("run", "steps", "series", "tables", "vectors", "events", "findings"):
            db.execute(f"DELETE FROM {table} WHERE run_id = %s", (run,))
        db.execute("UPDATE runs SET newest_step = NULL WHERE id = %s", (run,))


def _vector(vector: Vector) -> tuple[Any, ...]:
    array = np.asarray(vector.values)
    shape = to_json(array.shape)
    return vector.step, _text(vector.name), array.dtype.str, shape, array.tobytes()


def _text(text: Any) -> str:
    """PostgreSQL has no NUL in a text."""
    return str(text).replace("\0", "\N{REPLACEMENT CHARACTER}")
