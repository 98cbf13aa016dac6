"""Trackio, on this machine: rows into its SQLite file, without a server, a network or a browser.

Rows are given to Trackio's own storage and not to its `log`: that would move the step counter of
the user's run, and would turn an error of the disk into a line on the terminal.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from gradiometer.errors import UsageError
from gradiometer.records import Event, Finding, Row, Table
from gradiometer.store.sinks.sink import (
    Backend,
    Note,
    Sent,
    Sink,
    Start,
    Steps,
    finding_text,
    module,
    place_of_row,
    table_cells,
)
from gradiometer.store.strictjson import plain

__all__ = ["TrackioSink"]

LEVELS = {"info": "info", "warn": "warn", "critical": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackioSink(Sink):
    """A Trackio run in `$TRACKIO_DIR` (default `~/.cache/huggingface/trackio`): the user's
    local one, or one of ours.

    `attach=False` always makes one of ours. `logged` says whether what `meter.log` was given is
    sent too: by default only into a new run. Events and findings are Trackio's alerts.
    """

    name: ClassVar[str] = "trackio"
    project: str | None = None
    run_name: str | None = None
    group: str | None = None
    attach: bool = True
    logged: bool | None = None

    def check(self, start: Start) -> None:
        """Raise without Trackio, and where it keeps no SQLite file."""
        module("trackio", "the sink trackio")
        mode = module("trackio.utils", "the sink trackio").get_storage_mode()
        if mode != "sqlite":
            raise UsageError(
                f"the sink trackio writes Trackio's SQLite file, and its storage here is {mode!r}: "
                "put TRACKIO_DIR on a local disk"
            )

    def users_run(self) -> Any:
        """The run that `trackio.init` opened on this thread, unless it logs to a server."""
        current = module("trackio.context_vars", "the sink trackio").current_run
        run = current.get() if self.attach else None
        if run is None or not getattr(run, "_is_local", False):
            return None
        return run.project, run.name, run.id

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """Attach, or begin a run of ours."""
        if users_run is not None:
            project, name, run_id = users_run
            return TrackioBackend(project, name, run_id, config=None, logged=bool(self.logged))
        config = {key: value for key, value in start.config.items() if not key.startswith("_")}
        config |= {"_Username": None, "_Created": _now(), "_Group": self.group}
        return TrackioBackend(
            self.project or os.environ.get("TRACKIO_PROJECT") or "gradiometer",
            self.run_name or start.name,
            uuid.uuid4().hex,
            config=plain(config),
            logged=self.logged is not False,
        )


class TrackioBackend(Backend):
    """A run in Trackio's storage."""

    def __init__(
        self,
        project: str,
        name: str,
        run_id: str,
        *,
        config: Mapping[str, Any] | None,
        logged: bool,
    ) -> None:
        self._storage = module("trackio.sqlite_storage", "the sink trackio").SQLiteStorage
        self._where = {"project": project, "run": name, "run_id": run_id}
        self._config = config
        self.takes_logged = logged
        self._steps = Steps()

    @property
    def held(self) -> int:
        """The newest step."""
        return self._steps.held

    def write(self, records: Sequence[Sent]) -> None:
        """Send the steps that are complete, tables in rows of their own, and the rest as alerts."""
        steps = self._steps.take(record for record in records if isinstance(record, Row))
        rows = [_row(row) for row in steps]
        rows += [self._table(record) for record in records if isinstance(record, Table)]
        self._log(rows)
        self._alert([record for record in records if isinstance(record, Event | Finding)])

    def flush(self) -> None:
        """Send the newest step too."""
        self._log([_row(row) for row in self._steps.rest()])

    def close(self) -> None:
        """Nothing is open between two batches."""
        self.flush()

    def _log(self, rows: list[tuple[int, str, dict[str, Any]]]) -> None:
        if not rows:
            return
        steps, times, metrics = (list(column) for column in zip(*rows, strict=True))
        ids = [uuid.uuid4().hex for _ in rows]
        told = {"metrics_list": metrics, "steps": steps, "timestamps": times, "log_ids": ids}
        self._storage.bulk_log(config=self._config, **told, **self._where)
        self._config = None  # told once

    def _table(self, table: Table) -> tuple[int, str, dict[str, Any]]:
        columns, data = table_cells(table.content)
        rows = module("trackio.table", "the sink trackio").Table(columns=columns, data=data)
        held = rows._to_dict(self._where["project"], self._where["run"], table.step)
        return table.step, _now(), {table.name: held}

    def _alert(self, records: Sequence[Event | Finding]) -> None:
        if not records:
            return
        self._storage.bulk_alert(
            titles=[record.kind if isinstance(record, Event) else record.id for record in records],
            texts=[
                record.message if isinstance(record, Event) else finding_text(record)
                for record in records
            ],
            levels=[
                "info" if isinstance(record, Event) else LEVELS[record.severity]
                for record in records
            ],
            steps=[
                record.step if isinstance(record, Event) else record.since_step
                for record in records
            ],
            timestamps=[_now()] * len(records),
            **self._where,
        )


def _row(row: Row) -> tuple[int, str, dict[str, Any]]:
    values = {name: float(value) for name, value in row.values.items()}
    return row.step, _time(row.wall_time), values | place_of_row(row)


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return _now()


def _now() -> str:
    return datetime.now(UTC).isoformat()
