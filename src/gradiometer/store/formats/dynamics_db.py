"""A Prismatic `dynamics.db`, read like a run: one table, a row a step, columns for each expert."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gradiometer.errors import NotARun, RunNotFound, UsageError
from gradiometer.store import database
from gradiometer.store.dynamics import columns_of, series_of
from gradiometer.store.formats import Reads, called, log_format
from gradiometer.store.logs import Log, short_id, warn
from gradiometer.words import some

__all__ = ["EXPECTED", "read_dynamics_db"]

DYNAMICS_NAME = "dynamics.db"
COLUMNS = ["step", *columns_of(0), *columns_of(1), "expert_2_..."]
EXPECTED = f"table dynamics ({', '.join(COLUMNS)})"
SHOWN_TABLES, SHOWN_COLUMNS = 5, 12


def _is_dynamics_db(path: Path, start: bytes) -> bool:
    """Any SQLite file that is not a run: what it lacks is said when it is read."""
    return path.name == DYNAMICS_NAME or database.owner(start) is not None


@log_format(
    "dynamics-db",
    rank=20,
    title="a dynamics.db",
    detect=_is_dynamics_db,
    find=called(DYNAMICS_NAME),
    reads=[
        Reads(
            tool="Prismatic",
            file="`dynamics.db`",
            steps="`step`",
            taken="the columns of each expert",
        )
    ],
)
def read_dynamics_db(path: Path) -> Log:
    """The log in a `dynamics.db`, under the names a run gives to the same quantities.

    NULL is a value that was not measured. A NaN that was measured cannot be told apart from it,
    because SQLite keeps a NaN as NULL. A file without the norm of whole experts, as Prismatic's
    own logger makes it, has no such series. Columns that are not of Prismatic's table keep their
    own names, and a warning names them.
    """
    _check_file(path)
    with database.translated(path, kind="dynamics.db"), closing(database.open_in_place(path)) as db:
        db.text_factory = lambda raw: raw.decode(errors="replace")
        columns = _columns(db, path)
        rows = list(_rows(db, path, columns))
    if not rows:
        raise UsageError(
            f"{path} has a table dynamics and no rows in it: nothing was logged; "
            "log after backward() and before optimizer.step()"
        )
    name = path.resolve().parent.name if path.name == DYNAMICS_NAME else path.stem
    first = rows[0]
    facts = {"imported": {"format": "dynamics-db"}}
    run_id = short_id(name, first[0], *first[1].values())
    return Log(path, name=name, run_id=run_id, rows=rows, facts=facts)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise NotARun(f"{path} is a folder and not a dynamics.db: give the file in it")
    if not path.exists():
        raise RunNotFound(f"no dynamics.db at {path}")
    if not path.stat().st_size:
        raise NotARun(f"{path} is not a dynamics.db: it is an empty file; expected: {EXPECTED}")


def _columns(db: sqlite3.Connection, path: Path) -> dict[str, str]:
    """The columns to read with the names their values get, `step` first."""
    if db.execute("PRAGMA application_id").fetchone() == (database.APPLICATION_ID,):
        raise UsageError(
            f"{path} is a run and not a dynamics.db: open it directly, it has all this and more"
        )
    found = _schema(db)
    if db.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = 'dynamics'"
    ).fetchone():
        raise NotARun(
            f"{path} is not a dynamics.db: its dynamics is a view, which may compute for ever;"
            f" expected: {EXPECTED}"
        )
    if "dynamics" not in found:
        raise NotARun(
            f"{path} is not a run: it is the SQLite database of another program, and no dynamics.db"
            f" either; found: {_spelled(found)}; expected: {EXPECTED}"
        )
    columns = {name.lower(): name for name in found["dynamics"]}
    known = {name: series for name in columns if (series := series_of(name))}
    if "step" not in columns or not known:
        what = "no step" if "step" not in columns else "no column of an expert"
        raise NotARun(
            f"{path} is not a dynamics.db: its table has {what}; found: {_spelled(found)};"
            f" expected: {EXPECTED}"
        )
    extra = [name for name in columns if name not in known and name != "step"]
    if extra:
        warn(
            f"{path}: not in the table of the source, kept under their own names:"
            f" {some(extra, SHOWN_COLUMNS)}"
        )
    others = [name for name in found if name != "dynamics"]
    if others:
        warn(f"{path}: other tables in it are not read: {some(others, SHOWN_COLUMNS)}")
    return {columns["step"]: "step"} | {
        columns[name]: known.get(name, columns[name]) for name in (*known, *extra)
    }


def _rows(
    db: sqlite3.Connection, path: Path, columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    chosen = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    names, seen = list(columns.items())[1:], set()
    for step, *cells in db.execute(f"SELECT {chosen} FROM dynamics ORDER BY 1"):
        number = _step(step, path)
        if number in seen:
            raise UsageError(f"{path}: step {number} is there twice; a step is one row")
        seen.add(number)
        values = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}
        for (column, series), cell in values.items():
            if isinstance(cell, str | bytes) and series != column:
                raise UsageError(
                    f"{path}, step {number}: {column} holds {cell!r:.60} where a number belongs"
                )
        yield number, {series: cell for (_, series), cell in values.items()}


def _step(step: Any, path: Path) -> int:
    if not isinstance(step, int | float) or step != step // 1:
        raise UsageError(f"{path}: step must be a whole number, not {step!r:.60}")
    if step < 0:
        raise UsageError(f"{path}: step {int(step)} is negative; steps count from 0")
    return int(step)


def _schema(db: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table and view, in order."""
    listed = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE"
        " 'sqlite\\_%' ESCAPE '\\'"
    )
    names = [name for (name,) in db.execute(listed)]
    columns = "SELECT name FROM pragma_table_info(?)"
    return {name: [column for (column,) in db.execute(columns, [name])] for name in names}


def _spelled(schema: Mapping[str, list[str]]) -> str:
    if not schema:
        return "no table"
    tables = (f"table {name} ({some(columns, SHOWN_COLUMNS)})" for name, columns in schema.items())
    return some(tables, SHOWN_TABLES)
