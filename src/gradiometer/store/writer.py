"""The writer: one thread that keeps what the training thread hands over, and never holds it up."""

from __future__ import annotations

import atexit
import os
import queue
import sqlite3
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from gradiometer.errors import GradiometerWarning, NotARun, RunExists, UsageError
from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store import database
from gradiometer.store.batches import Batches, Facts, Record, is_step, rewind, sound_records
from gradiometer.store.locks import WriterLock, told_plainly
from gradiometer.store.strictjson import to_json

__all__ = ["RecordQueue", "Writer", "keeps_nothing"]

COMMIT_SECONDS = 0.5
BATCH = 100_000  # values: about a third of a second of writing
CAPACITY = 5 * BATCH  # values: about 50 MB of waiting rows
OTHER_WEIGHT = 50  # a table, an event or a finding, in values
FULL_SECONDS = 0.001
BATCH_SECONDS = 0.25
"""What a batch may take to write: a kill loses it whole."""
LEAST_BATCH = 5_000
BEHIND_SECONDS = 0.6
"""When the oldest record has waited so long, the training waits for the writer: a kill is to lose
a second at most. The writer needs the interpreter, and one that sleeps gives it away."""
PACE_SECONDS = 0.25
"""At most so long for each record: a training that logs more than can be written goes at the
writer's pace."""
STUCK_SECONDS = 3.0
"""A disk that takes so long for one batch is in trouble, and waiting for it helps nobody."""
PATIENCE_SECONDS = 60.0


