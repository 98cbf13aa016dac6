"""Write what a run holds into the files of other tools."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.store.dynamics import MOST_COLUMNS, columns_of, experts_of, fitting
from gradiometer.store.export_formats import FORMATS, Format, Whole, export_run
from gradiometer.store.export_walk import check_file, whole_file
from gradiometer.store.logs import Log
from gradiometer.store.readable import Floats, Ints
from gradiometer.store.reader import Run

__all__ = ["FORMATS", "Exported", "Format", "Whole", "export_dynamics", "export_run"]

VALUES_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote."""

    file: Path
    experts: tuple[int, ...]
    columns: int
    """Without `step`."""
    steps: int
    values: int
    """Cells that hold a number."""
    nans: int
    """Recorded NaNs, NULL in the file like a value that is missing."""
    left_out: tuple[int, ...]
    """Experts whose columns SQLite has no room for."""


def export_dynamics(
    run: Run | Log,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the experts of a run as a `dynamics.db` with the table of source 002, whole or not at all.

    The first 400 experts fit, which is what SQLite's 2,000 columns hold; a warning names the number of the others. SQLite
    keeps a NaN as NULL, so the file does not tell it from a value that is missing.
    """
    path = Path(path)
    check_file(path, overwrite=overwrite, example="dynamics.db")
    with run.still():
        names = set(run.names())
        shown, left_out = fitting(experts_of(names))
        if not shown:
            raise UsageError(_no_experts(run))
        columns = {column: series for expert in shown for column, series in columns_of(expert).items()}
        found = {column: run.series(series) for column, series in columns.items() if series in names}
    if left_out:
        room = f"the {MOST_COLUMNS} columns that SQLite allows hold {len(shown)}"
        warnings.warn(f"{run.path}: {len(left_out)} experts are not exported: {room}", GradiometerWarning, stacklevel=2)
    steps = np.unique(np.concatenate([at for at, _ in found.values()]))
    if steps[0] < 0:
        raise UsageError(f"{run.path}: step {steps[0]} is negative, and a dynamics.db counts from 0")
    try:
        with whole_file(path) as partial, closing(sqlite3.connect(partial, isolation_level=None)) as db:
            _write(db, columns, found, steps, progress)
    except sqlite3.OperationalError as problem:
        raise UsageError(f"{path} cannot be written ({problem})") from problem
    nans = sum(int(np.isnan(values).sum()) for _, values in found.values())
    values = sum(len(values) for _, values in found.values()) - nans
    return Exported(
        file=path, experts=tuple(shown), columns=len(columns), steps=len(steps), values=values, nans=nans,
        left_out=tuple(left_out),
    )  # fmt: skip


def _write(
    db: sqlite3.Connection,
    columns: dict[str, str],
    found: dict[str, tuple[Ints, Floats]],
    steps: Ints,
    progress: Callable[[int, int], None] | None,
) -> None:
    listed = ", ".join(["step INTEGER PRIMARY KEY", *(f"{column} REAL" for column in columns)])
    insert = f"INSERT INTO dynamics VALUES ({', '.join('?' * (len(columns) + 1))})"
    db.execute("BEGIN")
    db.execute(f"CREATE TABLE dynamics ({listed})")
    height = max(1, VALUES_AT_ONCE // len(columns))
    for start in range(0, len(steps), height):
        chunk = steps[start : start + height]
        db.executemany(insert, _rows(columns, found, chunk))
        if progress is not None:
            progress(start + len(chunk), len(steps))
    db.execute("COMMIT")


def _rows(columns: dict[str, str], found: dict[str, tuple[Ints, Floats]], steps: Ints) -> Iterator[list[Any]]:
    """The rows of neighbouring steps; NaN where there is nothing, which SQLite keeps as NULL."""
    cells = np.full((len(steps), len(columns)), np.nan)
    for place, column in enumerate(columns):
        if column in found:
            at, values = found[column]
            first, last = np.searchsorted(at, steps[0]), np.searchsorted(at, steps[-1], side="right")
            cells[np.searchsorted(steps, at[first:last]), place] = values[first:last]
    for step, row in zip(steps.tolist(), cells.tolist(), strict=True):
        yield [step, *row]


def _no_experts(run: Run | Log) -> str:
    beginning = f"{run.path} holds no experts, so there is nothing for a dynamics.db"
    missed = run.events("experts-missing")
    if missed:
        return f"{beginning}: they were found, but no gradient of theirs was measured ({missed[0].message})"
    if isinstance(run, Log):
        return f"{beginning}: the log has no series like {columns_of(0)['expert_0_top_norm']}"
    if run.events("experts"):
        return f"{beginning} yet: they were found, but not measured before step {run.newest_step}"
    return f"{beginning}: `watch` found none in the model; name them with gm.watch(..., experts=...)"
