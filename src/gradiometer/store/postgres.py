"""Runs in a team's PostgreSQL database: addresses, tables, and a run that is read from there.

An address is `postgresql://USER@HOST:PORT/DATABASE/RUN`. Its tables are those of a `run.db` in the
schema `gradiometer`, with the number of the run; series have numbers of their own, so the points of
all runs lie in one table without it.

A password is never part of a path that we hand around: `Address` keeps it for the connection alone.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np

from gradiometer.errors import (
    MissingExtra,
    NotARun,
    RunDamaged,
    RunNotFound,
    SchemaTooNew,
    UsageError,
    close_names,
)
from gradiometer.store import cells, database
from gradiometer.store.checksums import Damage
from gradiometer.store.reader import Reader, Run
from gradiometer.store.thinning import Floats, Ints
from gradiometer.words import some

__all__ = [
    "Address",
    "PostgresRun",
    "StoredRun",
    "address_of",
    "connect",
    "create_tables",
    "driver",
    "runs_at",
    "translated",
]

SCHEMA_VERSION = 1
SCHEME = re.compile(r"postgres(?:ql)?:/{1,2}(?!/)|postgres(?:ql)?:///(?!/)")
CONNECT_SECONDS = 10
TABLES = """
CREATE SCHEMA IF NOT EXISTS gradiometer;
CREATE TABLE about (key text PRIMARY KEY, value text NOT NULL);
INSERT INTO about VALUES ('schema_version', '{version}');
CREATE TABLE runs (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
    started text NOT NULL DEFAULT '', changed timestamptz NOT NULL DEFAULT clock_timestamp(),
    newest_step bigint, closed boolean NOT NULL DEFAULT false
);
CREATE TABLE run (
    run_id integer NOT NULL, key text COLLATE "C" NOT NULL, value text NOT NULL,
    PRIMARY KEY (run_id, key)
);
CREATE TABLE steps (
    run_id integer NOT NULL, step bigint NOT NULL, wall_time float8, env_steps bigint,
    rollout bigint, epoch bigint,
    PRIMARY KEY (run_id, step)
);
CREATE TABLE series (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_id integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    UNIQUE (run_id, name)
);
CREATE TABLE points (
    series_id bigint NOT NULL, step bigint NOT NULL, value float8,
    PRIMARY KEY (series_id, step)
);
CREATE TABLE tables (
    run_id integer NOT NULL, step bigint NOT NULL, name text COLLATE "C" NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (run_id, name, step)
);
CREATE TABLE vectors (
    run_id integer NOT NULL, step bigint NOT NULL, name text COLLATE "C" NOT NULL,
    dtype text NOT NULL, shape text NOT NULL, blob bytea NOT NULL,
    PRIMARY KEY (run_id, name, step)
);
CREATE TABLE events (
    run_id integer NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY, step bigint NOT NULL,
    wall_time float8, kind text NOT NULL, message text NOT NULL, detail text NOT NULL,
    PRIMARY KEY (run_id, id)
);
CREATE TABLE findings (
    run_id integer NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY, finding text NOT NULL,
    block text NOT NULL, since_step bigint, json text NOT NULL,
    PRIMARY KEY (run_id, finding, block)
);
"""
OF_RUN = ("run", "steps", "series", "tables", "vectors", "events", "findings")
"""Tables with the number of a run; the points of a series need none."""
# Not to_regclass: within a transaction it repeats what it said before another's tables were made.
THERE = """SELECT EXISTS (SELECT FROM pg_catalog.pg_tables
WHERE schemaname = 'gradiometer' AND tablename = 'about')"""
LISTED = """
SELECT name, started, (extract(epoch FROM changed) * 1e6)::bigint, newest_step, closed FROM runs
ORDER BY name
"""
POINTS = """
COPY (SELECT step, coalesce(value, 'NaN'::float8) FROM points
WHERE series_id = {series} AND step BETWEEN {low} AND {high} ORDER BY step LIMIT {limit})
TO STDOUT (FORMAT BINARY)
"""
POINT = np.dtype([("cells", ">i2"), ("a", ">i4"), ("step", ">i8"), ("b", ">i4"), ("value", ">f8")])
"""A row of PostgreSQL's binary COPY: its cells, and of each the length and the content."""
COPY_HEAD, COPY_TAIL = 19, 2
MOST_NAMED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a database or a run in it is; printing it shows no password."""

    url: str = field(repr=False)
    """For the connection, with everything that was given; without the run."""
    server: str
    """The same to show: user, host and port, without the password and options."""
    database: str
    run: str = ""

    @property
    def path(self) -> Path:
        """What stands for it where others have a path: pathlib makes one slash of two."""
        return Path(str(self))

    def of(self, run: str) -> Address:
        """Of a run in the same database."""
        return Address(url=self.url, server=self.server, database=self.database, run=run)

    def __str__(self) -> str:
        parts = (quote(part, safe="/") for part in (self.database, self.run) if part)
        return "/".join((f"postgresql://{self.server}", *parts))


_known: dict[str, str] = {}
"""Of each database, as it is shown, the whole URL: paths carry no password."""


def address_of(given: str | os.PathLike[str]) -> Address | None:
    """The address that is meant; None for the path of a file."""
    text = os.fspath(given)
    if not isinstance(text, str) or SCHEME.match(text) is None:
        return None
    if not text.partition(":")[2].startswith("//"):
        text = text.replace(":/", "://", 1)
    parts = urlsplit(text)
    login, _, host = parts.netloc.rpartition("@")
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if not host:
        host = options.get("host", os.environ.get("PGHOST", "localhost"))
        port = options.get("port", os.environ.get("PGPORT", "5432"))
        host = quote(host, safe="") + (f":{port}" if port != "5432" else "")
    user = login.partition(":")[0] or options.get("user", os.environ.get("PGUSER", ""))
    database, _, run = parts.path.lstrip("/").partition("/")
    database = database or options.get("dbname", os.environ.get("PGDATABASE", user or "postgres"))
    found = Address(
        url=f"postgresql://{parts.netloc}/{parts.path.lstrip('/').partition('/')[0]}"
        + (f"?{parts.query}" if parts.query else ""),
        server=f"{user}@{host}" if user else host,
        database=unquote(database),
        run=unquote(run).strip("/"),
    )
    place = str(found.of(""))
    if ":" in login or parts.query or not parts.netloc:
        _known[place] = found.url
    whole = _known.get(place, found.url)
    return Address(url=whole, server=found.server, database=found.database, run=found.run)


def driver() -> Any:
    """psycopg, which only an extra brings."""
    try:
        return import_module("psycopg")
    except ImportError as problem:
        raise MissingExtra("psycopg", "postgres", "a PostgreSQL database") from problem


def connect(address: Address, *, reading: bool = True) -> Any:
    """A connection; one for reading cannot write, and no statement of it takes for ever."""
    psycopg = driver()
    more: dict[str, Any] = (
        {} if "connect_timeout" in address.url else {"connect_timeout": CONNECT_SECONDS}
    )
    try:
        db = psycopg.connect(address.url, autocommit=True, prepare_threshold=None, **more)
    except psycopg.OperationalError as problem:
        raise UsageError(_unreachable(address, str(problem))) from None
    except psycopg.Error:  # its words would repeat the URL
        raise UsageError(
            f"{address} is not an address that PostgreSQL's library can read: write"
            " postgresql://USER@HOST:PORT/DATABASE/RUN, with options such as ?sslmode=require"
        ) from None
    settings = "SET search_path = gradiometer"
    if reading:
        patience = round(1000 * min(database.patience(), database.STATEMENT_SECONDS))
        settings += f"; SET statement_timeout = {patience}; SET default_transaction_read_only = on"
        settings += "; SET default_transaction_isolation = 'repeatable read'"
    else:
        # A machine that was switched off must not hold its run for hours.
        settings += "; SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10"
    try:
        with translated(address):
            db.execute(settings)
    except BaseException:
        db.close()
        raise
    return db


def _unreachable(address: Address, said: str) -> str:
    """In words: libpq has no codes for what goes wrong before a session."""
    place = address.of("")
    if "password" in said:
        return (
            f"{place} refuses the password: put the right one into ~/.pgpass or PGPASSWORD, or into"
            " the address"
        )
    if f'database "{address.database}" does not exist' in said:
        return (
            f"{place}: the server has no database {address.database!r}: create it (createdb"
            f" {address.database}), or name another"
        )
    if "role" in said or "pg_hba" in said:
        return f"{place} does not let this user in: {_reason(said)}"
    return (
        f"{place} cannot be reached ({_reason(said)}): is the server running, and are host and port"
        " right?"
    )


def _reason(said: str) -> str:
    """The first line without libpq's own address of the server."""
    first = (said.strip().splitlines() or ["no answer"])[0]
    return first.rpartition("failed: ")[2].strip()[:200]


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """PostgreSQL's complaints in our words."""
    errors = driver().errors
    try:
        yield
    except errors.QueryCanceled as problem:
        raise UsageError(
            f"{address} takes too long to answer one query, so it is not read"
        ) from problem
    except (errors.UndefinedTable, errors.InvalidSchemaName) as problem:
        raise NotARun(_no_tables(address)) from problem
    except errors.InsufficientPrivilege as problem:
        raise UsageError(
            f"{address}: this user may not ({_reason(str(problem))}); its owner can GRANT USAGE"
            " ON SCHEMA gradiometer and SELECT ON ALL TABLES IN SCHEMA gradiometer"
        ) from problem
    except driver().OperationalError as problem:
        raise UsageError(f"{address}: connection lost ({_reason(str(problem))})") from problem
    except driver().ProgrammingError as problem:
        raise RunDamaged(
            f"{address}: its tables are not those of Gradiometer ({_reason(str(problem))})"
        ) from problem


