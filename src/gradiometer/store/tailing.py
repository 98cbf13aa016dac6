"""A log that grew: only its new lines are read.

A log of lines (JSONL, CSV) is appended to while a training runs, and reading tens of megabytes for
each new line takes seconds. What lies before the old end must be as it was, the old end the end of
a line, and the new steps beyond the old ones; otherwise the log is read whole.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.store.importers import reader_of
from gradiometer.store.logs import Log
from gradiometer.store.opening import open_bytes, within

__all__ = ["TailedLog"]

LINES = ("jsonl", "csv", "progress")
"""Formats in which a row is a line."""
HEAD = 1 << 17
"""Bytes of the beginning that are read again: they say what the columns are."""
EDGE = 1 << 12
"""Bytes before the old end by which it is seen that nothing was rewritten."""
MOST_NEW = 1 << 24
"""More new bytes than this are no tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedLog:
    """A log, and what its file looked like when it was read."""

    log: Log
    size: int
    node: int
    edges: bytes

    @classmethod
    def of(cls, log: Log, size: int) -> Self | None:
        """What to go on from; None where the log is not one of lines, or ends within one. `size` is
        the file's before it was read."""
        told = log.facts.get("imported", {})
        # Without a column that counts the steps rows are counted, and a tail would begin at none.
        if told.get("format") not in LINES or told.get("packed") or not told.get("step"):
            return None
        if told.get("returns") or log.table_names() or not size:
            return None
        try:
            with open_bytes(log.path) as file:
                file.seek(size - 1)
                whole = file.read(1) == b"\n"
                node = os.fstat(file.fileno()).st_ino
            return (
                cls(log=log, size=size, node=node, edges=_edges(log.path, size)) if whole else None
            )
        except OSError:
            return None

    def read_on(self) -> Log | None:
        """The log as it is now; None when it has to be read whole."""
        path = self.log.path
        try:
            state = path.stat()
            grown = self.size < state.st_size <= self.size + MOST_NEW
            if not grown or state.st_ino != self.node or _edges(path, self.size) != self.edges:
                return None
            return self._extended(state.st_size)
        except (OSError, UsageError):
            return None

    def _extended(self, size: int) -> Log | None:
        old = self.log
        with open_bytes(old.path) as file:
            head = file.read(min(HEAD, self.size))
            file.seek(self.size)
            new = file.read(size - self.size)
        head, new = (part[: part.rfind(b"\n") + 1] for part in (head, new))
        if not head or not new:
            return old if head else None
        with tempfile.TemporaryDirectory(prefix="gradiometer-tail-") as folder:
            part = Path(folder) / old.path.name
            part.write_bytes(head + new)
            with warnings.catch_warnings(), within(Path(folder)):
                warnings.simplefilter("ignore", GradiometerWarning)
                more = reader_of(part)(part)
        told, tail = (log.facts.get("imported", {}) for log in (old, more))
        alike = all(told.get(key) == tail.get(key) for key in ("format", "step", "x_axis"))
        if not isinstance(more, Log) or not alike or tail.get("returns"):
            return None
        return old.followed_by(more)


def _edges(path: Path, size: int) -> bytes:
    """A digest of the beginning, and of the last bytes before `size`."""
    with open_bytes(path) as file:
        head = file.read(min(EDGE, size))
        file.seek(max(0, size - EDGE))
        return hashlib.blake2b(head + file.read(min(EDGE, size)), digest_size=16).digest()
