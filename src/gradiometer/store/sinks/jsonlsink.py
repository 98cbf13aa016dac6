"""A file of JSON objects, one a step, as `gm.load`, jq and pandas read them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gradiometer.errors import UsageError
from gradiometer.records import Event, Finding, Row
from gradiometer.store.logs import is_table
from gradiometer.store.sinks.sink import AppendedFile, Backend, Note, Sent, Sink, Start, Steps
from gradiometer.store.strictjson import plain, to_json

__all__ = ["COORDINATES", "JsonlSink", "line_of", "object_of"]

COORDINATES = ("step", "wall_time", "env_steps", "rollout", "epoch")
"""Where a row lies; a scalar of the user's with such a name is called `name#2`."""
FILE_NAME = "metrics.jsonl"
STEP_FIRST = re.compile(rb'\{"step": (-?\d+)[,}]')
"""How our lines begin: parsing whole lines makes a resume six times as slow, open to a kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlSink(Sink):
    """Lines of strict JSON: an object a step, and one for each table, event and finding.

    `path` is `metrics.jsonl` in the run's folder by default. `logged=False` leaves out what
    `meter.log` was given.
    """

    name: ClassVar[str] = "jsonl"
    path: str | os.PathLike[str] | None = None
    logged: bool = True

    def check(self, start: Start) -> None:
        """Raise where the file would be mixed with another's."""
        path = self.place("path", start, FILE_NAME)
        if path.is_dir():
            raise UsageError(
                f"the sink jsonl writes a file, and {path} is a folder: name a file in it"
            )
        if start.resume is None and not start.overwrite and path.exists() and path.stat().st_size:
            raise UsageError(
                f"{path} already exists: give the sink another path=, or start afresh with"
                " overwrite=True"
            )

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """The file; what lies beyond the step of a resume is taken out of it."""
        path = self.place("path", start, FILE_NAME)
        path.parent.mkdir(parents=True, exist_ok=True)
        if start.resume is not None and path.exists():
            _cut(path, start.resume)
        return JsonlBackend(AppendedFile(path, afresh=start.resume is None), logged=self.logged)


class JsonlBackend(Backend):
    """The open file."""

    def __init__(self, file: AppendedFile, *, logged: bool) -> None:
        self._file, self.takes_logged = file, logged
        self._steps = Steps()

    @property
    def held(self) -> int:
        """The newest step."""
        return self._steps.held

    def write(self, records: Sequence[Sent]) -> None:
        """Write the steps that are complete, and everything else at once."""
        rows = self._steps.take(record for record in records if isinstance(record, Row))
        others = (record for record in records if not isinstance(record, Row))
        self._file.write("".join(map(line_of, (*rows, *others))).encode())

    def flush(self) -> None:
        """Write the newest step too; what still comes of it gets a line of its own."""
        self._file.write("".join(map(line_of, self._steps.rest())).encode())

    def close(self) -> None:
        """Write what is held and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def object_of(row: Row) -> dict[str, Any]:
    """A row as one object: where it lies, then its values."""
    where = {name: value for name in COORDINATES if (value := getattr(row, name)) is not None}
    return where | {
        f"{name}#2" if name in COORDINATES else name: value for name, value in row.values.items()
    }


def line_of(record: Sent) -> str:
    """A record as a line."""
    return f"{to_json(object_of(record) if isinstance(record, Row) else _other(record))}\n"


def _other(record: Sent) -> dict[str, Any]:
    """A table as readers know it; a `_type` tells them that other numbers are not series."""
    if isinstance(record, Event):
        return {"step": record.step, "gradiometer/event": {"_type": "event", **plain(record)}}
    if isinstance(record, Finding):
        held = {"_type": "finding", **plain(record)}
        return {"step": record.since_step or 0, "gradiometer/finding": held}
    assert not isinstance(record, Row)
    content = plain(record.content)
    held = content if is_table(content) else {"_type": "table", "content": content}
    return {"step": record.step, record.name: held}


def _cut(path: Path, last: int) -> None:
    # Always the same name: the next resume overwrites what a kill left.
    partial = path.with_name(f".{path.name}.partial")
    try:
        with path.open("rb") as old, partial.open("wb") as new:
            new.writelines(line for line in old if line.endswith(b"\n") and _is_before(line, last))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _is_before(line: bytes, last: int) -> bool:
    if begins := STEP_FIRST.match(line):
        return int(begins[1]) <= last
    try:
        return bool(json.loads(line)["step"] <= last)
    except (ValueError, TypeError, KeyError):  # not a line of ours, or half of one
        return False
