"""One writer a run, and what the file system of its folder cannot do.

The writer holds a POSIX lock on `<run>/run.lock`, which goes away with the process that held it. It
never sits on the database itself: closing any descriptor of a file drops all POSIX locks the
process has on it, SQLite's own among them. Where the file system has such locks, the folder itself
is locked too (flock), so that deleting `run.lock` lets nobody in; elsewhere the writer sees at its
next batch that the file is gone, and takes it again or stops.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import sqlite3
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from gradiometer.errors import GradiometerWarning, RunLocked, UsageError

__all__ = [
    "LOCK_NAME",
    "WriterLock",
    "filesystem_of",
    "has_no_locks",
    "is_network",
    "note_no_locks",
    "refuses_locks",
    "say_once",
    "told_plainly",
]

LOCK_NAME = "run.lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What mounts answer that cannot lock: NFS without its lock service, Lustre without `-o flock`."""

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|gfs2?|glusterfs|gpfs|lustre|mmfs|ncpfs|nfs[34]?|ocfs2"
    r"|orangefs|panfs|prl_fs|pvfs2|quobyte|smb3|smbfs|vboxsf|wekafs|fuse\..*"
)
"""File systems that several machines may share, by Linux's names."""

_without_locks: set[int] = set()
_said: set[tuple[str, int]] = set()
# lockf never refuses the process that already holds the lock, so we remember our own; the pid tells
# a forked child apart.
_held: dict[Path, int] = {}
_held_guard = threading.Lock()
_folder_locks: set[int] = set()


class WriterLock:
    """The right to write to a run, from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve() / LOCK_NAME
        self._pid = os.getpid()
        with _held_guard:
            if _held.get(self._path) == self._pid:
                raise RunLocked(_refusal(folder, "this process", self._pid))
            self._folder = folder
            self._descriptor = _acquire(self._path, folder)
            try:
                self._of_folder = _lock_folder(self._path.parent, folder)
            except BaseException:
                os.close(self._descriptor)
                raise
            _held[self._path] = self._pid
            if self._of_folder is not None:
                _folder_locks.add(self._of_folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()

    def hold(self) -> None:
        """Take `run.lock` again if somebody deleted it; raises when another was quicker."""
        if not _same_file(self._descriptor, self._path):
            descriptor = _acquire(self._path, self._folder)
            os.close(self._descriptor)
            self._descriptor = descriptor

    def release(self) -> None:
        """Give the run back; a forked child cannot."""
        if os.getpid() != self._pid:
            return
        with _held_guard:
            if _held.pop(self._path, None) is None:
                return
            # Removed while still locked: whoever opened the old file meanwhile sees another inode
            # and tries again.
            if _same_file(self._descriptor, self._path):
                self._path.unlink()
            os.close(self._descriptor)
            if self._of_folder is not None:
                _folder_locks.discard(self._of_folder)
                os.close(self._of_folder)


def _lock_folder(place: Path, folder: Path) -> int | None:
    """A lock on the folder itself; None where the file system has none for folders."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunLocked(_refusal(folder, "another process", "unknown")) from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _close_in_child() -> None:
    """Such a lock lives as long as any copy of its descriptor: a data loader's must not keep it."""
    for descriptor in _folder_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _folder_locks.clear()


@contextlib.contextmanager
def told_plainly(folder: Path) -> Iterator[None]:
    """A folder that cannot be written is the caller's to change, before anything is lost."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(
            f"the run cannot be kept in {folder}: {why}. Give it a folder that you may write to"
            " (run=... or --run), or run=None to keep nothing"
        ) from problem


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
            # A full disk must not refuse the run: the pid only serves the message of the one who
            # comes second.
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
    return (
        f"{folder} is being written by {who} (pid {pid}): close that run first, or give this one"
        " another folder"
    )


def filesystem_of(folder: Path) -> str:
    """The kind of file system a folder is on, such as `ext4`; empty where nothing says it."""
    place = str(folder.resolve())
    best, kind = -1, ""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]).rstrip("/")
        # The longest that holds the folder, and of two at the same place the one mounted later.
        if (place == point or place.startswith(f"{point}/")) and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]
    return kind


def is_network(kind: str) -> bool:
    """Whether several machines may share it, so that their memory cannot."""
    return NETWORK.fullmatch(kind) is not None


def refuses_locks(folder: Path) -> bool:
    """Whether a file of our own cannot be locked there; a "locked" database proves nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder) as scratch:
            fcntl.lockf(scratch, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno in NO_LOCKS
    return False


def note_no_locks(folder: Path) -> None:
    """Remember that files cannot be locked there, and say so once."""
    _without_locks.add(_device(folder))
    say_once(
        "locks",
        folder,
        f"{folder} is on a file system without file locks, so nothing keeps a second process from"
        " writing to the same run; see that there is only one",
    )


def has_no_locks(folder: Path) -> bool:
    """Whether it is known that files cannot be locked there."""
    return bool(_without_locks) and _device(folder) in _without_locks


def say_once(topic: str, folder: Path, message: str) -> None:
    """Warn once a process for each topic and file system."""
    if (topic, _device(folder)) not in _said:
        _said.add((topic, _device(folder)))
        warnings.warn(message, GradiometerWarning, stacklevel=4)


def _device(folder: Path) -> int:
    try:
        return os.stat(folder).st_dev
    except OSError:
        return -1


os.register_at_fork(after_in_child=_close_in_child)