class RecordQueue:
    """Items on their way from the training thread to another one.

    A deque and not a Queue: nothing to lock on the training thread, and nothing a signal handler
    could lock twice. Each side has a counter of its own, so neither needs a lock for them either.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, int, float]] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._put_values = self._taken_values = 0
        self._taken_at: float | None = None
        self._began = 0.0

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def waiting(self) -> int:
        """Values that were put and not taken."""
        return self._put_values - self._taken_values

    @property
    def taken(self) -> int:
        """Values that were ever taken."""
        return self._taken_values

    def put(self, item: Any, values: int = 0) -> None:
        """Hand an item over that holds so many values."""
        self._put_values += values
        self._pending.append((item, values, time.monotonic()))

    @property
    def age(self) -> float:
        """How long the oldest item waits that is not `done`: what a kill would lose."""
        oldest = self._taken_at
        if oldest is None:
            try:
                oldest = self._pending[0][2]
            except IndexError:  # the other thread took it
                return 0.0
        return time.monotonic() - oldest

    def is_stuck(self) -> bool:
        """Whether what was taken last has been on its way for too long."""
        return self._taken_at is not None and time.monotonic() - self._began > STUCK_SECONDS

    def nudge(self) -> None:
        """Wake the other thread."""
        if self._wake.empty():
            self._wake.put(None)

    def rest(self, seconds: float) -> None:
        """On the other thread: sleep, unless nudged."""
        with suppress(queue.Empty):
            self._wake.get(timeout=seconds)

    def take(self, most: int) -> list[Any]:
        """On the other thread: the next items, of about so many values."""
        items, values = [], 0
        self._began = time.monotonic()
        self._taken_at = self._pending[0][2] if self._pending else None
        while self._pending and values < most:
            item, held, _ = self._pending.popleft()
            items.append(item)
            values += held
        self._taken_values += values
        return items

    def done(self) -> None:
        """On the other thread: what was taken is kept."""
        self._taken_at = None


class Writer:
    """Keeps a run in `<folder>/run.db`. What is put belongs to the writer: do not change it
    afterwards.

    `resume=s` takes an existing run back to step s, `overwrite=True` starts it afresh, `keep=N`
    bounds its vectors.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        facts: Mapping[str, Any] | None = None,
        resume: int | None = None,
        overwrite: bool = False,
        keep: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._pid = os.getpid()
        self._queue = RecordQueue()
        self._refused = self._lost = self._unfit = self._recorded_drops = self._newest_step = 0
        self._trouble: str | None = None
        self._at_once = BATCH
        self._said = self._stopped = self._closed = False
        with told_plainly(self.folder):
            self._lock = _locked(self.folder)
            try:
                db = _open(self.folder, resume=resume, overwrite=overwrite)
                batches = Batches(db, keep=keep)
                self._identity = _identity(self.folder)
            except BaseException:
                self._lock.release()
                raise
        if facts:
            self.set_facts(facts)
        # Handed over, not shared: a forked child then holds no reference through which it could
        # close the connection.
        handover = [batches]
        self._thread = threading.Thread(
            target=self._work, args=(handover,), name="gradiometer-writer", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """How many records were put but not kept."""
        return self._refused + self._lost + self._unfit

    def put(self, item: Row | Event | Table | Vector | Finding) -> None:
        """Hand a record over; costs the training thread a few microseconds."""
        if os.getpid() != self._pid:
            return
        if self._trouble is not None:
            self._say(self._trouble)
        if self._closed:
            self._refused += 1
            self._say(f"{self.folder} is closed: what is put now is not kept")
            return
        if isinstance(item, Vector):  # sketches live in buffers that the next step overwrites
            item = replace(item, values=np.array(item.values))
        waiting = self._queue.waiting
        if waiting >= CAPACITY and not self._room():
            self._refused += 1
            return
        self._queue.put(item, _weight(item))
        if waiting >= BATCH:
            self._queue.nudge()
        if waiting >= LEAST_BATCH and self._queue.age > BEHIND_SECONDS:
            self._let_it_catch_up()

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the run, key by key."""
        if os.getpid() == self._pid and not self._closed:
            self._queue.put(Facts({str(key): to_json(value) for key, value in facts.items()}))

    def flush(self) -> None:
        """Return when all that was put so far is on disk."""
        if os.getpid() != self._pid:
            return
        if not self._closed:
            mark = threading.Event()
            self._queue.put(mark)
            self._queue.nudge()
            self._await(mark)
        if self._trouble is not None:
            self._say(self._trouble)

    def close(self) -> None:
        """Keep what is left and make the run one file; twice is fine."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        self._queue.nudge()
        self._thread.join(PATIENCE_SECONDS)
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._fail(
                f"{self.folder} could not be closed in {PATIENCE_SECONDS:.0f} s; the last records"
                " may be lost"
            )
        if self._trouble is not None:
            self._say(self._trouble)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _let_it_catch_up(self) -> None:
        self._queue.nudge()
        until = time.monotonic() + PACE_SECONDS
        while self._queue.age > BEHIND_SECONDS and not self._queue.is_stuck():
            time.sleep(FULL_SECONDS)
            if time.monotonic() > until:
                break

    def _room(self) -> bool:
        self._queue.nudge()
        time.sleep(FULL_SECONDS)
        return self._queue.waiting < CAPACITY

    def _await(self, mark: threading.Event) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not mark.wait(0.05) and self._thread.is_alive():
            if time.monotonic() > deadline:
                return self._fail(
                    f"{self.folder} could not be flushed in {PATIENCE_SECONDS:.0f} s: is the disk"
                    " there?"
                )

    def _fail(self, trouble: str) -> None:
        if self._trouble is None:
            self._trouble = trouble

    def _say(self, message: str) -> None:
        if not self._said:
            self._said = True
            warnings.warn(message, GradiometerWarning, stacklevel=3)

    # From here on: the writer thread.

    def _work(self, handover: list[Batches]) -> None:
        batches = handover.pop()
        try:
            while True:
                # Asked before the last look, so that all put before `close` is kept.
                closing = self._closed
                while self._queue:
                    self._keep_or_stop(batches)
                if closing:
                    break
                self._queue.rest(COMMIT_SECONDS)
            self._finish(batches)
        finally:
            self._lock.release()

    def _keep_or_stop(self, batches: Batches) -> None:
        """A fault of ours outside of a transaction: told, counted, and the thread goes on to let
        go of what is put; twice, and it ends."""
        try:
            self._keep_next(batches)
        except Exception as error:
            if self._stopped:
                raise
            self._stopped = True
            self._fail(f"{self.folder} is not recorded any more: {type(error).__name__}: {error}")

    def _keep_next(self, batches: Batches) -> None:
        """As many records as can be written in a moment, by what the last ones took."""
        before, began = self._queue.taken, time.monotonic()
        self._keep(batches, self._queue.take(self._at_once))
        self._queue.done()
        values = self._queue.taken - before
        if values >= LEAST_BATCH:
            fitting = values * BATCH_SECONDS / max(time.monotonic() - began, 1e-6)
            self._at_once = round(min(max(fitting, LEAST_BATCH), BATCH))

    def _keep(self, batches: Batches, items: list[Record | threading.Event]) -> None:
        records = [item for item in items if not isinstance(item, threading.Event)]
        if records:
            self._store(batches, records)
        for item in items:
            if isinstance(item, threading.Event):
                item.set()

    def _store(self, batches: Batches, records: list[Record]) -> None:
        if self._stopped:
            self._lost += len(records)
            return
        drops = self._refused + self._lost - self._recorded_drops
        try:
            self._check_still_there()
            steps = (row.step for row in records if isinstance(row, Row))
            self._newest_step = max(self._newest_step, *(s for s in steps if is_step(s)), 0)
            self._write(batches, [*records, *self._drop_event(drops)])
            self._recorded_drops += drops
            database.shorten(batches.db, self.folder / database.DATABASE_NAME)
        except sqlite3.OperationalError as error:
            # A full disk may be emptied: the next batch tries again.
            self._lost += len(records)
            self._fail(
                f"{self.folder} cannot be written ({error}); the training goes on, unrecorded until"
                " it can"
            )
        except Exception as error:  # the one guarded boundary: whatever it is, the training goes on
            self._stopped = True
            self._lost += len(records)
            self._fail(f"{self.folder} is not recorded any more: {type(error).__name__}: {error}")

    def _write(self, batches: Batches, records: list[Record]) -> None:
        """Keep all of them; where one of them cannot be kept, all but that."""
        try:
            batches.write(records)
        except sqlite3.OperationalError:
            raise
        except Exception:
            kept, refused = sound_records(records)
            self._refuse(batches, kept, refused)

    def _refuse(self, batches: Batches, kept: list[Record], refused: list[str]) -> None:
        """Some records, or values of them, are nothing that a file can hold: told once, counted,
        and an event of the run."""
        if not refused:  # names were spelled otherwise, or it is a fault of ours, which raises here
            batches.write(kept)
            return
        message = f"{len(refused)} values or records could not be kept; the first: {refused[0]}"
        detail = {"refused": len(refused), "first": refused[:10]}
        event = Event(step=self._newest_step, kind="refused", message=message, detail=detail)
        batches.write([*kept, event])
        self._unfit += len(refused)
        self._fail(f"{self.folder}: {message}; everything else is kept")

    def _drop_event(self, drops: int) -> list[Record]:
        if not drops:
            return []
        message = f"{drops} records were dropped: more came than the disk could take"
        detail = {"records": drops}
        return [Event(step=self._newest_step, kind="dropped", message=message, detail=detail)]

    def _check_still_there(self) -> None:
        # SQLite goes on writing to a deleted file without a word.
        if _identity(self.folder) != self._identity:
            raise FileNotFoundError(
                f"{database.DATABASE_NAME} was removed, moved or replaced while it was written"
            )
        self._lock.hold()

    def _finish(self, batches: Batches) -> None:
        if self._refused + self._lost > self._recorded_drops:
            self._store(batches, [])
        try:
            if not self._stopped:
                self._check_still_there()
                database.finish(batches.db)
        except Exception as error:
            self._fail(f"{self.folder} could not be closed cleanly: {error}")
        finally:
            batches.db.close()


def _weight(item: Record) -> int:
    if isinstance(item, Row):
        return len(item.values)
    return item.values.size if isinstance(item, Vector) else OTHER_WEIGHT


def _locked(folder: Path) -> WriterLock:
    if folder.exists() and not folder.is_dir():
        raise NotARun(f"{folder} is a file, and a run is a folder: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    return WriterLock(folder)


def keeps_nothing(run: object) -> bool:
    """Whether this, in the place of a run's folder, says to keep none: None, none or null."""
    return run is None or (isinstance(run, str) and run.lower() in ("none", "null"))


def _open(folder: Path, *, resume: int | None, overwrite: bool) -> sqlite3.Connection:
    if resume is not None and overwrite:
        raise UsageError(
            "resume= continues a run and overwrite=True starts it afresh: give one of them"
        )
    path = folder / database.DATABASE_NAME
    if overwrite:
        database.remove(path)
    elif resume is None and path.exists() and path.stat().st_size:
        _refuse_existing(path)
    db = database.open_for_writing(path)
    try:
        if resume is not None:
            _resume(db, resume)
    except BaseException:
        db.close()
        raise
    return db


def _refuse_existing(path: Path) -> None:
    """Looked at read-only: a run that is refused stays the file it was, byte for byte."""
    with closing(database.open_for_reading(path)) as db:
        count, newest = db.execute("SELECT count(*), max(step) FROM steps").fetchone()
    if count:
        raise RunExists(
            f"{path.parent} already holds {count} steps, up to step {newest}: resume={newest} goes"
            " on from there, overwrite=True starts afresh, or choose another folder"
        )


def _resume(db: sqlite3.Connection, step: int) -> None:
    removed = rewind(db, step)
    message = (
        f"resumed at step {step}; removed {removed['steps']} steps and {removed['points']} points"
        " beyond it"
    )
    Batches(db).write([Event(step=step, kind="resumed", message=message, detail=removed)])


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = (folder / database.DATABASE_NAME).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
