"""TensorBoard event files, written with TensorBoard's own records and without torch."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gradiometer.errors import UsageError
from gradiometer.records import Event, Finding, Row, Table
from gradiometer.store.logs import is_table
from gradiometer.store.sinks.sink import (
    AppendedFile,
    Backend,
    Note,
    Sent,
    Sink,
    Start,
    event_text,
    finding_text,
    module,
)
from gradiometer.store.strictjson import plain

__all__ = ["EventFile", "TensorboardSink"]

FOLDER_NAME = "tensorboard"
SUFFIX = ".gradiometer"
"""By which we know an event file as ours."""
MOST_TEXT = 100_000
FLOAT32_MAX = float(np.finfo(np.float32).max)
COUNTER = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorboardSink(Sink):
    """Event files in `folder`, by default `tensorboard` in the run's folder.

    TensorBoard keeps 32 bits of a number. Tables, events and findings are texts. `logged=False`
    leaves out what `meter.log` was given.
    """

    name: ClassVar[str] = "tensorboard"
    folder: str | os.PathLike[str] | None = None
    logged: bool = True

    def check(self, start: Start) -> None:
        """Raise without TensorBoard, and where it would show another run's files beside ours."""
        for part in ("summary.writer.record_writer", "compat.proto.event_pb2"):
            module(f"tensorboard.{part}", "the sink tensorboard")
        folder = self.place("folder", start, FOLDER_NAME)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"the sink tensorboard writes into a folder, and {folder} is a file")
        if start.resume is None and not start.overwrite and _ours(folder):
            raise UsageError(
                f"{folder} holds the event files of another run: give the sink another folder=, or"
                " overwrite=True"
            )

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """A new event file; a resume tells TensorBoard to forget what lies beyond it."""
        folder = self.place("folder", start, FOLDER_NAME)
        if start.overwrite:
            for file in _ours(folder):
                file.unlink()
        opened = EventFile(folder, after=start.resume, note=note)
        return TensorboardBackend(opened, logged=self.logged)


class TensorboardBackend(Backend):
    """The open event file."""

    def __init__(self, file: EventFile, *, logged: bool) -> None:
        self._file, self.takes_logged = file, logged

    def write(self, records: Sequence[Sent]) -> None:
        """Scalars as scalars, everything else as text."""
        for record in records:
            if isinstance(record, Row):
                self._file.row(record)
            elif isinstance(record, Table):
                self._file.table(record)
            elif isinstance(record, Event):
                tag = f"gradiometer/events/{record.kind}"
                self._file.text(tag, record.step, event_text(record))
            else:
                tag = f"gradiometer/findings/{record.id}"
                self._file.text(tag, record.since_step or 0, _finding(record))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EventFile:
    """One event file: `row`, `table` and `text` gather, `flush` writes what was gathered, whole."""

    def __init__(self, folder: Path, *, after: int | None = None, note: Note) -> None:
        self._proto = module("tensorboard.compat.proto.event_pb2", "an event file of TensorBoard")
        self._summary = module(
            "tensorboard.compat.proto.summary_pb2", "an event file of TensorBoard"
        )
        self._tensor = module("tensorboard.compat.proto.tensor_pb2", "an event file of TensorBoard")
        writer = module("tensorboard.summary.writer.record_writer", "an event file of TensorBoard")
        self._note, self._noted = note, set[str]()
        self._gathered = io.BytesIO()
        self._records = writer.RecordWriter(self._gathered)
        folder.mkdir(parents=True, exist_ok=True)
        when = time.time()
        host, process = socket.gethostname(), os.getpid()
        name = f"events.out.tfevents.{int(when):010d}.{host}.{process}.{next(COUNTER)}{SUFFIX}"
        self._file = AppendedFile(folder / name)
        self._add(self._proto.Event(wall_time=when, file_version="brain.Event:2"))
        if after is not None:
            begun = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._add(self._proto.Event(wall_time=when, step=after + 1, session_log=begun))
        self.flush()

    def row(self, row: Row) -> None:
        """The numbers of a step, in one record."""
        summary = self._summary.Summary()
        for name, value in row.values.items():
            number = float(value)
            if math.isfinite(number) and abs(number) > FLOAT32_MAX:
                self._once("a number beyond 3.4e38 is an Inf there: it keeps 32 bits")
                number = math.copysign(math.inf, number)
            summary.value.add(tag=name, simple_value=number)
        when = row.wall_time if math.isfinite(row.wall_time) else 0.0
        self._add(self._proto.Event(wall_time=when, step=row.step, summary=summary))

    def table(self, table: Table) -> None:
        """A table as text, unless it is a long one."""
        content = plain(table.content)
        known = is_table(content)
        text = _markdown(content) if known else f"```\n{json.dumps(content, indent=1)}\n```"
        if len(text) > MOST_TEXT:
            self._once(
                f"the table {table.name} is too long for a text there and is left out; the run"
                " has it"
            )
        else:
            self.text(table.name, table.step, text)

    def text(self, tag: str, step: int, text: str) -> None:
        """A text, as the plugin of that name shows it."""
        tensor = self._tensor.TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        metadata = self._summary.SummaryMetadata()
        metadata.plugin_data.plugin_name = "text"
        value = self._summary.Summary.Value(
            tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor
        )
        summary = self._summary.Summary(value=[value])
        self._add(self._proto.Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Write what was gathered, all or nothing."""
        gathered = self._gathered.getvalue()
        self._gathered.seek(0)
        self._gathered.truncate()
        self._file.write(gathered)

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def _once(self, message: str) -> None:
        if message not in self._noted:
            self._noted.add(message)
            self._note(f"tensorboard: {message}")


def _ours(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"events.out.tfevents.*{SUFFIX}"))


def _markdown(content: dict[str, Any]) -> str:
    rows = [content["columns"], ["---"] * len(content["columns"]), *content["data"]]
    lines = (" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join(f"| {line} |" for line in lines)


def _finding(finding: Finding) -> str:
    fixes = (f"- {fix}" for fix in finding.fix)
    lines = [f"**{finding_text(finding)}**", finding.cause, *fixes, finding.confirm]
    return "\n\n".join(line for line in lines if line)
