"""A run from its first step to its last, a few hundred thousand values at a time, however long it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradiometer.errors import RunExists, UsageError
from gradiometer.records import Row, Table
from gradiometer.store.database import APPLICATION_ID, DATABASE_NAME, SIDE_FILES, owner
from gradiometer.store.logs import Log
from gradiometer.store.readable import Floats, Ints
from gradiometer.store.reader import Run

__all__ = [
    "COORDINATES",
    "Chunk",
    "Progress",
    "Tally",
    "check_file",
    "check_folder",
    "column_names",
    "tables_by_step",
    "walk",
    "whole_file",
    "whole_folder",
]

COORDINATES = ("step", "wall_time", "env_steps", "rollout", "epoch")
"""The first columns of a wide table; a series with such a name is called `name#2`."""
CELLS_AT_ONCE = 500_000
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Neighbouring steps: where they lie, and of each series which of them it has and what it reads there."""

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
            known = {name: int(x) for name, x in zip(COORDINATES[2:], others, strict=True) if x == x}
            yield Row(step=step, wall_time=wall_time, values=held, **known)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was written so far."""

    steps: int = 0
    values: int = 0
    """Recorded NaNs among them."""
    nans: int = 0

    def add(self, chunk: Chunk) -> None:
        """Count a chunk."""
        self.steps += len(chunk.steps)
        self.values += sum(len(numbers) for _, numbers in chunk.columns.values())
        self.nans += sum(int(np.isnan(numbers).sum()) for _, numbers in chunk.columns.values())


def walk(run: Run | Log, tally: Tally, progress: Progress | None = None) -> Iterator[Chunk]:
    """The whole run in chunks, in the order of the steps. Call it within `run.still()`."""
    names = run.names()
    where = run.steps()
    steps = where["step"]
    height = max(1, CELLS_AT_ONCE // (len(names) + len(COORDINATES)))
    for start in range(0, len(steps), height):
        some = steps[start : start + height]
        columns = {}
        for name in names:
            at, values = run.part(name, int(some[0]), int(some[-1]))
            if len(at):
                columns[name] = (np.searchsorted(some, at), values)
        chunk = Chunk(where={name: where[name][start : start + height] for name in COORDINATES}, columns=columns)
        tally.add(chunk)
        yield chunk
        if progress is not None:
            progress(start + len(some), len(steps))


def column_names(names: list[str]) -> dict[str, str]:
    """Each series with the name of its column: its own, unless a column that says where a step lies is called so."""
    columns = {}
    for name in names:
        column = name
        while column in COORDINATES or (column != name and column in names):
            column += "#2"
        columns[name] = column
    return columns


def tables_by_step(run: Run | Log) -> dict[int, list[Table]]:
    """The tables of a run by the step they belong to."""
    found: dict[int, list[Table]] = {}
    for name in run.table_names():
        for table in run.tables(name):
            found.setdefault(table.step, []).append(table)
    return found


def check_file(path: Path, *, overwrite: bool, example: str) -> None:
    """Raise unless a file can be written there; told before the work, not after."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it, such as {path / example}")
    if path.name == DATABASE_NAME or _is_run(path):
        raise RunExists(f"{path} is the place of a run, which is not overwritten: choose another name")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already: choose another name, or replace it (--overwrite, overwrite=True)")


def check_folder(path: Path, *, overwrite: bool, ours: Callable[[Path], bool]) -> None:
    """Raise unless a folder can be written there; one that holds what is not `ours` is never replaced."""
    if path.is_file():
        raise UsageError(f"{path} is a file, and this format is a folder: choose another name")
    if not path.exists() or not any(path.iterdir()):
        return
    if not all(ours(entry) for entry in path.iterdir()):
        raise UsageError(f"{path} holds other files, so it is not replaced: choose another folder")
    if not overwrite:
        raise UsageError(f"{path} is there already: choose another name, or replace it (--overwrite, overwrite=True)")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
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
def whole_folder(path: Path) -> Iterator[Path]:
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
