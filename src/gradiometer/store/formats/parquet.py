"""Parquet tables, as W&B and Hugging Face export histories; read where pyarrow is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradiometer.errors import NotARun, UsageError
from gradiometer.store.formats import Reads, log_format
from gradiometer.store.log_rows import Entry, LogRows, why_no_log
from gradiometer.store.logs import Log, short_id
from gradiometer.store.opening import open_bytes
from gradiometer.store.provenance import name_of
from gradiometer.store.step_column import is_step_name

__all__ = ["read_parquet"]

MAGIC = b"PAR1"
ROWS_AT_ONCE = 4096


def _is_parquet(path: Path, start: bytes) -> bool:
    return start.startswith(MAGIC) or path.suffix == ".parquet"


def _logged(folder: Path, files: list[Path]) -> Iterator[Path]:
    """Tables whose names are those of a log: what a model is trained on comes as Parquet too."""
    for path in files:
        if path.suffix != ".parquet":
            continue
        try:
            with _opened(path) as table:
                names = table.schema_arrow.names
        except UsageError:
            continue
        made_up = {name: [0.0, 1.0] for name in names}
        if any(map(is_step_name, names)) and not why_no_log(made_up, 2):
            yield path


@log_format(
    "parquet",
    rank=65,
    title="a Parquet table",
    detect=_is_parquet,
    find=_logged,
    reads=[
        Reads(
            tool="W&B and Hugging Face (exported)",
            file="`.parquet`, with pyarrow installed",
            steps="`_step`, `step` and other usual names; else rows",
            taken="each column of numbers",
        )
    ],
)
def read_parquet(path: Path) -> Log:
    """The log in a Parquet table: a column for each name."""
    rows = LogRows(path, "row")
    with _opened(path) as table:
        rows.take(_entries(table, path))
        count = table.metadata.num_rows
    return rows.log("parquet", short_id(name_of(path), count))


def _entries(table: Any, path: Path) -> Iterator[Entry]:
    number = 0
    with _translated(path):
        for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
            for values in batch.to_pylist():
                number += 1
                yield Entry(f"row {number}", values)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as problem:
        raise UsageError(
            f"{path} is a Parquet table, and reading one needs pyarrow: pip install pyarrow, or"
            " export it as CSV"
        ) from problem
    with open_bytes(path) as file:
        with _translated(path):
            table = ParquetFile(file)
        with table:
            yield table


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """pyarrow's errors as ours; a missing file stays one."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError) as problem:
        if isinstance(problem, FileNotFoundError | PermissionError | UsageError):
            raise
        why = str(problem).partition("\n")[0][:200]
        raise NotARun(f"{path} is no Parquet table that can be read ({why})") from problem
