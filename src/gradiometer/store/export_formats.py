"""The formats a whole run can be written in: csv, parquet, jsonl, tensorboard, wandb; whole or not at all.

A million values need no more memory than a thousand: a run is walked through in chunks. Recorded NaNs stay NaN and what is
missing stays missing in all of them.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gradiometer.errors import UnknownName
from gradiometer.store.export_walk import (
    COORDINATES,
    Chunk,
    Progress,
    Tally,
    check_file,
    check_folder,
    column_names,
    tables_by_step,
    walk,
    whole_file,
    whole_folder,
)
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run
from gradiometer.store.sinks.jsonlsink import line_of, object_of
from gradiometer.store.sinks.sink import module
from gradiometer.store.sinks.tensorboardsink import SUFFIX, EventFile, TensorboardBackend
from gradiometer.store.strictjson import to_json

__all__ = ["FORMATS", "Format", "Whole", "export_run"]

Format = Literal["csv", "jsonl", "parquet", "tensorboard", "wandb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
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
    to: Format,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Whole:
    """Write a run, or a log of another tool, in a format of other tools."""
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    write, holds = FORMATS[to]
    tally, notes = Tally(), list[str]()
    with run.still():
        write(run, Path(path), overwrite, Work(tally=tally, progress=progress, note=notes.append))
        left_out = _left_out(run, holds)
        series = len(run.names())
    return Whole(
        file=Path(path), series=series, steps=tally.steps, values=tally.values, nans=tally.nans, left_out=left_out,
        notes=tuple(notes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every format needs while it writes."""

    tally: Tally
    progress: Progress | None
    note: Callable[[str], None]

    def chunks(self, run: Run | Log) -> Iterator[Chunk]:
        """The run, chunk by chunk."""
        return walk(run, self.tally, self.progress)


def _csv(run: Run | Log, path: Path, overwrite: bool, work: Work) -> None:
    """A row a step and a column a series: empty where nothing was measured, `NaN` and `Infinity` in words."""
    check_file(path, overwrite=overwrite, example="run.csv")
    names = column_names(run.names())
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COORDINATES, *names.values()])
        place_of = {name: place for place, name in enumerate(names, len(COORDINATES))}
        for chunk in work.chunks(run):
            cells = [[""] * (len(COORDINATES) + len(names)) for _ in chunk.steps]
            for place, name in enumerate(COORDINATES):
                for row, value in zip(cells, chunk.where[name].tolist(), strict=True):
                    row[place] = _coordinate(name, value)
            for name, (places, numbers) in chunk.columns.items():
                for at, number in zip(places.tolist(), numbers.tolist(), strict=True):
                    cells[at][place_of[name]] = _number(number)
            writer.writerows(cells)


def _parquet(run: Run | Log, path: Path, overwrite: bool, work: Work) -> None:
    """A row a step and a column a series: null where nothing was measured, NaN where a NaN was; the facts as metadata."""
    check_file(path, overwrite=overwrite, example="run.parquet")
    pyarrow, parquet = (module(name, "a Parquet file", extra="parquet") for name in ("pyarrow", "pyarrow.parquet"))
    names = column_names(run.names())
    where = [("step", pyarrow.int64()), ("wall_time", pyarrow.float64())]
    where += [(name, pyarrow.int64()) for name in COORDINATES[2:]]
    schema = pyarrow.schema([*where, *((column, pyarrow.float64()) for column in names.values())])
    schema = schema.with_metadata({"gradiometer": to_json(run.facts)})
    with whole_file(path) as partial, parquet.ParquetWriter(partial, schema) as writer:
        for chunk in work.chunks(run):
            arrays = [_nullable(pyarrow, chunk.where[name], kind) for name, kind in where]
            arrays += [_sparse(pyarrow, len(chunk.steps), chunk.columns.get(name)) for name in names]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _jsonl(run: Run | Log, path: Path, overwrite: bool, work: Work) -> None:
    """An object a step, then one for each table, event and finding: what the sink of that name writes."""
    check_file(path, overwrite=overwrite, example="run.jsonl")
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for chunk in work.chunks(run):
            file.writelines(f"{to_json(_known(object_of(row)))}\n" for row in chunk.rows())
        for name in run.table_names():
            file.writelines(line_of(table) for table in run.tables(name))
        file.writelines(line_of(event) for event in run.events())
        file.writelines(line_of(finding) for finding in run.findings())


def _tensorboard(run: Run | Log, path: Path, overwrite: bool, work: Work) -> None:
    """A folder with one event file: what the sink of that name writes."""
    check_folder(path, overwrite=overwrite, ours=lambda entry: entry.name.endswith(SUFFIX))
    with whole_folder(path) as partial:
        backend = TensorboardBackend(EventFile(partial, note=work.note), logged=True)
        try:
            for chunk in work.chunks(run):
                backend.write(list(chunk.rows()))
            for name in run.table_names():
                backend.write(run.tables(name))
            backend.write([*run.events(), *run.findings()])
        finally:
            backend.close()


def _wandb(run: Run | Log, path: Path, overwrite: bool, work: Work) -> None:
    """The folder of an offline W&B run, its steps those of the run."""
    from gradiometer.store.export_wandb import is_part_of_a_run, offline_run

    check_folder(path, overwrite=overwrite, ours=is_part_of_a_run)
    with whole_folder(path) as partial, offline_run(run, partial) as log:
        tables = tables_by_step(run)
        for chunk in work.chunks(run):
            for row in chunk.rows():
                log(row, tables.pop(row.step, []))
        for step in sorted(tables):
            work.note(f"W&B takes steps in order only: the tables of step {step}, which has no row, are left out")


FORMATS: dict[str, tuple[Callable[[Run | Log, Path, bool, Work], None], frozenset[str]]] = {
    "csv": (_csv, frozenset()),
    "jsonl": (_jsonl, frozenset({"tables", "events", "findings"})),
    "parquet": (_parquet, frozenset()),
    "tensorboard": (_tensorboard, frozenset({"tables", "events", "findings"})),
    "wandb": (_wandb, frozenset({"tables"})),
}
"""Each format with what it holds besides numbers."""


def _left_out(run: Run | Log, holds: frozenset[str]) -> tuple[str, ...]:
    there = {
        "tables": sum(len(run.tables(name)) for name in run.table_names()) if "tables" not in holds else 0,
        "sketches and histograms": sum(len(run.vector_steps(name)) for name in run.vector_names()),
        "events": len(run.events()),
        "findings": len(run.findings()),
    }
    return tuple(f"{count} {kind}" for kind, count in there.items() if count and kind not in holds)


def _known(content: dict[str, Any]) -> dict[str, Any]:
    """Without a time that nobody knows."""
    return {name: value for name, value in content.items() if name != "wall_time" or not math.isnan(value)}


def _coordinate(name: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return repr(value) if name == "wall_time" else str(int(value))


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


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
