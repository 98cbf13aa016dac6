"""A log of another tool becomes a run."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradiometer.errors import NotARun, RunExists, UsageError
from gradiometer.metrics import check_told, names_to_keep, read_names
from gradiometer.records import Event
from gradiometer.store import database
from gradiometer.store.batches import Batches, Facts, Record
from gradiometer.store.locks import WriterLock
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run
from gradiometer.store.strictjson import to_json

__all__ = ["Imported", "check_free", "import_log"]

VALUES_AT_ONCE = 100_000
PARTIAL = ".run.db.partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of a log."""

    run: Path
    """Its folder."""
    format: str
    series: int
    steps: int
    first_step: int | None
    last_step: int | None
    points: int
    tables: int
    unknown: tuple[str, ...]
    """Series that are kept under names the catalogue does not know."""
    told: Mapping[str, str]
    """What the user said that columns mean."""
    guessed: Mapping[str, str]
    """What other columns mean by their words."""
    left_out: tuple[str, ...]
    """Values that are neither numbers nor tables, and are not kept."""
    library: str = ""
    """Whose names the log uses; empty when nobody's we know."""
    step: str = ""
    """What the log calls its steps."""
    x_axis: str = ""
    """What they count: environment steps, optimizer steps, ...; empty when nobody says."""
    replaced: int = 0
    """Values that gave way to another, later one of the same series and step."""
    returns: tuple[tuple[int, int], ...] = ()
    """Where steps go backwards, as (from, to)."""


def import_log(
    log: Run | Log,
    folder: str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
    names: Mapping[str, str] | None = None,
) -> Imported:
    """Make a run of a log, whole or not at all; numbers keep name, step and all digits.

    `names` says what columns mean, `{"mean_r": "reward"}`; the run keeps it, and what was guessed.
    """
    folder = Path(folder)
    if isinstance(log, Run):
        raise UsageError(f"{log.path} is a run already: open it directly, or copy its folder")
    check_free(folder)
    check_told(names or {}, log.names())
    log.facts["names"] = names_to_keep(log.names(), names or {})
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with WriterLock(folder):
            points = _write(log, folder, progress)
    except BaseException as problem:
        with suppress(OSError):  # somebody else found the folder useful meanwhile
            for place in made:
                place.rmdir()
        if isinstance(problem, sqlite3.OperationalError):
            raise UsageError(f"{folder} cannot be written ({problem})") from problem
        raise
    return _account(log, folder, points)


def check_free(folder: Path) -> None:
    """Raise unless a run can be made there; asked before a log is read."""
    if (folder / database.DATABASE_NAME).exists():
        raise RunExists(f"{folder} holds a run already: choose another folder")
    if folder.exists() and not folder.is_dir():
        raise NotARun(f"{folder} is a file, and a run is a folder: choose another name")


def _write(log: Log, folder: Path, progress: Callable[[int, int], None] | None) -> int:
    check_free(folder)  # again, now that nobody else writes
    partial = folder / PARTIAL
    database.remove(partial)  # what a killed import left
    try:
        db = database.open_for_writing(partial)
        try:
            points = _fill(Batches(db), log, progress)
        finally:
            database.finish(db)
        partial.rename(folder / database.DATABASE_NAME)
    finally:
        database.remove(partial)
    return points


def _fill(batches: Batches, log: Log, progress: Callable[[int, int], None] | None) -> int:
    total, points, waiting = len(log.steps()["step"]), 0, 0
    records: list[Record] = [_facts(log), _event(log)]
    records += [table for name in log.table_names() for table in log.tables(name)]
    for done, row in enumerate(log.rows(), 1):
        records.append(row)
        waiting += len(row.values)
        points += len(row.values)
        if waiting >= VALUES_AT_ONCE or done == total:
            batches.write(records)
            records, waiting = [], 0
            if progress is not None:
                progress(done, total)
    batches.write(records)
    return points


def _facts(log: Log) -> Facts:
    known: dict[str, Any] = dict(log.facts)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {"run_id": log.run_id, "log": str(log.path), "name": log.name, "at": now}
    known["imported"] = {**known.get("imported", {}), **origin, "left_out": log.left_out}
    return Facts({key: to_json(value) for key, value in known.items()})


def _event(log: Log) -> Event:
    message = f"imported from {log.path}: {len(log.names())} series"
    if log.left_out:
        message += f"; left out, being neither numbers nor tables: {', '.join(log.left_out)}"
    first = min(log.steps()["step"].tolist(), default=0)
    return Event(step=first, kind="imported", message=message, detail={"left_out": log.left_out})


def _account(log: Log, folder: Path, points: int) -> Imported:
    steps, known = log.steps()["step"].tolist(), log.facts.get("imported", {})
    meant = read_names(log.names(), kept=log.facts["names"])
    return Imported(
        run=folder,
        format=str(known.get("format", "log")),
        library=str(known.get("library", "")),
        step=str(known.get("step", "")),
        x_axis=str(known.get("x_axis", "")),
        replaced=int(known.get("replaced", 0)),
        returns=tuple((int(first), int(back)) for first, back in known.get("returns", ())),
        series=len(log.names()),
        steps=len(steps),
        first_step=steps[0] if steps else None,
        last_step=log.newest_step,
        points=points,
        tables=sum(len(log.tables(name)) for name in log.table_names()),
        unknown=tuple(name for name in log.names() if name not in meant),
        told=log.facts["names"].get("told", {}),
        guessed=log.facts["names"].get("guessed", {}),
        left_out=log.left_out,
    )
