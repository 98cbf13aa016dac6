"""The file of a run: its tables, how it is opened, and how an old one is brought up to date."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Self

from gradiometer.errors import NotARun, RunDamaged, RunLocked, SchemaTooNew, UsageError
from gradiometer.store.checksums import DOCUMENTS, cover_all, row_sum
from gradiometer.store.locks import (
    filesystem_of,
    has_no_locks,
    is_network,
    note_no_locks,
    refuses_locks,
    say_once,
)
from gradiometer.store.strictjson import to_json

__all__ = [
    "APPLICATION_ID",
    "DATABASE_NAME",
    "FIRST_STEP",
    "LAST_STEP",
    "MIGRATIONS",
    "SCHEMA_VERSION",
    "SIDE_FILES",
    "SQLITE_MAGIC",
    "STATEMENT_SECONDS",
    "TimedConnection",
    "check_schema",
    "finish",
    "impatient",
    "open_for_reading",
    "open_for_writing",
    "open_in_place",
    "owner",
    "patience",
    "remove",
    "shorten",
    "translated",
]

DATABASE_NAME = "run.db"
APPLICATION_ID = 0x47726164  # "Grad": how `file` and we tell a run from any other SQLite database
SCHEMA_VERSION = 2
IN_PLACE = frozenset({1, 2})
"""Versions that are read as they are: what 2 added are checksums."""
FIRST_STEP, LAST_STEP = -(2**63), 2**63 - 1
"""What SQLite's integers reach."""
CHECKS = """
CREATE TABLE checks (
    series_id INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL,
    points INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (series_id, first_step)
) WITHOUT ROWID;
"""
MIGRATIONS: dict[int, str] = {
    1: CHECKS
    + "\n".join(
        f"ALTER TABLE {table} ADD COLUMN crc INTEGER;\n"
        f"UPDATE {table} SET crc = row_sum({', '.join(cells)});"
        for table, cells in DOCUMENTS.items()
    )
}
"""From a schema version, the SQL that leads to the next."""

SCHEMA = (
    """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER) WITHOUT ROWID;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, wall_time REAL, env_steps INTEGER, rollout INTEGER, epoch INTEGER
);
CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE points (
    series_id INTEGER NOT NULL, step INTEGER NOT NULL, value REAL,
    PRIMARY KEY (series_id, step)
) WITHOUT ROWID;
CREATE TABLE tables (
    step INTEGER NOT NULL, name TEXT NOT NULL, json TEXT NOT NULL, crc INTEGER,
    PRIMARY KEY (step, name)
);
CREATE TABLE vectors (
    step INTEGER NOT NULL, name TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
    blob BLOB NOT NULL, crc INTEGER,
    PRIMARY KEY (name, step)
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, wall_time REAL, kind TEXT NOT NULL,
    message TEXT NOT NULL, detail TEXT NOT NULL, crc INTEGER
);
CREATE TABLE findings (
    id INTEGER PRIMARY KEY, finding TEXT NOT NULL, block TEXT NOT NULL, since_step INTEGER,
    json TEXT NOT NULL, crc INTEGER,
    UNIQUE (finding, block)
);
CREATE INDEX tables_by_name ON tables (name, step);
"""
    + CHECKS
)

COLUMNS_OF_ALL = """
SELECT found.type, found.name, of.name, of.hidden OR found.sql LIKE 'CREATE VIRTUAL%'
FROM (SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'trigger')) AS found
LEFT JOIN pragma_table_xinfo(found.name) AS of ON found.type = 'table'
"""
SIDE_FILES = ("-wal", "-shm", "-journal")
SQLITE_MAGIC = b"SQLite format 3\0"
WAIT_SECONDS = 30.0
"""How long to wait for another's lock: only with a rollback journal readers wait for commits."""
LONG_LOG = 32 << 20
"""Bytes of SQLite's log at which it begins anew; without readers it does so at 4 MiB by itself."""
SHORTEN_SECONDS = 0.2
"""How long the writer's thread waits for readers; it tries again with the next batch."""
STATEMENT_SECONDS = 60.0
"""What a statement may take on a file that anybody may have made: ours take a second or two."""
EVERY_INSTRUCTIONS = 100_000
"""Of SQLite's machine, between two looks at the clock: some milliseconds."""
LARGEST_CELL = 1 << 28
WRITER_WAIT_SECONDS = 60.0
"""The writer's patience where readers stand in its way; it has a queue meanwhile."""


UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
"""A full disk or a read-only folder says nothing about the file."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The run's database, created or brought up to date; the caller holds the writer lock.

    In WAL mode, where readers and the writer never wait for each other, or with a rollback journal
    where WAL cannot work.
    """
    if not path.exists() or not path.stat().st_size:
        _create(path)
    db = _connect_to_write(path)
    try:
        with translated(path):
            version = _schema_version(db, path)
            check_schema(db, path, version)
            migrate(db, version)
            _choose_journal(db, path)
            db.execute("PRAGMA cache_size = -4096")
    except BaseException:
        db.close()
        raise
    return db


def _choose_journal(db: sqlite3.Connection, path: Path) -> None:
    why = _why_no_wal(db, path.parent)
    if why is None:
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("DELETE FROM run WHERE key = 'journal'")  # it was on such a file system once
        return
    # TRUNCATE spares a shared file system the making and removing of a file at each commit, and NFS
    # the `.nfs` files that removing one which a reader holds open leaves behind. FULL, because with
    # a rollback journal NORMAL can lose the file to a power cut; at two commits a second, on the
    # writer's thread, nobody notices the extra sync.
    db.execute(f"PRAGMA busy_timeout = {round(1000 * WRITER_WAIT_SECONDS)}")
    db.execute("PRAGMA journal_mode = TRUNCATE").fetchall()
    db.execute("PRAGMA synchronous = FULL")
    locks = not has_no_locks(path.parent)
    fact = {"mode": "truncate", "synchronous": "full", "locks": locks, "why": why}
    row = ("journal", to_json(fact))
    db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (*row, row_sum(*row)))
    say_once(
        "journal",
        path.parent,
        f"{path.parent}: {why}, so the run is kept with a rollback journal: safe, but slower to"
        " read",
    )


