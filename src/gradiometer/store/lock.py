"""One writer a run: a POSIX lock on `<run>/run.lock`, which goes away with the process that held it.

The lock never sits on the database itself: closing any descriptor of a file drops all POSIX locks the process has on it,
SQLite's own among them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from gradiometer.errors import RunLocked
from gradiometer.store.filesystems import NO_LOCKS, note_no_locks

__all__ = ["LOCK_NAME", "WriterLock"]

LOCK_NAME = "run.lock"

# lockf never refuses the process that already holds the lock, so we remember our own; the pid tells a forked child apart.
_held: dict[Path, int] = {}
_held_guard = threading.Lock()


class WriterLock:
    """The right to write to a run, from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve() / LOCK_NAME
        self._pid = os.getpid()
        with _held_guard:
            if _held.get(self._path) == self._pid:
                raise RunLocked(_refusal(folder, "this process", self._pid))
            self._descriptor = _acquire(self._path, folder)
            _held[self._path] = self._pid

    def release(self) -> None:
        """Give the run back; a forked child cannot."""
        if os.getpid() != self._pid:
            return
        with _held_guard:
            if _held.pop(self._path, None) is None:
                return
            # Removed while still locked: whoever opened the old file meanwhile sees another inode and tries again.
            if _same_file(self._descriptor, self._path):
                self._path.unlink()
            os.close(self._descriptor)


def _acquire(path: Path, folder: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise RunLocked(_refusal(folder, "another process", owner or "unknown")) from None
        except OSError as problem:
            if problem.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
            note_no_locks(folder)
        if _same_file(descriptor, path):
            os.ftruncate(descriptor, 0)
            # A full disk must not refuse the run: the pid only serves the message of the one who comes second.
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _refusal(folder: Path, who: str, pid: int | str) -> str:
    return f"{folder} is being written by {who} (pid {pid}): close that run first, or give this one another folder"
