"""The writer with the sinks beside it, each on a thread of its own.

The training hands records over and never waits for them.

A sink that fails or hangs is told of once. What it could not take is dropped and counted; the run's
own file has it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import GradiometerWarning
from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store.batches import Facts, Record
from gradiometer.store.sinks.sink import Backend, Sent, Sink, Start
from gradiometer.store.strictjson import to_json
from gradiometer.store.writer import RecordQueue, Writer

__all__ = ["Fanout"]

SEND_SECONDS = 0.5
BATCH = 50_000  # values
CAPACITY = 500_000  # values: about 50 MB of waiting rows
OTHER_WEIGHT = 50  # a table, an event or a finding, in values
PATIENCE_SECONDS = 10.0
TRIES = 3
"""Batches that may fail in a row before a sink is switched off."""


class SinkThread:
    """One sink: a bounded queue on one side, its backend on the other."""

    def __init__(self, sink: Sink, start: Start) -> None:
        self.sink = sink
        self._start = start
        self._pid = os.getpid()
        self._queue = RecordQueue()
        self._refused = self._lost = self._failures = self._accepted = self._dealt_with = 0
        self._notes: deque[str] = deque()
        self._closed = self._off = self._full = self._stuck = self._looked = self._troubled = False
        self._users_run: Any = None
        name = f"gradiometer-{sink.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """Records that did not arrive; of a sink that hangs, those it still holds too."""
        held = self._accepted - self._dealt_with if self._stuck else 0
        return self._refused + self._lost + held

    # From here on: the training thread.

    def put(self, item: Record, *, logged: bool = False) -> None:
        """Hand a record over in microseconds, never waiting; `logged` ones are the user's own."""
        if os.getpid() != self._pid:
            return
        if isinstance(item, Vector | Facts) and not self.sink.takes_all:
            return
        self._say()
        if self._closed or self._off:
            self._refused += 1
            return
        if isinstance(item, Row):
            self._look()
        waiting = self._queue.waiting
        if waiting >= CAPACITY:
            self._refuse()
            return
        self._accepted += 1
        self._queue.put((item, logged), len(item.values) if isinstance(item, Row) else OTHER_WEIGHT)
        if waiting >= BATCH:
            self._queue.nudge()

    def ask_to_flush(self) -> threading.Event | None:
        """Begin to flush, beside the other sinks; the event is set when it is done."""
        if os.getpid() != self._pid or self._closed or self._stuck:
            return None
        self._look()
        mark = threading.Event()
        self._queue.put(mark)
        self._queue.nudge()
        return mark

    def await_flush(self, mark: threading.Event, deadline: float) -> None:
        """Return when all that was put before is sent, or the deadline has passed."""
        while not mark.wait(min(0.05, max(0.0, deadline - time.monotonic()))):
            if not self._thread.is_alive():
                break
            if time.monotonic() >= deadline:
                self._stuck = True
                self._note(
                    f"{self.sink.name}: could not be flushed in {PATIENCE_SECONDS:.0f} s; is it"
                    " there?"
                )
                break
        self._say()

    def ask_to_close(self) -> None:
        """Begin to close, so that several sinks close at the same time."""
        if os.getpid() == self._pid:
            self._look()
            self._closed = True
            self._queue.nudge()

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
                f"{self.sink.name}: could not be closed in {PATIENCE_SECONDS:.0f} s; the last"
                " records may be lost"
            )
        self._say()

    def _look(self) -> None:
        """On this thread, where trackers keep the open run; late, as trainers open it late."""
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
                f"{self.sink.name} is slower than the training: what does not fit is dropped there;"
                " the run has it"
            )
        self._queue.nudge()

    def _say(self) -> None:
        while self._notes:
            warnings.warn(self._notes.popleft(), GradiometerWarning, stacklevel=3)

    def _note(self, message: str) -> None:
        self._notes.append(message)

    # From here on: the sink's thread.

    def _work(self) -> None:
        backend: Backend | None = None
        while True:
            # Asked before the last look, so that all put before `close` is sent.
            closing = self._closed
            while self._queue and self._looked:  # an event before the first row waits for it
                backend = self._send(backend, self._queue.take(BATCH))
            if closing:
                break
            self._queue.rest(SEND_SECONDS)
        if backend is not None:
            self._attempt(backend, backend.close)

    def _send(
        self, backend: Backend | None, items: list[tuple[Sent, bool] | threading.Event]
    ) -> Backend | None:
        records = [item for item in items if not isinstance(item, threading.Event)]
        marks = [item for item in items if isinstance(item, threading.Event)]
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
        # Again, after the tracker registered its own: what is registered last runs first, while the
        # tracker still works.
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
        except Exception as problem:  # the one guarded boundary: the training goes on
            self._lost += before - backend.held
            self._failures += 1
            self._fail(problem)
            self._off = self._failures >= TRIES
        else:
            if before > backend.held:  # a call that sent nothing proves nothing
                self._failures = 0

    def _fail(self, problem: Exception) -> None:
        """Told once, however often it fails."""
        if not self._troubled:
            self._troubled = True
            said = str(problem).strip().partition("\n")[0]
            self._note(
                f"{self.sink.name} cannot be written ({type(problem).__name__}: {said}); training"
                " and run go on without it"
            )