def _why_no_wal(db: sqlite3.Connection, folder: Path) -> str | None:
    """Switch WAL on; why not, where its shared memory cannot be trusted or SQLite refuses."""
    kind = filesystem_of(folder)
    if is_network(kind):
        return f"SQLite's WAL does not work on {kind}"
    if has_no_locks(folder):
        return "SQLite's WAL does not work without file locks"
    try:
        (answer,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if _is(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
            raise
        return f"SQLite's WAL does not work here ({error})"
    return None if answer == "wal" else f"SQLite's WAL does not work here (it chose {answer!r})"


def open_for_reading(path: Path) -> sqlite3.Connection:
    """The run's database, never changed: from a copy when its schema is old or it must be."""
    with translated(path):
        db = open_in_place(path)
        try:
            version = _schema_version(db, path)
            check_schema(db, path, version)
            if version in IN_PLACE:
                return db
            copy = _into_memory(db)
            migrate(copy, version)
        except BaseException:
            db.close()
            raise
        db.close()
        return copy


def open_in_place(path: Path) -> sqlite3.Connection:
    """Any SQLite database for reading, never changed; from a copy only where it must be."""
    try:
        return _open_read_only(path)
    except sqlite3.OperationalError as error:
        if _is(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return _open_without_locks(path, error)
    with path.open("rb"):  # a file that may not be read at all says so here
        pass
    # A read-only folder, where SQLite may neither replay a log nor build its index.
    if any(path.with_name(path.name + side).exists() for side in ("-wal", "-journal")):
        return _replayed_copy(path)
    return _connect(path, "immutable=1")


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring the schema to SCHEMA_VERSION, all or nothing."""
    if version == SCHEMA_VERSION:
        return
    db.create_function("row_sum", -1, row_sum, deterministic=True)
    changes = "\n".join(MIGRATIONS[older] for older in range(version, SCHEMA_VERSION))
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{changes}\n{_stamp()}")
        cover_all(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def shorten(db: sqlite3.Connection, path: Path) -> None:
    """Let SQLite's log begin anew once it is long.

    By itself it does so only when nobody reads, and ten pages read all the time. Here the writer
    waits a moment for those who read what is older, and whoever comes meanwhile reads the file
    itself.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        if log.stat().st_size < LONG_LOG:
            return
    except FileNotFoundError:
        return
    (patience,) = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout = {round(1000 * SHORTEN_SECONDS)}")
    with suppress(sqlite3.OperationalError):  # a full disk, say: what was written is written
        # Where somebody reads longer it answers "busy", no more.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.execute(f"PRAGMA busy_timeout = {patience}")


def finish(db: sqlite3.Connection) -> None:
    """Close a run so that it is one file; beside a reader the log stays, and SQLite reads both."""
    try:
        db.execute("PRAGMA busy_timeout = 1000")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.OperationalError as error:
        if not _is(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
    finally:
        db.close()


def remove(path: Path) -> None:
    """Delete a run's database and what SQLite left beside it; a file that is not ours stays."""
    if not path.exists():
        return
    header = _header(path)
    if header and not header.startswith(SQLITE_MAGIC):
        raise NotARun(
            f"{path} is not a run of Gradiometer, so it is not overwritten: move it or choose"
            " another folder"
        )
    if owner(header) not in (None, APPLICATION_ID):
        raise NotARun(
            f"{path} is another program's database, so it is not overwritten: choose another folder"
        )
    for side in ("", *SIDE_FILES):
        path.with_name(path.name + side).unlink(missing_ok=True)


def owner(start: bytes) -> int | None:
    """The application id in the first bytes of a SQLite file; None when there is none."""
    whole = start.startswith(SQLITE_MAGIC) and len(start) >= 72
    return int.from_bytes(start[68:72], "big") if whole else None


@contextmanager
def translated(path: Path, *, kind: str = "run") -> Iterator[None]:
    """SQLite's complaints in our words; `kind` is what the file was taken for."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a closed run: the caller's mistake, not the file's
        raise
    except sqlite3.DatabaseError as error:
        if _is(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise RunLocked(
                f"{path} is busy: another process is rewriting it; try again in a moment"
            ) from error
        if _is(error, sqlite3.SQLITE_INTERRUPT):
            raise UsageError(
                f"{path} takes too long to answer one query (more than {_patience.get():.0f} s),"
                " so it is not read"
            ) from error
        if _is(error, *UNWRITABLE):
            raise UsageError(
                f"the run cannot be kept in {path.parent} ({error}): make room there, or give it a"
                " folder that you may write to (run=... or --run)"
            ) from error
        if _is(error, sqlite3.SQLITE_NOTADB) and not _header(path).startswith(SQLITE_MAGIC):
            raise NotARun(f"{path} is not a {kind}: it is no SQLite database") from error
        raise _damaged(path, str(error)) from error


_patience: ContextVar[float] = ContextVar("patience", default=STATEMENT_SECONDS)


@contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Files that are opened inside may take so long for a statement."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


def patience() -> float:
    """Seconds that a statement may take here."""
    return _patience.get()


class TimedConnection(sqlite3.Connection):
    """A connection to a file that somebody else may have made: no statement takes for ever."""

    until = float("inf")
    seconds = STATEMENT_SECONDS

    def execute(self, *asked: Any) -> sqlite3.Cursor:
        """The same, with so many seconds from here to the last row."""
        self.until = time.monotonic() + self.seconds
        return super().execute(*asked)

    def bound(self) -> Self:
        """Begin to watch the time, and trust nothing that the schema calls."""
        self.seconds = min(_patience.get(), STATEMENT_SECONDS)
        sqlite3.Connection.execute(self, "PRAGMA trusted_schema = OFF")
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CELL)
        self.set_progress_handler(self._late, EVERY_INSTRUCTIONS)
        return self

    def _late(self) -> bool:
        return time.monotonic() > self.until


def _connect(path: Path, query: str) -> sqlite3.Connection:
    reading = not query.startswith("mode=rwc")
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?{query}",
        uri=True,
        timeout=WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        # Python keeps 128, and a statement of ours may hold a thousand rows: 25 MB of a long run
        cached_statements=4,
        factory=TimedConnection if reading else sqlite3.Connection,
    )
    if isinstance(db, TimedConnection):
        return db.bound()
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _create(path: Path) -> None:
    """An empty run, made under another name: a reader finds no run, never half of one."""
    # Before WAL is switched on, so that the main file alone says whose it is even if nothing is
    # ever checkpointed.
    owned = f"PRAGMA application_id = {APPLICATION_ID};"
    unborn = path.with_name(path.name + ".new")
    remove(unborn)  # what a killed process left
    try:
        with closing(_connect_to_write(unborn)) as db, translated(path):
            db.executescript(f"BEGIN IMMEDIATE;\n{owned}\n{SCHEMA}\n{_stamp()}\nCOMMIT;")
        unborn.replace(path)
    finally:
        remove(unborn)


def _connect_to_write(path: Path) -> sqlite3.Connection:
    return _connect(path, "mode=rwc" + ("&vfs=unix-none" if has_no_locks(path.parent) else ""))


def _stamp() -> str:
    row = ("schema_version", str(SCHEMA_VERSION))
    return (
        f"PRAGMA user_version = {SCHEMA_VERSION};\n"
        f"INSERT OR REPLACE INTO run VALUES ('{row[0]}', '{row[1]}', {row_sum(*row)});"
    )


def _schema_version(db: sqlite3.Connection, path: Path) -> int:
    application, version = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application != APPLICATION_ID:
        size = path.stat().st_size
        if path.name == DATABASE_NAME and size < 100:  # its header would say whose it is
            raise _damaged(path, f"only {size} bytes of it are left")
        raise NotARun(f"{path} is not a run: it is the SQLite database of another program")
    if version < 1:
        raise _damaged(path, f"its schema is {version}, and the first is 1")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path} has schema {version} and this Gradiometer reads up to {SCHEMA_VERSION}: pip"
            " install -U gradiometer"
        )
    return int(version)


def check_schema(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Raise unless what we read are tables with our columns: a view may compute for ever, a trigger
    do anything, and neither is ours."""
    tables: dict[str, set[str]] = {}
    for kind, name, column, hidden in db.execute(COLUMNS_OF_ALL):
        if kind == "trigger":
            raise _damaged(path, f"it has a trigger, {name!r}")
        if kind == "table" and not hidden:
            tables.setdefault(str(name), set()).add(str(column))
    for name, columns in _columns(version).items():
        if not columns <= tables.get(name, set()):
            raise _damaged(path, f"{name!r} is not the table that a run has")


@cache
def _columns(version: int) -> dict[str, set[str]]:
    """The columns of each table that a run has since that version."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        found: dict[str, set[str]] = {}
        for kind, name, column, _ in db.execute(COLUMNS_OF_ALL):
            if kind == "table" and (version > 1 or (column != "crc" and name != "checks")):
                found.setdefault(name, set()).add(column)
    return found


def _open_without_locks(path: Path, error: sqlite3.OperationalError) -> sqlite3.Connection:
    """SQLite says "locked" too where a file system has no locks at all."""
    if has_no_locks(path.parent) or not refuses_locks(path.parent):
        raise error
    note_no_locks(path.parent)
    return _open_read_only(path)


def _open_read_only(path: Path) -> sqlite3.Connection:
    db = _connect(path, "mode=ro" + ("&vfs=unix-none" if has_no_locks(path.parent) else ""))
    try:
        _check_whole(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check_whole(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN")
    names = ("page_count", "page_size", "journal_mode")
    pages, page_size, journal = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    size = path.stat().st_size
    db.execute("COMMIT")
    # SQLite notices a missing page, but fills up half a one with zeros; in WAL mode pages may still
    # be in the log.
    if journal == "delete" and pages * page_size > size:
        raise _damaged(path, f"it is cut off at {size} of {pages * page_size} bytes")


def _replayed_copy(path: Path) -> sqlite3.Connection:
    with tempfile.TemporaryDirectory(prefix="gradiometer-") as folder:
        for side in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                copy = Path(folder, DATABASE_NAME + side)
                shutil.copyfile(path.with_name(path.name + side), copy)
        with closing(_connect(Path(folder, DATABASE_NAME), "mode=rw")) as db:
            return _into_memory(db)


def _into_memory(db: sqlite3.Connection) -> sqlite3.Connection:
    memory = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, factory=TimedConnection
    )
    db.backup(memory)
    return memory.bound()


def _header(path: Path) -> bytes:
    # Only for files SQLite does not hold open in this process: closing this descriptor drops its
    # locks.
    with path.open("rb") as file:
        return file.read(100)


def _is(error: sqlite3.DatabaseError, *codes: int) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in codes


def _damaged(path: Path, why: str) -> RunDamaged:
    return RunDamaged(
        f"{path} can no longer be read ({why}): if it was copied, copy it again with its -wal file;"
        f" otherwise try `sqlite3 {path} .recover | sqlite3 recovered.db`"
    )
