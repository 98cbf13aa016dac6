"""How fast a run is kept and read, beside what people write when they have no store.

    python benchmarks/store.py

Beside the writer, on the same rows: JSON lines flushed row by row, and one SQLite transaction a row.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

WIDTH = 50
ROWS = 40_000
ROWS_PER_FLUSH = 2_000
SPACED_ROWS = 2_000
SPACING_SECONDS = 0.0005
PLAIN_SQLITE_ROWS = 400


def rows(count: int, first: int = 0) -> list[Row]:
    """Rows of WIDTH values each, made beforehand so that making them is not timed."""
    names = [f"grad/layer.{index}/norm/raw" for index in range(WIDTH)]
    return [
        Row(step=step, wall_time=float(step), values={name: step + place / WIDTH for place, name in enumerate(names)})
        for step in range(first, first + count)
    ]


def through_writer(folder: Path, count: int) -> float:
    """Seconds from the first row put to the run closed, the training thread always putting."""
    spent = 0.0
    with Writer(folder) as writer:
        for first in range(0, count, ROWS_PER_FLUSH):
            batch = rows(ROWS_PER_FLUSH, first)
            start = time.perf_counter()
            for row in batch:
                writer.put(row)
            writer.flush()
            spent += time.perf_counter() - start
        start = time.perf_counter()
    assert not writer.dropped
    return spent + time.perf_counter() - start


def through_json_lines(folder: Path, count: int) -> tuple[float, float]:
    """Seconds in all, and the median seconds of one row."""
    with (folder / "rows.jsonl").open("w") as file:

        def append(row: Row) -> None:
            file.write(json.dumps({"step": row.step, "wall_time": row.wall_time, **row.values}) + "\n")
            file.flush()

        costs = _costs(append, rows(count))
    return sum(costs), sorted(costs)[count // 2]


def through_plain_sqlite(folder: Path, count: int) -> tuple[float, float]:
    """Seconds in all, and the median seconds of one row, when every value is an INSERT and every row a commit."""
    db = sqlite3.connect(folder / "plain.db")
    db.execute("CREATE TABLE points (name TEXT, step INTEGER, value REAL, PRIMARY KEY (name, step))")

    def insert(row: Row) -> None:
        with db:
            db.executemany("INSERT INTO points VALUES (?, ?, ?)", [(n, row.step, v) for n, v in row.values.items()])

    costs = _costs(insert, rows(count))
    db.close()
    return sum(costs), sorted(costs)[count // 2]


def training_thread(folder: Path, count: int) -> list[float]:
    """Seconds of each `put`, sorted, with a little work between two of them as in a training."""
    costs = []
    with Writer(folder) as writer:
        for row in rows(count):
            start = time.perf_counter()
            writer.put(row)
            costs.append(time.perf_counter() - start)
            time.sleep(SPACING_SECONDS)
    assert not writer.dropped
    return sorted(costs)


def reading(folder: Path) -> float:
    """Seconds of `summaries()`, the best of three."""
    with load(folder) as run:
        return min(_seconds(run.summaries) for _ in range(3))


def main() -> None:
    """Measure all of it in a temporary folder and print one line each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = ROWS * WIDTH / through_writer(folder / "ours", ROWS)
        json_seconds, json_row = through_json_lines(folder, ROWS // 4)
        plain_seconds, plain_row = through_plain_sqlite(folder, PLAIN_SQLITE_ROWS)
        jsonl, plain = ROWS // 4 * WIDTH / json_seconds, PLAIN_SQLITE_ROWS * WIDTH / plain_seconds
        costs = training_thread(folder / "spaced", SPACED_ROWS)
        median, p99 = costs[len(costs) // 2], costs[len(costs) * 99 // 100]
        million = folder / "million"
        through_writer(million, 1_000_000 // WIDTH)
        summaries = reading(million)
    print(f"sustained, {ROWS * WIDTH:,} points in rows of {WIDTH}")
    print(f"  writer               {ours:>12,.0f} points/s")
    print(f"  JSON lines, flushed  {jsonl:>12,.0f} points/s   writer {ours / jsonl:.2f} x")
    print(f"  SQLite, row commits  {plain:>12,.0f} points/s   writer {ours / plain:.2f} x")
    print(f"on the training thread, a row of {WIDTH} values")
    print(f"  writer.put           {median * 1e6:>12.1f} µs median, {p99 * 1e6:.1f} µs 99th percentile")
    print(f"  JSON lines, flushed  {json_row * 1e6:>12.1f} µs median   {json_row / median:.0f} x as much")
    print(f"  SQLite, row commits  {plain_row * 1e6:>12.1f} µs median   {plain_row / median:.0f} x as much")
    print(f"summaries() of 1,000,000 points: {summaries:.3f} s")


def _costs(keep: Callable[[Row], None], batch: list[Row]) -> list[float]:
    return [_seconds(lambda row=row: keep(row)) for row in batch]  # type: ignore[misc]


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
