"""An offline W&B run written after the fact, for `wandb sync`."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradiometer.errors import GradiometerWarning, RunDamaged, UsageError
from gradiometer.records import Row, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run
from gradiometer.store.sinks.sink import module
from gradiometer.store.sinks.wandbsink import table_of
from gradiometer.store.wandb_files import read_records

__all__ = ["await_end", "is_part_of_a_run", "offline_run"]

PARTS = ("files", "logs", "tmp")
HISTORY, EXIT = 2, 18
"""Fields of a record: a row, and the end, which comes after all rows."""
END_SECONDS = 60.0
QUIET = {"console": "off", "silent": True, "x_disable_stats": True, "x_disable_meta": True, "disable_git": True}


@contextmanager
def offline_run(run: Run | Log, folder: Path) -> Iterator[Callable[[Row, Sequence[Table]], None]]:
    """What takes the rows, in the order of their steps; afterwards the folder is that of the W&B run."""
    first = run.first_step
    if first is not None and first < 0:
        raise UsageError(f"{run.path}: step {first} is negative, and W&B counts from 0")
    wandb = module("wandb", "an offline W&B run")
    config = run.facts.get("config")
    with tempfile.TemporaryDirectory(prefix="gradiometer-", dir=folder.parent, ignore_cleanup_errors=True) as place:
        made = wandb.init(
            project="gradiometer",
            name=run.name,
            config=dict(config) if isinstance(config, dict) else {},
            dir=place,
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(**QUIET),
        )
        rows = 0

        def log(row: Row, tables: Sequence[Table]) -> None:
            nonlocal rows
            made.log(_payload(row, tables), step=row.step)
            rows += 1

        try:
            yield log
        finally:
            made.finish()
        (written,) = Path(place, "wandb").glob("offline-run-*")
        found = await_end(written)
        if found != rows:
            raise UsageError(f"W&B wrote {found} of {rows} rows, so nothing is kept; is the disk full?")
        for part in written.iterdir():
            shutil.move(part, folder / part.name)


def await_end(folder: Path) -> int:
    """Wait until an offline run is whole, and count its rows: `finish()` returns while W&B's process still writes."""
    (file,) = folder.glob("*.wandb")
    size, since = -1, time.monotonic()
    while time.monotonic() - since < END_SECONDS:
        if file.stat().st_size != size:  # still growing: have patience anew
            size, since = file.stat().st_size, time.monotonic()
            rows, ended = _counted(file)
            if ended:
                return rows
        time.sleep(0.05)
    raise UsageError(f"W&B did not finish its file within {END_SECONDS:.0f} s, so nothing is kept; is the disk full?")


def _counted(file: Path) -> tuple[int, bool]:
    rows, ended = 0, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradiometerWarning)  # half a record at the end is what we wait for
            for record in read_records(file):
                rows += HISTORY in record
                ended |= EXIT in record
    except RunDamaged:  # a frame that is being written
        return rows, False
    return rows, ended


def is_part_of_a_run(entry: Path) -> bool:
    """Whether it is what W&B puts into the folder of a run."""
    return entry.suffix in (".wandb", ".synced") or entry.name in PARTS


def _payload(row: Row, tables: Sequence[Table]) -> dict[str, Any]:
    where = {f"gradiometer/{name}": getattr(row, name) for name in ("env_steps", "rollout", "epoch")}
    known: dict[str, Any] = {name: value for name, value in where.items() if value is not None}
    if math.isfinite(row.wall_time):
        known["_timestamp"] = row.wall_time
    return {**known, **row.values, **{table.name: table_of(table.content) for table in tables}}
