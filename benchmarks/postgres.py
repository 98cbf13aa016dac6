"""The team's store beside the file of a run: `python -m benchmarks.postgres [URL]`.

Without a URL Debian's server is started in a temporary folder, as the tests do it (without fsync).
CPU seconds are those of this process, in which both writers work; of the server's only the wall
clock tells.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradiometer.dashboard.database_index import DatabaseIndex
from gradiometer.dashboard.run_table import RunTable
from gradiometer.records import Row
from gradiometer.store import sinks
from gradiometer.store.importers import load
from gradiometer.store.postgres import Address, address_of, connect
from gradiometer.store.sinks import Fanout, Start, fanout
from gradiometer.store.writer import Writer

STEPS, SERIES = 2_000, 200
KILLS, ROWS_A_SECOND = 10, 100
KILLED = """
import sys, time
from benchmarks.postgres import ROWS_A_SECOND, SERIES, rows
from gradiometer.store import sinks
from gradiometer.store.sinks import Fanout, Start
target = Fanout(None, [sinks.postgres(url=sys.stdin.readline().strip())], Start(run=None))
began = time.monotonic()
for row in rows(1_000_000, SERIES):
    target.put(row)
    print(row.step, time.time(), flush=True)
    time.sleep(max(0.0, began + row.step / ROWS_A_SECOND - time.monotonic()))
"""
WRITERS, WRITER_STEPS = 50, 100
RUNS = 10_000


@contextmanager
def database() -> Iterator[Address]:
    """The database that was named, or one of a server of our own."""
    if len(sys.argv) > 1:
        found = address_of(sys.argv[1])
        assert found is not None, "give postgresql://USER@HOST/DATABASE"
        yield found
        return
    file = Path(__file__).parents[1] / "tests" / "postgres_server.py"
    spec = importlib.util.spec_from_file_location("postgres_server", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.running() as url:
        found = address_of(url)
        assert found is not None
        yield found


def rows(steps: int, series: int) -> Iterator[Row]:
    """What a meter puts."""
    names = [f"grad/layer.{number}/norm/raw" for number in range(series)]
    for step in range(steps):
        values = {name: step + place / 7 for place, name in enumerate(names)}
        yield Row(step=step, wall_time=float(step), values=values)


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and CPU seconds, and what came of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def keep(target: Any, steps: int = STEPS, series: int = SERIES) -> None:
    """Put all and wait until it is kept."""
    for row in rows(steps, series):
        target.put(row)
    target.close()


def database_run(address: Address, name: str) -> Fanout:
    """A run that only the database keeps."""
    return Fanout(None, [sinks.postgres(url=f"{address.url}/{name}")], Start(run=None))


def writers_at_once(address: Address) -> int:
    """Values that did not arrive of `WRITERS` runs."""
    targets = [database_run(address, f"writer-{number}") for number in range(WRITERS)]
    for row in rows(WRITER_STEPS, SERIES // 10):
        for target in targets:
            target.put(row)
    for target in targets:
        target.flush()
    for target in targets:
        target.close()
    return sum(count for target in targets for count in target.dropped.values())


def lost_by_a_kill(address: Address, name: str) -> float:
    """Seconds before the kill from which on rows are missing."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    print(f"{address.url}/{name}", file=child.stdin, flush=True)
    told, until = [child.stdout.readline()], time.monotonic() + random.uniform(2.0, 4.0)
    while time.monotonic() < until:
        told.append(child.stdout.readline())
    child.kill()
    killed = time.time()
    told += child.stdout.read().splitlines()
    child.wait()
    with load(str(address.of(name).path)) as run:
        kept = set(run.steps()["step"].tolist())
    times = [line.split() for line in told]
    return max((killed - float(at) for step, at in times if int(step) not in kept), default=0.0)


def list_runs(address: Address) -> int:
    """The first page of the dashboard."""
    return len(RunTable(DatabaseIndex(address)).answer().rows)


def main() -> None:
    """Print a table."""
    points = STEPS * SERIES
    fanout.PATIENCE_SECONDS = 600.0  # a training would not wait for the last batch; we count all
    with database() as address, tempfile.TemporaryDirectory() as folder:
        print(f"{points:,} values, {STEPS:,} steps of {SERIES}")
        for name, target in (
            ("run.db", lambda: Writer(Path(folder) / "run")),
            ("postgres", lambda: database_run(address, "one")),
        ):
            wall, cpu, _ = timed(lambda made=target: keep(made()))  # type: ignore[misc]
            print(f"write {name:9} {points / wall:12,.0f} values/s {cpu:8.2f} CPU s")
        for name, place in (("run.db", folder + "/run"), ("postgres", str(address.of("one").path))):
            with load(place) as run:
                wall, cpu, _ = timed(lambda run=run: [run.series(n) for n in run.names()])  # type: ignore[misc]
            print(f"read  {name:9} {points / wall:12,.0f} values/s {cpu:8.2f} CPU s")
        wall, cpu, missing = timed(lambda: writers_at_once(address))
        print(f"{WRITERS} writers at once: {missing} values lost, {wall:.1f} s, {cpu:.2f} CPU s")
        db = connect(address, reading=False)
        db.execute(
            "INSERT INTO runs (name, newest_step, closed)"
            f" SELECT 'listed-' || n, n, true FROM generate_series(1, {RUNS}) AS n"
        )
        db.close()
        for _ in range(3):
            wall, cpu, count = timed(lambda: list_runs(address))
            print(f"{count:,} runs listed: {wall:.2f} s, {cpu:.2f} CPU s of the page's server")
        lost = [lost_by_a_kill(address, f"killed-{number}") for number in range(KILLS)]
        print(
            f"{KILLS} kills at {ROWS_A_SECOND} rows a second of {SERIES}:"
            f" {min(lost):.2f} to {max(lost):.2f} s lost"
        )


if __name__ == "__main__":
    main()
