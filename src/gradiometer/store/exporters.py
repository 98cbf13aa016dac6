"""Write what a run holds into the files of other tools, whole or not at all.

`export_run` writes all of it as csv, jsonl, parquet, tensorboard or wandb; `export_dynamics` writes
its experts as a `dynamics.db`. A million values need no more memory than a thousand: a run is
read in chunks. Recorded NaNs stay NaN and what is missing stays missing, where the format knows the
difference.
"""

from __future__ import annotations

import csv
import math
import os
import shutil
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gradiometer.errors import GradiometerWarning, RunDamaged, RunExists, UnknownName, UsageError
from gradiometer.records import Row, Table
from gradiometer.store.database import APPLICATION_ID, DATABASE_NAME, SIDE_FILES, owner
from gradiometer.store.dynamics import MOST_COLUMNS, columns_of, experts_of, fitting
from gradiometer.store.formats.wandb import read_records
from gradiometer.store.logs import Log
from gradiometer.store.reader import Floats, Ints, Run
from gradiometer.store.sinks.jsonlsink import COORDINATES, line_of, object_of
from gradiometer.store.sinks.sink import module, place_of_row
from gradiometer.store.sinks.tensorboardsink import SUFFIX, EventFile, TensorboardBackend
from gradiometer.store.sinks.wandbsink import table_of
from gradiometer.store.strictjson import spoken, to_json

__all__ = [
    "FORMATS",
    "ExportFormat",
    "ExportedExperts",
    "ExportedRun",
    "column_names",
    "export_dynamics",
    "export_run",
]

