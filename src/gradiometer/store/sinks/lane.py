"""A sink's own thread: the training hands records over and never waits for them.

A sink that fails or hangs is told of once. What it could not take is dropped and counted; the run's own file has it.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

from gradiometer.errors import GradiometerWarning
from gradiometer.records import Row, Vector
from gradiometer.store.batches import Facts, Record
from gradiometer.store.sinks.sink import Backend, Sent, Sink, Start

__all__ = ["PATIENCE_SECONDS", "Lane"]

SEND_SECONDS = 0.5
BATCH = 50_000  # values
CAPACITY = 500_000  # values: about 50 MB of waiting rows
OTHER_WEIGHT = 50  # a table, an event or a finding, in values
PATIENCE_SECONDS = 10.0
TRIES = 3
"""Batches that may fail in a row before a sink is switched off."""


class Lane:
    """One sink: a bounded queue on one side, its backend on the other."""

    def __init__(self, sink: Sink, start: Start) -> None:
        self.sink = sink
        self._start = start
        self._pid = os.getpid()
        self._pending: deque[tuple[Sent, bool] | threading.Event] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._put_values = self._taken_values = 0  # one counter a thread, so that neither needs a lock
        self._refused = self._lost = self._failures = self._accepted = self._dealt_with = 0
        self._notes: deque[str] = deque()
        self._closed = self._off = self._full = self._stuck = self._looked = self._troubled = False
        self._users_run: Any = None
        self._thread = threading.Thread(target=self._work, name=f"gradiometer-{sink.name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """Records that did not arrive; of a sink that hangs, those it still holds too."""
        return self._refused + self._lost + (self._accepted - self._dealt_with if self._stuck else 0)

    # From here on: the training thread.

    def put(self, item: Record, *, logged: bool = False) -> None:
        """Hand a record over; a few microseconds, and it never waits. `logged`: it is the user's own."""
        if os.getpid() != self._pid or isinstance(item, Vector | Facts):
            return
        self._say()
        if self._closed or self._off:
            self._refused += 1
            return
        if isinstance(item, Row):
            self._look()
        waiting = self._put_values - self._taken_values
        if waiting >= CAPACITY:
            self._refuse()
            return
        self._put_values += _weight(item)
        self._accepted += 1
        self._pending.append((item, logged))
        if waiting >= BATCH:
            self._nudge()

    def ask_to_flush(self) -> threading.Event | None:
        """Begin to flush, so that a sink that hangs takes no time from the others; what will be set when it is done."""
        if os.getpid() != self._pid or self._closed or self._stuck:
            return None
        self._look()
        mark = threading.Event()
        self._pending.append(mark)
        self._nudge()
        return mark

    def await_flush(self, mark: threading.Event, deadline: float) -> None:
        """Return when all that was put before is sent, or the deadline has passed."""
        while not mark.wait(min(0.05, max(0.0, deadline - time.monotonic()))) and self._thread.is_alive():
            if time.monotonic() >= deadline:
                self._stuck = True
                self._note(f"{self.sink.name}: could not be flushed in {PATIENCE_SECONDS:.0f} s; is it there?")
                break
        self._say()

    def ask_to_close(self) -> None:
        """Begin to close, so that several sinks close at the same time."""
        if os.getpid() == self._pid:
            self._look()
            self._closed = True
            self._nudge()

    def close(self, deadline: float | None = None) -> None:
        """Send what is left, within bounds; twice is fine."""
        if os.getpid() != self._pid:
            return
        self.ask_to_close()
        patience = PATIENCE_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        self._thread.join(0.0 if self._stuck else patience)
        atexit.unregister(self.close)
        if self._thread.is_alive() and not self._stuck:
            self._stuck = True
            self._note(
                f"{self.sink.name}: could not be closed in {PATIENCE_SECONDS:.0f} s; the last records may be lost"
            )
        self._say()

    def _look(self) -> None:
        """On this thread, because trackers keep the open run by thread; at the first row, because trainers open it late."""
        if self._looked:
            return
        try:
            self._users_run = self.sink.users_run()
        except Exception as problem:  # a tracker's own fault must not reach the training
            self._fail(problem)
            self._off = True
        self._looked = True  # last: from here on the other thread may open it

    def _refuse(self) -> None:
        self._refused += 1
        if not self._full:
            self._full = True
            self._note(
                f"{self.sink.name} is slower than the training: what does not fit is dropped there; the run has it"
            )
        self._nudge()

    def _nudge(self) -> None:
        if self._wake.empty():
            self._wake.put(None)

    def _say(self) -> None:
        while self._notes:
            warnings.warn(self._notes.popleft(), GradiometerWarning, stacklevel=3)

    def _note(self, message: str) -> None:
        self._notes.append(message)

    # From here on: the sink's thread.

    def _work(self) -> None:
        backend: Backend | None = None
        while True:
            closing = self._closed  # asked before the last look, so that all put before `close` is sent
            while self._pending and self._looked:  # an event before the first row waits for it
                backend = self._send(backend, *self._take())
            if closing:
                break
            self._rest()
        if backend is not None:
            self._attempt(backend, backend.close)

    def _rest(self) -> None:
        try:
            self._wake.get(timeout=SEND_SECONDS)
        except queue.Empty:
            return

    def _take(self) -> tuple[list[tuple[Sent, bool]], list[threading.Event]]:
        records: list[tuple[Sent, bool]] = []
        marks: list[threading.Event] = []
        values = 0
        while self._pending and values < BATCH:
            item = self._pending.popleft()
            if isinstance(item, threading.Event):
                marks.append(item)
            else:
                records.append(item)
                values += _weight(item[0])
        self._taken_values += values
        return records, marks

    def _send(
        self, backend: Backend | None, records: list[tuple[Sent, bool]], marks: list[threading.Event]
    ) -> Backend | None:
        if records and backend is None and not self._off:
            backend = self._open()
        if records and backend is not None and not self._off:
            self._write(backend, records)
        elif records:
            self._lost += len(records)
        if marks and backend is not None and not self._off:
            self._attempt(backend, backend.flush)
        self._dealt_with += len(records)
        for mark in marks:
            mark.set()
        return backend

    def _open(self) -> Backend | None:
        try:
            backend = self.sink.open(self._start, self._users_run, self._note)
        except Exception as problem:
            self._fail(problem)
            self._off = True
            return None
        # Again, after the tracker registered its own: what is registered last runs first, while the tracker still works.
        atexit.unregister(self.close)
        if not self._closed:
            atexit.register(self.close)
        return backend

    def _write(self, backend: Backend, records: list[tuple[Sent, bool]]) -> None:
        wanted = [record for record, logged in records if backend.takes_logged or not logged]
        if wanted:
            self._attempt(backend, lambda: backend.write(wanted), len(wanted))

    def _attempt(self, backend: Backend, call: Callable[[], None], given: int = 0) -> None:
        before = backend.held + given
        try:
            call()
        except Exception as problem:  # the one guarded boundary: whatever it is, the training goes on
            self._lost += before - backend.held
            self._failures += 1
            self._fail(problem)
            self._off = self._failures >= TRIES
        else:
            self._failures = 0 if before > backend.held else self._failures  # a call that sent nothing proves nothing

    def _fail(self, problem: Exception) -> None:
        """Told once, however often it fails."""
        if not self._troubled:
            self._troubled = True
            said = str(problem).strip().partition("\n")[0]
            self._note(
                f"{self.sink.name} cannot be written ({type(problem).__name__}: {said}); training and run go on without it"
            )


def _weight(item: Sent) -> int:
    return len(item.values) if isinstance(item, Row) else OTHER_WEIGHT
