"""How fast a run is kept and read, beside what people write when they have no store.

Rows of 50 values. The alternatives are JSON lines, flushed row by row, and SQLite with every value
an INSERT and every row a commit. A JSON-lines file takes more points a second than we do; it costs
the training thread several times as much a row, and has to be read whole to be asked anything.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.rows import Row as Figure
from benchmarks.rows import Scale, clock, measured
from benchmarks.timing import in_turns, seconds_of
from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

__all__ = ["rows"]

WIDTH = 50
ROWS_PER_FLUSH = 2_000
SPACING_SECONDS = 0.0005


def made(number: int, first: int = 0) -> list[Row]:
    """Rows of WIDTH values each, made beforehand so that making them is not timed."""
    names = [f"grad/layer.{index}/norm/raw" for index in range(WIDTH)]
    return [
        Row(
            step=step,
            wall_time=float(step),
            values={name: step + place / WIDTH for place, name in enumerate(names)},
        )
        for step in range(first, first + number)
    ]


def through_writer(folder: Path, batch: list[Row]) -> None:
    """From the first row put to the run closed, the training thread always putting."""
    with Writer(folder) as writer:
        for first in range(0, len(batch), ROWS_PER_FLUSH):
            for row in batch[first : first + ROWS_PER_FLUSH]:
                writer.put(row)
            writer.flush()
    assert not writer.dropped


def through_json_lines(path: Path, batch: list[Row]) -> list[float]:
    """Seconds of each row."""
    with path.open("w") as file:

        def append(row: Row) -> None:
            file.write(
                json.dumps({"step": row.step, "wall_time": row.wall_time, **row.values}) + "\n"
            )
            file.flush()

        return [seconds_of(lambda row=row: append(row)) for row in batch]  # type: ignore[misc]


def through_plain_sqlite(path: Path, batch: list[Row]) -> list[float]:
    """Seconds of each row."""
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE points (name TEXT, step INTEGER, value REAL, PRIMARY KEY (name, step))"
    )

    def insert(row: Row) -> None:
        with db:
            db.executemany(
                "INSERT INTO points VALUES (?, ?, ?)",
                [(n, row.step, v) for n, v in row.values.items()],
            )

    costs = [seconds_of(lambda row=row: insert(row)) for row in batch]  # type: ignore[misc]
    db.close()
    return costs


def on_training_thread(folder: Path, batch: list[Row]) -> list[float]:
    """Seconds of each `put`, with a little work between two of them as in a training."""
    costs = []
    with Writer(folder) as writer:
        for row in batch:
            costs.append(seconds_of(lambda row=row: writer.put(row)))  # type: ignore[misc]
            time.sleep(SPACING_SECONDS)
    assert not writer.dropped
    return costs


def writing(folder: Path, scale: Scale) -> Iterator[Figure]:
    """Points a second, and what a row costs the thread that has better things to do."""
    many, some, few = made(scale.of(10_000, 500)), made(scale.of(600, 50)), made(scale.of(150, 20))
    costs: dict[str, list[float]] = {"writer": [], "JSON lines": [], "SQLite": []}
    row: dict[str, list[float]] = {"writer": [], "JSON lines": [], "SQLite": []}
    for number in range(scale.rounds()):
        place = folder / str(number)
        place.mkdir()
        costs["writer"].append(
            seconds_of(partial(through_writer, place / "many", many)) / len(many)
        )
        row["writer"].append(float(np.median(on_training_thread(place / "spaced", some))))
        for name, each in (
            ("JSON lines", through_json_lines(place / "rows.jsonl", many)),
            ("SQLite", through_plain_sqlite(place / "plain.db", few)),
        ):
            costs[name].append(float(np.mean(each)))
            row[name].append(float(np.median(each)))
    rate = {name: WIDTH / np.array(taken) for name, taken in costs.items()}
    yield measured(
        "sustained through the writer", rate["writer"], unit="points/s", at_least=200_000
    )
    for name in ("JSON lines", "SQLite"):
        told = f"{name} {np.median(rate[name]):,.0f} points/s"
        yield measured(
            f"points a second, the writer / {name}", rate["writer"] / rate[name], note=told
        )
    put = np.array(row["writer"])
    yield measured("`put` of a row, on the training thread", 1e6 * put, unit="µs", at_most=30)
    for name in ("JSON lines", "SQLite"):
        told = f"{name} {1e6 * np.median(row[name]):,.1f} µs"
        yield measured(
            f"a row on the training thread, {name} / `put`", np.array(row[name]) / put, note=told
        )


def reading(folder: Path, scale: Scale) -> Iterator[Figure]:
    """The summary of a million points, beside reading the JSON lines of the same."""
    batch = made(scale.of(1_000_000, 10_000) // WIDTH)
    through_writer(folder / "read", batch)
    through_json_lines(folder / "read.jsonl", batch)

    def read_lines() -> None:
        with (folder / "read.jsonl").open() as file:
            for line in file:
                json.loads(line)

    with load(folder / "read") as run:
        taken = in_turns(
            {"JSON lines": read_lines, "summaries": run.summaries}, rounds=scale.rounds()
        )
    ratio = taken["JSON lines"] / taken["summaries"]
    name = "a million points, reading JSON lines / `summaries()`"
    yield measured(name, ratio, note=clock(taken, "JSON lines", "summaries"))


def rows(scale: Scale) -> Iterator[Figure]:
    """Writing, then reading."""
    with tempfile.TemporaryDirectory() as name:
        yield from writing(Path(name), scale)
        yield from reading(Path(name), scale)