class Fanout:
    """A writer with sinks beside it; to the meter it looks like a writer."""

    def __init__(self, writer: Writer | None, sinks: Sequence[Sink], start: Start) -> None:
        self._writer = writer
        self._newest_step = 0
        self._closed = False
        self._threads = tuple(SinkThread(sink, start) for sink in sinks)
        self._takes_all = any(sink.takes_all for sink in sinks)

    @property
    def folder(self) -> Path | None:
        """The run's folder; None when no run is kept."""
        return None if self._writer is None else self._writer.folder

    @property
    def dropped(self) -> dict[str, int]:
        """How many records each sink did not get; the second of a kind is called `wandb#2`."""
        counts: dict[str, int] = {}
        for place, thread in enumerate(self._threads):
            before = sum(other.sink.name == thread.sink.name for other in self._threads[:place])
            counts[thread.sink.name + (f"#{before + 1}" if before else "")] = thread.dropped
        return counts

    def put(self, item: Row | Event | Table | Vector | Finding, *, logged: bool = False) -> None:
        """Hand a record to everybody, the run's own file first.

        `logged` says that it is what `meter.log` was given: a tracker that the user's loop feeds
        has it already.
        """
        if isinstance(item, Row):
            self._newest_step = max(self._newest_step, item.step)
        if self._writer is not None:
            self._writer.put(item)
        if isinstance(item, Vector) and self._takes_all:  # its buffer is the next step's too
            item = replace(item, values=np.array(item.values))
        for thread in self._threads:
            thread.put(item, logged=logged)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the run; most sinks were told theirs at the start."""
        if self._writer is not None:
            self._writer.set_facts(facts)
        if self._takes_all:
            told = Facts({str(key): to_json(value) for key, value in facts.items()})
            for thread in self._threads:
                thread.put(told)

    def flush(self) -> None:
        """Return when the run is on disk and the sinks have all, or had their time."""
        if self._writer is not None:
            self._writer.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread, mark in [(thread, thread.ask_to_flush()) for thread in self._threads]:
            if mark is not None:
                thread.await_flush(mark, deadline)

    def close(self) -> None:
        """Close the sinks, all together within ten seconds, then the run; twice is fine."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with ExitStack() as last_first:  # whatever one of them says, the others are closed too
            if self._writer is not None:
                last_first.callback(self._writer.close)
            last_first.callback(self._count)
            for thread in self._threads:
                thread.ask_to_close()
                last_first.callback(thread.close, deadline)

    def _count(self) -> None:
        """What did not arrive is an event of the run."""
        if self._closed:
            return
        self._closed = True
        for name, count in self.dropped.items():
            if count and self._writer is not None:
                message = f"{count} records did not arrive at {name}; they are all here"
                detail = {"sink": name, "records": count}
                step, kind = self._newest_step, "sink-dropped"
                self._writer.put(Event(step=step, kind=kind, message=message, detail=detail))
