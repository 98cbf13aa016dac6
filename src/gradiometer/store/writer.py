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
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from gradiometer.errors import GradiometerWarning, NotARun, RunExists, UsageError
from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store import database
from gradiometer.store.batches import Batches, Facts, Record
from gradiometer.store.lock import WriterLock
from gradiometer.store.strictjson import to_json
from gradiometer.store.upkeep import rewind

__all__ = ["Writer"]

COMMIT_SECONDS = 0.5
BATCH = 100_000  # values: about a third of a second of writing
CAPACITY = 5 * BATCH  # values: about 50 MB of waiting rows
OTHER_WEIGHT = 50  # a table, an event or a finding, in values
FULL_SECONDS = 0.001
PATIENCE_SECONDS = 60.0


class Writer:
    """Keeps a run in `<folder>/run.db`. What is put belongs to the writer: do not change it afterwards.

    `resume=s` takes an existing run back to step s, `overwrite=True` starts it afresh, `keep=N` bounds its vectors.
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
        # A deque and not a Queue: nothing to lock on the training thread, and nothing a signal handler could lock twice.
        self._pending: deque[Record | threading.Event] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._put_values = self._taken_values = 0  # one counter a thread, so that neither needs a lock
        self._refused = self._lost = self._recorded_drops = self._newest_step = 0
        self._trouble: str | None = None
        self._said = self._stopped = self._closed = False
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
        # Handed over, not shared: a forked child then holds no reference through which it could close the connection.
        handover = [batches]
        self._thread = threading.Thread(target=self._work, args=(handover,), name="gradiometer-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """How many records were put but not kept."""
        return self._refused + self._lost

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
        if isinstance(item, Vector):
            item = replace(item, values=np.array(item.values))  # sketches live in buffers that the next step overwrites
        waiting = self._put_values - self._taken_values
        if waiting >= CAPACITY and not self._room():
            self._refused += 1
            return
        self._put_values += _weight(item)
        self._pending.append(item)
        if waiting >= BATCH:
            self._nudge()

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the run, key by key."""
        if os.getpid() == self._pid and not self._closed:
            self._pending.append(Facts({str(key): to_json(value) for key, value in facts.items()}))

    def flush(self) -> None:
        """Return when all that was put so far is on disk."""
        if os.getpid() != self._pid:
            return
        if not self._closed:
            mark = threading.Event()
            self._pending.append(mark)
            self._nudge()
            self._await(mark)
        if self._trouble is not None:
            self._say(self._trouble)

    def close(self) -> None:
        """Keep what is left and make the run one file; twice is fine."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        self._nudge()
        self._thread.join(PATIENCE_SECONDS)
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._fail(f"{self.folder} could not be closed in {PATIENCE_SECONDS:.0f} s; the last records may be lost")
        if self._trouble is not None:
            self._say(self._trouble)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _room(self) -> bool:
        self._nudge()
        time.sleep(FULL_SECONDS)
        return self._put_values - self._taken_values < CAPACITY

    def _nudge(self) -> None:
        if self._wake.empty():
            self._wake.put(None)

    def _await(self, mark: threading.Event) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not mark.wait(0.05) and self._thread.is_alive():
            if time.monotonic() > deadline:
                return self._fail(f"{self.folder} could not be flushed in {PATIENCE_SECONDS:.0f} s: is the disk there?")

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
                closing = self._closed  # asked before the last look, so that all put before `close` is kept
                while self._pending:
                    self._keep(batches, self._take())
                if closing:
                    break
                self._rest()
            self._finish(batches)
        finally:
            self._lock.release()

    def _rest(self) -> None:
        try:
            self._wake.get(timeout=COMMIT_SECONDS)
        except queue.Empty:
            return

    def _take(self) -> list[Record | threading.Event]:
        items, values = [], 0
        while self._pending and values < BATCH:
            items.append(self._pending.popleft())
            values += _weight(items[-1])
        self._taken_values += values
        return items

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
        drops = self.dropped - self._recorded_drops
        try:
            self._check_still_there()
            self._newest_step = max(self._newest_step, *(row.step for row in records if isinstance(row, Row)), 0)
            batches.write([*records, *self._drop_event(drops)])
            self._recorded_drops += drops
            database.shorten(batches.db, self.folder / database.DATABASE_NAME)
        except sqlite3.OperationalError as error:
            # A full disk may be emptied: the next batch tries again.
            self._lost += len(records)
            self._fail(f"{self.folder} cannot be written ({error}); the training goes on, unrecorded until it can")
        except Exception as error:  # the one guarded boundary: whatever it is, the training goes on
            self._stopped = True
            self._lost += len(records)
            self._fail(f"{self.folder} is not recorded any more: {type(error).__name__}: {error}")

    def _drop_event(self, drops: int) -> list[Record]:
        if not drops:
            return []
        message = f"{drops} records were dropped: more came than the disk could take"
        return [Event(step=self._newest_step, kind="dropped", message=message, detail={"records": drops})]

    def _check_still_there(self) -> None:
        # SQLite goes on writing to a deleted file without a word.
        if _identity(self.folder) != self._identity:
            raise FileNotFoundError(f"{database.DATABASE_NAME} was removed, moved or replaced while it was written")

    def _finish(self, batches: Batches) -> None:
        if self.dropped > self._recorded_drops:
            self._store(batches, [])
        try:
            if not self._stopped:
                self._check_still_there()
                database.finish(batches.db)
        except (OSError, sqlite3.Error) as error:
            self._fail(f"{self.folder} could not be closed cleanly: {error}")
        finally:
            batches.db.close()


def _weight(item: Record | threading.Event) -> int:
    if isinstance(item, Row):
        return len(item.values)
    if isinstance(item, Vector):
        return item.values.size
    return 0 if isinstance(item, Facts | threading.Event) else OTHER_WEIGHT


def _locked(folder: Path) -> WriterLock:
    if folder.exists() and not folder.is_dir():
        raise NotARun(f"{folder} is a file, and a run is a folder: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    return WriterLock(folder)


def _open(folder: Path, *, resume: int | None, overwrite: bool) -> sqlite3.Connection:
    if resume is not None and overwrite:
        raise UsageError("resume= continues a run and overwrite=True starts it afresh: give one of them")
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
            f"{path.parent} already holds {count} steps, up to step {newest}: "
            f"resume={newest} goes on from there, overwrite=True starts afresh, or choose another folder"
        )


def _resume(db: sqlite3.Connection, step: int) -> None:
    removed = rewind(db, step)
    message = f"resumed at step {step}; removed {removed['steps']} steps and {removed['points']} points beyond it"
    Batches(db).write([Event(step=step, kind="resumed", message=message, detail=removed)])


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = (folder / database.DATABASE_NAME).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
