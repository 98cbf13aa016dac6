"""The one place where a log's files are opened.

A file is a regular one, never a pipe or a device that somebody would wait for. Within a served
folder (`within`) no link leads out of it. What is parsed as a whole is first weighed, so that no
file takes more memory than it may.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, TextIO

from gradiometer.errors import NotARun, UsageError

__all__ = [
    "LONGEST_LINE",
    "MOST_SERIES",
    "check_readable",
    "is_inside",
    "mapped",
    "open_bytes",
    "open_text",
    "parse_json",
    "read_json_file",
    "within",
]

MEMORY = 800 << 20
"""Bytes that a document may take while it is parsed."""
LONGEST_LINE = 1 << 26
MOST_SERIES = 200_000
"""Names in a log: about a kilobyte each, and no training has more."""
OF_OBJECT, OF_LIST, OF_ITEM = 260, 90, 70
"""Bytes that Python takes for each `{`, `[` and `,` of a JSON text, at the most."""
KINDS = {
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}

_root: ContextVar[str] = ContextVar("root", default="")


@contextmanager
def within(root: Path) -> Iterator[None]:
    """Inside, nothing is opened that does not lie in the folder when links are followed."""
    token = _root.set(os.path.realpath(root))
    try:
        yield
    finally:
        _root.reset(token)


def is_inside(path: Path) -> bool:
    """Whether a path may be opened, wherever its links lead."""
    root = _root.get()
    real = os.path.realpath(path)
    return not root or real == root or real.startswith(root.rstrip("/") + "/")


def check_readable(path: Path) -> None:
    """Raise for a link out of the served folder, and for what is no file."""
    if not is_inside(path):
        raise NotARun(
            f"{path} is a link out of the served folder and not followed: serve what it points at"
        )
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever opens it says so
        return
    for is_kind, name in KINDS.items():
        if is_kind(mode):
            raise NotARun(f"{path} is {name} and not a file: write what comes out of it to a file")


def open_bytes(path: Path) -> IO[bytes]:
    """A file for reading."""
    check_readable(path)
    # Not waiting, should it have become a pipe since; on a file that means nothing.
    descriptor = os.open(os.path.realpath(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotARun(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def open_text(
    path: Path, *, encoding: str = "utf-8", errors: str = "replace", newline: str | None = ""
) -> TextIO:
    """The same as text."""
    return io.TextIOWrapper(open_bytes(path), encoding=encoding, errors=errors, newline=newline)


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """The bytes of a file, without having them all in memory."""
    with open_bytes(path) as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            yield held


def read_json_file(path: Path, hook: Callable[[Any], Any] | None = None) -> Any:
    """What a JSON file says; ValueError or RecursionError when it is none."""
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MEMORY:
            raise _too_large(path, size)
        return parse_json(file.read(), str(path), hook)


def parse_json(text: bytes, where: str, hook: Callable[[Any], Any] | None = None) -> Any:
    """What a JSON text says; an error before it takes more memory than it may."""
    if len(text) > 1 << 20:
        taken = 2 * len(text) if text.isascii() else 5 * len(text)
        taken += OF_OBJECT * text.count(b"{") + OF_LIST * text.count(b"[")
        taken += OF_ITEM * text.count(b",")
        if taken > MEMORY:
            raise _too_large(where, taken)
    return json.loads(text, object_pairs_hook=hook)


def _too_large(where: object, taken: int) -> UsageError:
    return UsageError(
        f"{where}: this JSON would take up to {taken / 1e9:.1f} GB of memory, and"
        f" {MEMORY / 1e9:.1f} are allowed: log one object a line, or less"
    )