ExportFormat = Literal["csv", "jsonl", "parquet", "tensorboard", "wandb"]
Progress = Callable[[int, int], None]
CELLS_AT_ONCE = 500_000
EXPERT_CELLS_AT_ONCE = 200_000
WANDB_PARTS = ("files", "logs", "tmp")
HISTORY, EXIT = 2, 18
"""Fields of a record: a row, and the end, which comes after all rows."""
END_SECONDS = 60.0
WANDB_QUIET = {
    "console": "off",
    "silent": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "disable_git": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """What an export of a whole run wrote."""

    file: Path
    """The file, or the folder of event files or of an offline W&B run."""
    series: int
    steps: int
    values: int
    """Recorded NaNs among them."""
    nans: int
    left_out: tuple[str, ...]
    """What the format cannot hold, such as `3 tables`."""
    notes: tuple[str, ...] = ()
    """What the format holds in another form."""


def export_run(
    run: Run | Log,
    path: str | os.PathLike[str],
    *,
    to: ExportFormat,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportedRun:
    """Write a run, or a log of another tool, in a format of other tools."""
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    write, holds = FORMATS[to]
    with run.still():
        work = ExportWork(run, progress)
        write(work, Path(path), overwrite)
        return ExportedRun(
            file=Path(path),
            series=len(run.names()),
            steps=work.steps,
            values=work.values,
            nans=work.nans,
            left_out=_left_out(run, holds),
            notes=tuple(work.notes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Neighbouring steps: where they lie, and for each series its places among them and values."""

    where: dict[str, Floats | Ints]
    columns: dict[str, tuple[Ints, Floats]]

    @property
    def steps(self) -> Ints:
        """The steps."""
        return self.where["step"]  # type: ignore[return-value]

    def rows(self) -> Iterator[Row]:
        """Step by step."""
        values: list[dict[str, float]] = [{} for _ in self.steps]
        for name, (places, numbers) in self.columns.items():
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
                values[place][name] = number
        lists = {name: column.tolist() for name, column in self.where.items()}
        for place, held in enumerate(values):
            step, wall_time, *others = (lists[name][place] for name in COORDINATES)
            named = zip(COORDINATES[2:], others, strict=True)
            known = {name: int(x) for name, x in named if x == x}
            yield Row(step=step, wall_time=wall_time, values=held, **known)


class ExportWork:
    """A run while it is written: it is read in chunks, and what was read is counted."""

    def __init__(self, run: Run | Log, progress: Progress | None) -> None:
        self.run, self._progress = run, progress
        self.steps = self.values = self.nans = 0
        self.notes: list[str] = []

    def chunks(self) -> Iterator[Chunk]:
        """The whole run, in the order of the steps."""
        names, where = self.run.names(), self.run.steps()
        steps = where["step"]
        height = max(1, CELLS_AT_ONCE // (len(names) + len(COORDINATES)))
        for start in range(0, len(steps), height):
            some = steps[start : start + height]
            columns = {}
            for name in names:
                at, values = self.run.part(name, int(some[0]), int(some[-1]))
                if len(at):
                    columns[name] = (np.searchsorted(some, at), values)
                    self.values += len(values)
                    self.nans += int(np.isnan(values).sum())
            self.steps += len(some)
            here = {name: where[name][start : start + height] for name in COORDINATES}
            yield Chunk(where=here, columns=columns)
            if self._progress is not None:
                self._progress(start + len(some), len(steps))


def _csv(work: ExportWork, path: Path, overwrite: bool) -> None:
    """A row a step, a column a series; empty where nothing was measured, `NaN` as a word."""
    _check_file(path, overwrite=overwrite, example="run.csv")
    names = column_names(work.run.names())
    with _whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COORDINATES, *names.values()])
        place_of = {name: place for place, name in enumerate(names, len(COORDINATES))}
        for chunk in work.chunks():
            cells = [[""] * (len(COORDINATES) + len(names)) for _ in chunk.steps]
            for place, name in enumerate(COORDINATES):
                for row, value in zip(cells, chunk.where[name].tolist(), strict=True):
                    row[place] = _coordinate(name, value)
            for name, (places, numbers) in chunk.columns.items():
                for at, number in zip(places.tolist(), numbers.tolist(), strict=True):
                    cells[at][place_of[name]] = _number(number)
            writer.writerows(cells)


def _parquet(work: ExportWork, path: Path, overwrite: bool) -> None:
    """A row a step, a column a series; null where nothing was measured; the facts as metadata."""
    _check_file(path, overwrite=overwrite, example="run.parquet")
    pyarrow, parquet = (
        module(name, "a Parquet file", extra="parquet") for name in ("pyarrow", "pyarrow.parquet")
    )
    names = column_names(work.run.names())
    where = [("step", pyarrow.int64()), ("wall_time", pyarrow.float64())]
    where += [(name, pyarrow.int64()) for name in COORDINATES[2:]]
    schema = pyarrow.schema([*where, *((column, pyarrow.float64()) for column in names.values())])
    schema = schema.with_metadata({"gradiometer": to_json(work.run.facts)})
    with _whole_file(path) as partial, parquet.ParquetWriter(partial, schema) as writer:
        for chunk in work.chunks():
            arrays = [_nullable(pyarrow, chunk.where[name], kind) for name, kind in where]
            size = len(chunk.steps)
            arrays += [_sparse(pyarrow, size, chunk.columns.get(name)) for name in names]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _jsonl(work: ExportWork, path: Path, overwrite: bool) -> None:
    """What the sink of that name writes: an object a step, then tables, events and findings."""
    _check_file(path, overwrite=overwrite, example="run.jsonl")
    with _whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for chunk in work.chunks():
            file.writelines(f"{to_json(_known(object_of(row)))}\n" for row in chunk.rows())
        for name in work.run.table_names():
            file.writelines(line_of(table) for table in work.run.tables(name))
        file.writelines(line_of(event) for event in work.run.events())
        file.writelines(line_of(finding) for finding in work.run.findings())


def _tensorboard(work: ExportWork, path: Path, overwrite: bool) -> None:
    """A folder with one event file: what the sink of that name writes."""
    _check_folder(path, overwrite=overwrite, ours=lambda entry: entry.name.endswith(SUFFIX))
    with _whole_folder(path) as partial:
        backend = TensorboardBackend(EventFile(partial, note=work.notes.append), logged=True)
        try:
            for chunk in work.chunks():
                backend.write(list(chunk.rows()))
            for name in work.run.table_names():
                backend.write(work.run.tables(name))
            backend.write([*work.run.events(), *work.run.findings()])
        finally:
            backend.close()


def _wandb(work: ExportWork, path: Path, overwrite: bool) -> None:
    """The folder of an offline W&B run, its steps those of the run."""
    _check_folder(path, overwrite=overwrite, ours=_is_part_of_a_wandb_run)
    with _whole_folder(path) as partial, _offline_run(work.run, partial) as log:
        tables = _tables_by_step(work.run)
        for chunk in work.chunks():
            for row in chunk.rows():
                log(row, tables.pop(row.step, []))
        for step in sorted(tables):
            work.notes.append(
                f"W&B takes steps in order only: the tables of step {step}, which has no row, are"
                " left out"
            )


FORMATS: dict[str, tuple[Callable[[ExportWork, Path, bool], None], frozenset[str]]] = {
    "csv": (_csv, frozenset()),
    "jsonl": (_jsonl, frozenset({"tables", "events", "findings"})),
    "parquet": (_parquet, frozenset()),
    "tensorboard": (_tensorboard, frozenset({"tables", "events", "findings"})),
    "wandb": (_wandb, frozenset({"tables"})),
}
"""Each format with what it holds besides numbers."""


def _left_out(run: Run | Log, holds: frozenset[str]) -> tuple[str, ...]:
    there = {
        "tables": (
            sum(len(run.tables(name)) for name in run.table_names()) if "tables" not in holds else 0
        ),
        "sketches and histograms": sum(len(run.vector_steps(name)) for name in run.vector_names()),
        "events": len(run.events()),
        "findings": len(run.findings()),
    }
    return tuple(f"{count} {kind}" for kind, count in there.items() if count and kind not in holds)


def _known(content: dict[str, Any]) -> dict[str, Any]:
    """Without a time that nobody knows."""
    if math.isnan(content["wall_time"]):
        del content["wall_time"]
    return content


def _coordinate(name: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return repr(value) if name == "wall_time" else str(int(value))


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else spoken(value)


def _nullable(pyarrow: Any, column: Any, kind: Any) -> Any:
    unknown = np.isnan(column)
    whole = column if kind == pyarrow.float64() else np.where(unknown, 0, column).astype(np.int64)
    return pyarrow.array(whole, type=kind, mask=unknown)


def _sparse(pyarrow: Any, size: int, found: tuple[Any, Any] | None) -> Any:
    values, missing = np.zeros(size), np.ones(size, dtype=np.bool_)
    if found is not None:
        values[found[0]] = found[1]
        missing[found[0]] = False
    # Not from_pandas: there a NaN would be a null.
    return pyarrow.array(values, type=pyarrow.float64(), mask=missing, from_pandas=False)


def column_names(names: list[str]) -> dict[str, str]:
    """Each series with the name of its column: its own, unless a coordinate is called so."""
    columns = {}
    for name in names:
        column = name
        while column in COORDINATES or (column != name and column in names):
            column += "#2"
        columns[name] = column
    return columns


def _tables_by_step(run: Run | Log) -> dict[int, list[Table]]:
    """The tables of a run by the step they belong to."""
    found: dict[int, list[Table]] = {}
    for name in run.table_names():
        for table in run.tables(name):
            found.setdefault(table.step, []).append(table)
    return found


@contextmanager
def _offline_run(run: Run | Log, folder: Path) -> Iterator[Callable[[Row, Sequence[Table]], None]]:
    """A function that takes rows in the order of steps; at the end the folder is the W&B run's."""
    first = run.first_step
    if first is not None and first < 0:
        raise UsageError(f"{run.path}: step {first} is negative, and W&B counts from 0")
    wandb = module("wandb", "an offline W&B run")
    config = run.facts.get("config")
    with tempfile.TemporaryDirectory(
        prefix="gradiometer-", dir=folder.parent, ignore_cleanup_errors=True
    ) as place:
        made = wandb.init(
            project="gradiometer",
            name=run.name,
            config=dict(config) if isinstance(config, dict) else {},
            dir=place,
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(**WANDB_QUIET),
        )
        rows = 0

        def log(row: Row, tables: Sequence[Table]) -> None:
            nonlocal rows
            made.log(_wandb_payload(row, tables), step=row.step)
            rows += 1

        try:
            yield log
        finally:
            made.finish()
        (written,) = Path(place, "wandb").glob("offline-run-*")
        found = await_wandb(written)
        if found != rows:
            raise UsageError(
                f"W&B wrote {found} of {rows} rows, so nothing is kept; is the disk full?"
            )
        for part in written.iterdir():
            shutil.move(part, folder / part.name)


def await_wandb(folder: Path) -> int:
    """Wait until an offline run is whole and count its rows; `finish()` returns too early."""
    (file,) = folder.glob("*.wandb")
    size, since = -1, time.monotonic()
    while time.monotonic() - since < END_SECONDS:
        if file.stat().st_size != size:  # still growing: have patience anew
            size, since = file.stat().st_size, time.monotonic()
            rows, ended = _wandb_rows(file)
            if ended:
                return rows
        time.sleep(0.05)
    raise UsageError(
        f"W&B did not finish its file within {END_SECONDS:.0f} s, so nothing is kept; is the disk"
        " full?"
    )


def _wandb_rows(file: Path) -> tuple[int, bool]:
    rows, ended = 0, False
    try:
        with warnings.catch_warnings():
            # Half a record at the end is what we wait for.
            warnings.simplefilter("ignore", GradiometerWarning)
            for record in read_records(file):
                rows += HISTORY in record
                ended |= EXIT in record
    except RunDamaged:  # a frame that is being written
        return rows, False
    return rows, ended


def _is_part_of_a_wandb_run(entry: Path) -> bool:
    """Whether it is what W&B puts into the folder of a run."""
    return entry.suffix in (".wandb", ".synced") or entry.name in WANDB_PARTS


def _wandb_payload(row: Row, tables: Sequence[Table]) -> dict[str, Any]:
    when = {"_timestamp": row.wall_time} if math.isfinite(row.wall_time) else {}
    held = {table.name: table_of(table.content) for table in tables}
    return {**place_of_row(row), **when, **row.values, **held}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedExperts:
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
    progress: Progress | None = None,
) -> ExportedExperts:
    """Write the experts of a run as a Prismatic `dynamics.db`, whole or not at all.

    The first 400 experts fit, which is what SQLite's 2,000 columns hold; a warning names the number
    of the others. SQLite keeps a NaN as NULL, so the file does not tell it from a value that is
    missing.
    """
    path = Path(path)
    _check_file(path, overwrite=overwrite, example="dynamics.db")
    with run.still():
        names = set(run.names())
        shown, left_out = fitting(experts_of(names))
        if not shown:
            raise UsageError(_no_experts(run))
        pairs = (pair for expert in shown for pair in columns_of(expert).items())
        columns = dict(pairs)
        there = {column: series for column, series in columns.items() if series in names}
        found = {column: run.series(series) for column, series in there.items()}
    if left_out:
        room = f"the {MOST_COLUMNS} columns that SQLite allows hold {len(shown)}"
        message = f"{run.path}: {len(left_out)} experts are not exported: {room}"
        warnings.warn(message, GradiometerWarning, stacklevel=2)
    steps = np.unique(np.concatenate([at for at, _ in found.values()]))
    if steps[0] < 0:
        raise UsageError(
            f"{run.path}: step {steps[0]} is negative, and a dynamics.db counts from 0"
        )
    try:
        with (
            _whole_file(path) as partial,
            closing(sqlite3.connect(partial, isolation_level=None)) as db,
        ):
            _write_experts(db, columns, found, steps, progress)
    except sqlite3.OperationalError as problem:
        raise UsageError(f"{path} cannot be written ({problem})") from problem
    nans = sum(int(np.isnan(values).sum()) for _, values in found.values())
    values = sum(len(values) for _, values in found.values()) - nans
    return ExportedExperts(
        file=path,
        experts=tuple(shown),
        columns=len(columns),
        steps=len(steps),
        values=values,
        nans=nans,
        left_out=tuple(left_out),
    )


def _write_experts(
    db: sqlite3.Connection,
    columns: dict[str, str],
    found: dict[str, tuple[Ints, Floats]],
    steps: Ints,
    progress: Progress | None,
) -> None:
    listed = ", ".join(["step INTEGER PRIMARY KEY", *(f"{column} REAL" for column in columns)])
    insert = f"INSERT INTO dynamics VALUES ({', '.join('?' * (len(columns) + 1))})"
    db.execute("BEGIN")
    db.execute(f"CREATE TABLE dynamics ({listed})")
    height = max(1, EXPERT_CELLS_AT_ONCE // len(columns))
    for start in range(0, len(steps), height):
        chunk = steps[start : start + height]
        db.executemany(insert, _expert_rows(columns, found, chunk))
        if progress is not None:
            progress(start + len(chunk), len(steps))
    db.execute("COMMIT")


def _expert_rows(
    columns: dict[str, str], found: dict[str, tuple[Ints, Floats]], steps: Ints
) -> Iterator[list[Any]]:
    """The rows of neighbouring steps; NaN where there is nothing, which SQLite keeps as NULL."""
    cells = np.full((len(steps), len(columns)), np.nan)
    for place, column in enumerate(columns):
        if column in found:
            at, values = found[column]
            first = np.searchsorted(at, steps[0])
            last = np.searchsorted(at, steps[-1], side="right")
            cells[np.searchsorted(steps, at[first:last]), place] = values[first:last]
    for step, row in zip(steps.tolist(), cells.tolist(), strict=True):
        yield [step, *row]


def _no_experts(run: Run | Log) -> str:
    beginning = f"{run.path} holds no experts, so there is nothing for a dynamics.db"
    missed = run.events("experts-missing")
    if missed:
        return (
            f"{beginning}: they were found, but no gradient of theirs was measured"
            f" ({missed[0].message})"
        )
    if isinstance(run, Log):
        return f"{beginning}: the log has no series like {columns_of(0)['expert_0_top_norm']}"
    if run.events("experts"):
        return f"{beginning} yet: they were found, but not measured before step {run.newest_step}"
    return (
        f"{beginning}: `watch` found none in the model; name them with gm.watch(..., experts=...)"
    )


def _check_file(path: Path, *, overwrite: bool, example: str) -> None:
    """Raise unless a file can be written there; told before the work, not after."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it, such as {path / example}")
    if path.name == DATABASE_NAME or _is_run(path):
        raise RunExists(
            f"{path} is the place of a run, which is not overwritten: choose another name"
        )
    if path.exists() and not overwrite:
        raise UsageError(
            f"{path} already exists: choose another name, or replace it (--overwrite,"
            " overwrite=True)"
        )


def _check_folder(path: Path, *, overwrite: bool, ours: Callable[[Path], bool]) -> None:
    """Raise unless a folder can be written there; one that holds others' files is not replaced."""
    if path.is_file():
        raise UsageError(f"{path} is a file, and this format is a folder: choose another name")
    if not path.exists() or not any(path.iterdir()):
        return
    if not all(ours(entry) for entry in path.iterdir()):
        raise UsageError(f"{path} holds other files, so it is not replaced: choose another folder")
    if not overwrite:
        raise UsageError(
            f"{path} already exists: choose another name, or replace it (--overwrite,"
            " overwrite=True)"
        )


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """A place to write a file to, which takes its name only when all of it is there."""
    with _made(path.parent), _named(path) as partial:
        try:
            yield partial
            for side in SIDE_FILES:  # a journal left by a crash would be played into the new file
                path.with_name(path.name + side).unlink(missing_ok=True)
            partial.replace(path)
        finally:
            for side in ("", *SIDE_FILES):
                partial.with_name(partial.name + side).unlink(missing_ok=True)


@contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes its name only when all of it is there."""
    with _made(path.parent), _named(path) as partial:
        try:
            partial.mkdir()
            yield partial
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _named(path: Path) -> Iterator[Path]:
    try:
        yield path.with_name(f".{path.name}.{os.getpid()}.partial")
    except OSError as problem:
        raise UsageError(f"{path} cannot be written ({problem})") from problem


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder for the time of the work; removed again if nothing came of it."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"{folder} cannot be made ({problem})") from problem
    try:
        yield
    except BaseException:
        for place in made:
            if place.exists() and not any(place.iterdir()):
                place.rmdir()
        raise


def _is_run(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return owner(file.read(100)) == APPLICATION_ID
