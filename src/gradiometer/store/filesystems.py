"""What kind of file system a folder is on, and what is known not to work there."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
import warnings
from pathlib import Path

from gradiometer.errors import GradiometerWarning

__all__ = ["NO_LOCKS", "filesystem_of", "has_no_locks", "is_network", "note_no_locks", "refuses_locks", "say_once"]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What mounts answer that cannot lock: NFS without its lock service, Lustre without `-o flock`."""

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = {
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "mmfs", "ncpfs",
    "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "quobyte", "smb3", "smbfs", "vboxsf", "wekafs",
}  # fmt: skip
"""Kinds that several machines may share, by the name that Linux gives them; beside them all that begin with `fuse.`."""

_without_locks: set[int] = set()
_said: set[tuple[str, int]] = set()


def filesystem_of(folder: Path) -> str:
    """The kind of file system a folder is on, such as `ext4` or `nfs4`; empty where the system does not say."""
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
    return kind in NETWORK or kind.startswith("fuse.")


def refuses_locks(folder: Path) -> bool:
    """Whether a file of our own cannot be locked there: a proof, where a database that says "locked" is none."""
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
        f"{folder} is on a file system without file locks, so nothing keeps a second process from writing to the same run; "
        "see that there is only one",
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
