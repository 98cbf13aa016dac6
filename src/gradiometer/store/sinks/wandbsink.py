"""Weights & Biases: a run of our own, or rows in the run that the user's loop has open.

W&B gives every row a step that must grow, and that counter belongs to the user. Our rows carry
their step as `gradiometer/step`, and W&B is told to draw our series over it. In the user's run rows
of our own move the counter on:

- where the user's loop lets W&B count, that harms nobody, and every row of ours is kept;
- where it says `step=` itself, W&B would throw its later rows away. There ours travel in the user's
  rows, the newest step
  each time, and the counter is left alone; how many of ours found no room is said at the end.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gradiometer.errors import UsageError
from gradiometer.records import Event, Finding, Row
from gradiometer.store.sinks.sink import (
    STEP,
    Backend,
    Note,
    Sent,
    Sink,
    Start,
    Steps,
    event_text,
    finding_text,
    module,
    place_of_row,
    table_cells,
)

__all__ = ["WandbBackend", "WandbSink", "table_of"]

HELD_ROWS = 10_000
"""Rows that wait until the user's loop has logged once and shown who counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbSink(Sink):
    """A W&B run: yours if one is open when the first step is measured, otherwise a new one.

    `attach=False` always creates a new one. `mode` is W&B's own: online, offline, disabled.
    `logged` sets whether values given to `meter.log` are sent too; by default only into a new run.
    `init` is passed to `wandb.init`, such as `{"entity": "team", "group": "sweep-3", "dir":
    "/scratch"}`.
    """

    name: ClassVar[str] = "wandb"
    project: str | None = None
    run_name: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None
    attach: bool = True
    logged: bool | None = None
    init: Mapping[str, Any] = field(default_factory=dict)

    def check(self, start: Start) -> None:
        """Raise without W&B."""
        module("wandb", "the sink wandb")
        if self.mode not in (None, "online", "offline", "disabled"):
            raise UsageError(
                f"mode of the sink wandb is online, offline or disabled; found {self.mode!r}"
            )

    def users_run(self) -> Any:
        """The run that `wandb.init` opened."""
        return module("wandb", "the sink wandb").run if self.attach else None

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """Attach, or begin a run of ours that leaves `wandb.run` and the terminal alone."""
        if users_run is not None:
            return WandbBackend(users_run, owned=False, logged=bool(self.logged), note=note)
        wandb = module("wandb", "the sink wandb")
        given = {
            "project": self.project or os.environ.get("WANDB_PROJECT") or "gradiometer",
            "name": self.run_name or start.name,
            "config": start.config,
            "mode": self.mode,
            "reinit": "create_new",
            **self.init,
        }
        mode = given["mode"] or os.environ.get("WANDB_MODE") or "online"
        if mode == "online" and not wandb.login(prompt=False):
            raise UsageError(
                'W&B has no API key: `wandb login` asks for one, sinks.wandb(mode="offline") needs'
                " none"
            )
        given["settings"] = wandb.Settings(console="off", **dict(given.pop("settings", {})))
        return WandbBackend(
            wandb.init(**given), owned=True, logged=self.logged is not False, note=note
        )


class WandbBackend(Backend):
    """An open W&B run."""

    def __init__(self, run: Any, *, owned: bool, logged: bool, note: Note) -> None:
        self._run, self._owned, self._note = run, owned, note
        self.takes_logged = logged
        self._steps = Steps()
        self._defined: set[str] = set()
        self._failed = False
        self._waiting: deque[dict[str, Any]] = deque()
        self._began_at = None if owned else _count(run)
        self._travelled_at: int | None = None
        self._without_room = 0
        run.define_metric(STEP, hidden=True)

    @property
    def held(self) -> int:
        """The newest step, and what waits for a row of the user's."""
        return self._steps.held + len(self._waiting)

    def write(self, records: Sequence[Sent]) -> None:
        """Send the steps that are complete, and everything else at once."""
        events = (record for record in records if isinstance(record, Event))
        self._failed |= any(event.kind == "exception" for event in events)
        rows = self._steps.take(record for record in records if isinstance(record, Row))
        self._waiting += [_payload(row) for row in rows]
        self._waiting += [_other(record) for record in records if not isinstance(record, Row)]
        self._send()

    def flush(self) -> None:
        """Send the newest step too."""
        self._waiting += [_payload(row) for row in self._steps.rest()]
        self._send()

    def close(self) -> None:
        """Send what is left; a run of ours is finished, the user's goes on."""
        self._waiting += [_payload(row) for row in self._steps.rest()]
        if self._user_counts():
            self._travel()
            self._without_room += len(self._waiting)
        else:
            self._commit()
        if self._without_room:
            self._note(
                "wandb: your loop sets step= itself, so Gradiometer's rows are added to yours, and"
                f" {self._without_room} of them were not sent; the run has all of them. A separate"
                " W&B run would too: sinks.wandb(attach=False)"
            )
        if self._owned:
            self._run.finish(exit_code=int(self._failed))

    def _send(self) -> None:
        if self._owned or self._user_lets_count():
            self._commit()
        elif self._user_counts():
            self._travel()
        else:
            while len(self._waiting) > HELD_ROWS:
                self._waiting.popleft()
                self._without_room += 1

    def _user_counts(self) -> bool:
        """Whether the user's loop says `step=`: W&B notes that by itself."""
        if self._owned:
            return False
        telemetry = getattr(self._run, "_telemetry_obj", None)
        return True if telemetry is None else bool(telemetry.feature.set_step_log)

    def _user_lets_count(self) -> bool:
        return not self._user_counts() and _count(self._run) != self._began_at

    def _commit(self) -> None:
        """Every payload in a row of its own."""
        while self._waiting:
            payload = self._waiting.popleft()
            self._define(payload)
            self._run.log(payload)
        if not self._owned:
            self._began_at = None  # from here on the counter has moved, whoever moved it

    def _travel(self) -> None:
        """Put the newest step into the row the user is about to finish, once for each such row."""
        if not self._waiting or _count(self._run) == self._travelled_at:
            return
        newest = max(payload[STEP] for payload in self._waiting)
        fitting = [payload for payload in self._waiting if payload[STEP] == newest]
        self._without_room += len(self._waiting) - len(fitting)
        self._waiting.clear()
        joined = {name: value for payload in fitting for name, value in payload.items()}
        self._define(joined)
        self._run.log(joined, commit=False)
        # Asked afterwards: the user may have gone on meanwhile.
        self._travelled_at = _count(self._run)

    def _define(self, payload: Mapping[str, Any]) -> None:
        for name in payload.keys() - self._defined - {STEP}:
            self._run.define_metric(name.replace(".", "\\."), step_metric=STEP)
            self._defined.add(name)


def table_of(content: Any) -> Any:
    """A table of W&B."""
    columns, data = table_cells(content)
    wandb = module("wandb", "a table of W&B")
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _payload(row: Row) -> dict[str, Any]:
    return {STEP: row.step, **place_of_row(row), **row.values}


def _other(record: Sent) -> dict[str, Any]:
    if isinstance(record, Event):
        return {STEP: record.step, "gradiometer/event": event_text(record)}
    if isinstance(record, Finding):
        return {STEP: record.since_step or 0, "gradiometer/finding": finding_text(record)}
    assert not isinstance(record, Row)
    return {STEP: record.step, record.name: table_of(record.content)}


def _count(run: Any) -> int:
    return int(run.step)
