"""The runs of a PostgreSQL database, as the page knows those of a folder.

One question lists all of them; what it says of a run is its card, so that ten thousand need no
connection each.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gradiometer.dashboard.run_index import (
    STATEMENT_SECONDS,
    Place,
    RunIndex,
    Signature,
    unread_card,
)
from gradiometer.dashboard.shape import RunCard
from gradiometer.store.database import impatient
from gradiometer.store.importers import Log
from gradiometer.store.postgres import Address, PostgresRun, StoredRun, runs_at
from gradiometer.store.reader import Run

__all__ = ["DatabaseIndex"]

FRESH_SECONDS = 0.5
"""However many ask, the list is read once in so many seconds."""


class DatabaseIndex(RunIndex):
    """The runs of a database, or the one that the address names."""

    def __init__(self, address: Address) -> None:
        super().__init__(Path())
        self.root = address.path
        self._address = address
        self._asking = threading.Lock()
        self._listed: dict[str, StoredRun] = {}
        self._listed_at = -math.inf

    def signature(self, id: str) -> Signature:
        """Changes whenever something was written to the run."""
        self._place(id)
        return _signature(self._list().get(id))

    def signatures(self) -> dict[str, Signature]:
        """Of every run that is there."""
        listed = self._list()
        return {id: _signature(listed.get(id)) for id in self.ids()}

    def problem_of(self, path: Path) -> str:
        """None: opening says what is wrong."""
        return ""

    def source(self, path: Path) -> str:
        """With all that the connection needs; only a process of ours is told."""
        run = self._address.run or path.relative_to(self.root).as_posix()
        head, mark, options = self._address.url.partition("?")
        return f"{head}/{run}{mark}{options}"

    def notes_of(self, path: Path) -> str:
        """None: notes are files beside a run."""
        return ""

    @contextmanager
    def open(self, id: str, patience: float = math.inf) -> Iterator[Run | Log]:
        """A run for reading, over a connection of its own."""
        self._place(id)
        with impatient(STATEMENT_SECONDS), PostgresRun(self._address.of(id)) as run:
            yield run

    def _found(self) -> dict[str, Path]:
        return {name: self._address.of(name).path for name in self._list()}

    def _born(self, path: Path) -> int:
        return 0

    def _read_card(self, place: Place, signature: Signature, patience: float) -> RunCard:
        card, stored = unread_card(place, signature), self._list().get(place.id)
        if stored is None:
            return card
        return replace(card, newest_step=stored.newest_step, started=stored.started, kind="run")

    def _list(self) -> dict[str, StoredRun]:
        """What the database says now, or said a moment ago."""
        with self._asking:
            if time.monotonic() - self._listed_at > FRESH_SECONDS:
                with impatient(STATEMENT_SECONDS):
                    runs = runs_at(self._address)
                only = self._address.run
                self._listed = {run.name: run for run in runs if only in ("", run.name)}
                self._listed_at = time.monotonic()
            return self._listed


def _signature(run: StoredRun | None) -> Signature:
    """As of a file and of the log beside it, which is there until the run is closed."""
    if run is None:
        return ()
    step = 0 if run.newest_step is None else run.newest_step + 1
    return (run.changed * 1000, step), (0, 0 if run.closed else 1)
