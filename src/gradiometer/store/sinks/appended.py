"""A file that only grows by whole pieces: a piece that could not be written leaves nothing behind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["Appended"]


class Appended:
    """Open to the end of a file; `afresh` empties it first."""

    def __init__(self, path: Path, *, afresh: bool = True) -> None:
        self._file = path.open("wb" if afresh else "ab", buffering=0)
        self._good = self._file.seek(0, os.SEEK_END)

    def write(self, piece: bytes) -> None:
        """Write all of a piece or, where the disk is full, none of it."""
        try:
            left = memoryview(piece)
            while left:
                left = left[self._file.write(left) :]
            self._good += len(piece)
        except BaseException:
            with suppress(OSError):
                self._file.truncate(self._good)
                self._file.seek(self._good)
            raise

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