def _no_tables(address: Address) -> str:
    return (
        f"{address.of('')} holds no runs: there is no schema `gradiometer` in it, or this user may"
        f' not see it; a training with sinks=[gm.sinks.postgres(url="...")] creates it'
    )


def create_tables(db: Any, address: Address) -> None:
    """The tables, where there are none; several writers may begin at once."""
    with translated(address):
        if not _version(db, address):
            with db.transaction():
                db.execute("SELECT pg_advisory_xact_lock(hashtext('gradiometer tables'))")
                if not _version(db, address):
                    db.execute(TABLES.format(version=SCHEMA_VERSION))


def _version(db: Any, address: Address) -> int:
    """Of the schema; 0 where there is none."""
    if not db.execute(THERE).fetchone()[0]:
        return 0
    row = db.execute("SELECT value FROM gradiometer.about WHERE key = 'schema_version'").fetchone()
    version = int(row[0]) if row is not None and str(row[0]).isdecimal() else 0
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{address.of('')} has schema {version} and this Gradiometer reads up to"
            f" {SCHEMA_VERSION}: pip install -U gradiometer"
        )
    return version


def _check_tables(db: Any, address: Address) -> None:
    if not _version(db, address):
        raise NotARun(_no_tables(address))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in the list of a database."""

    name: str
    started: str
    changed: int
    """Microseconds since the epoch."""
    newest_step: int | None
    closed: bool


def runs_at(address: Address, db: Any = None) -> list[StoredRun]:
    """Every run of a database, in order of name."""
    if db is None:
        db = connect(address)
        try:
            return runs_at(address, db)
        finally:
            db.close()
    with translated(address):
        _check_tables(db, address)
        rows = db.execute(LISTED).fetchall()
    names = ("name", "started", "changed", "newest_step", "closed")
    return [StoredRun(**dict(zip(names, row, strict=True))) for row in rows]


class PostgresRun(Run):
    """A run in a database, read-only; what is asked is what `Run` asks of its file."""

    has_checksums = False  # the server has its own

    def __init__(self, address: Address) -> None:
        self.path, self._address = address.path, address
        self.damage: list[Damage] = []
        self._db = connect(address)
        self._finalizer = weakref.finalize(self, self._db.close)
        try:
            self._id = self._find()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What people call the run."""
        return self._address.run

    latest = Reader.latest  # a question for each step would be a round trip each
    where = Reader.where
    thinned = Reader.thinned

    def verify(self) -> list[Damage]:
        """Nothing: the server keeps the checksums of its pages (`initdb --data-checksums`)."""
        return []

    def _find(self) -> int:
        with translated(self._address):
            _check_tables(self._db, self._address)
            row = self._db.execute("SELECT id FROM runs WHERE name = %s", (self.name,)).fetchone()
        if row is not None:
            return int(row[0])
        names = [run.name for run in runs_at(self._address, self._db)]
        if not self.name:
            raise NotARun(
                f"{self._address} is not a run but a database of {len(names)} runs: add the name of"
                f" one, such as {some(names) or 'RUN'}"
            )
        close = close_names(self.name, names[:MOST_NAMED])
        said = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise RunNotFound(f"no run {self.name!r} in {self._address.of('')}{said}")

    def _execute(self, statement: str, *parameters: Any) -> list[Any]:
        """The same tables, but only this run's rows of them."""
        asked = statement.replace("?", "%s").strip()
        if asked.startswith("SELECT"):
            used = [table for table in OF_RUN if re.search(rf"\b{table}\b", asked)]
            scopes = (
                f"{table} AS (SELECT * FROM gradiometer.{table} WHERE run_id = {self._id})"
                for table in used
            )
            asked = (f"WITH {', '.join(scopes)} " if used else "") + asked
        with translated(self._address):
            cursor = self._db.execute(asked, parameters)
            return cursor.fetchall() if cursor.description else []

    def _part(
        self, name: str, first: int | None, last: int | None, limit: int = database.LAST_STEP
    ) -> tuple[int, Ints, Floats]:
        series, _ = self._spans(name)
        low = database.FIRST_STEP if first is None else first
        high = database.LAST_STEP if last is None else last
        asked = POINTS.format(series=series, low=low, high=high, limit=limit)
        with translated(self._address), self._db.cursor().copy(asked) as rows:
            told = b"".join(rows)
        return (series, *self._read(_points, told))


def _points(told: bytes) -> tuple[Ints, Floats]:
    """The columns of a binary COPY."""
    if (len(told) - COPY_HEAD - COPY_TAIL) % POINT.itemsize:
        raise cells.BadCell("a point is not a step and a number")
    rows = np.frombuffer(told[COPY_HEAD:-COPY_TAIL], dtype=POINT)
    if len(rows) and not ((rows["a"] == 8).all() and (rows["b"] == 8).all()):
        raise cells.BadCell("a point is not a step and a number")
    return rows["step"].astype(np.int64), rows["value"].astype(np.float64)
