"""Logs of other tools: a file for each format, found by being in this folder.

A format is one function that reads a file of it into a `Log`, with what is needed to know the file:

    @log_format("spinning-up", rank=45, title="a progress.txt", detect=is_progress)
    def read_progress(path: Path) -> Log: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from gradiometer.store.logs import Log
from gradiometer.store.opening import is_inside

__all__ = ["Format", "Reads", "called", "ending", "formats", "log_format", "remembered"]

Reader = Callable[..., Log]
Detector = Callable[[Path, bytes], bool]
Finder = Callable[[Path, list[Path]], Iterable[Path]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """A line of the guide's page of logs: what somebody has who used a tool."""

    tool: str
    file: str
    steps: str
    """What counts them."""
    taken: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of log: how a file of it is known, and how it is read."""

    name: str
    rank: int
    """Where several formats fit, the lowest is read: the surest sign of a training first."""
    title: str
    """In the list of what can be read; empty when another entry says it."""
    read: Reader
    detect: Detector
    """Whether a file is one, by its name and its first 64 KB."""
    find: Finder
    """Which files of a folder are such a log, given the folder and the files in it."""
    joined: bool
    """All of them together are one log: `read` takes them all. Otherwise each is a run."""
    reads: tuple[Reads, ...]


_registered: dict[str, Format] = {}


def log_format(
    name: str,
    *,
    rank: int,
    title: str = "",
    detect: Detector = lambda path, start: False,
    find: Finder = lambda folder, files: (),
    joined: bool = False,
    reads: Iterable[Reads] = (),
) -> Callable[[Reader], Reader]:
    """Register the decorated function as the reader of a format."""

    def register(read: Reader) -> Reader:
        _registered[name] = Format(
            name=name,
            rank=rank,
            title=title,
            read=read,
            detect=detect,
            find=find,
            joined=joined,
            reads=tuple(reads),
        )
        return read

    return register


@cache
def formats() -> tuple[Format, ...]:
    """Every format of this folder, the one that is asked first in front."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return tuple(sorted(_registered.values(), key=lambda known: known.rank))


def remembered(looks: Callable[[Path], bool]) -> Callable[[Path], bool]:
    """A look into a file that is taken again only when the file has changed: a dashboard searches
    its folder every two seconds."""

    @lru_cache(maxsize=1 << 14)
    def look(path: Path, changed: int, size: int) -> bool:
        return looks(path)

    def looked(path: Path) -> bool:
        if not is_inside(path):  # opening it says why it is not
            return True
        state = path.stat()
        return look(path, state.st_mtime_ns, state.st_size)

    return looked


def called(*names: str) -> Finder:
    """Files of a folder with one of these names, the first name's first."""
    return lambda folder, files: [path for name in names for path in files if path.name == name]


def ending(*suffixes: str) -> Finder:
    """Files of a folder with one of these suffixes."""
    return lambda folder, files: [path for path in files if path.suffix in suffixes]
