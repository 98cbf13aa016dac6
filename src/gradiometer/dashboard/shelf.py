"""The runs below a folder: which there are, whether they changed, and how one is opened.

An id is a path below the folder, but it is only ever looked up among the runs that were found, never joined to a path: no
request can reach outside.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gradiometer.dashboard.points import PointCache
from gradiometer.dashboard.shape import RunCard
from gradiometer.errors import GradiometerWarning, UnknownName, UsageError
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.folders import choose
from gradiometer.store.importers import Log, logs_in, open_log
from gradiometer.store.reader import Run

__all__ = ["Shelf", "Signature"]

Signature = tuple[tuple[int, int], ...]
"""Sizes and times of a run's files: the same while nothing was written."""

LOOK_SECONDS = 2.0
"""How often the folder is searched for new runs; less often where a search takes long."""
LOOK_SHARE = 0.05
LIVE_SECONDS = 30.0
"""A run whose file changed this recently is still training."""
MOST_LOGS = 32
"""Logs of other tools are parsed once and kept in memory, so many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    id: str
    path: Path
    colour: int


class Shelf:
    """The runs that may be looked at. Every method may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._guard = threading.RLock()
        self._places: dict[str, _Place] = {}
        self._look_again = 0.0
        self._cards: dict[str, tuple[Signature, RunCard]] = {}
        self._logs: dict[str, tuple[Signature, Log]] = {}
        self.points = PointCache()

    def ids(self) -> list[str]:
        """Every run that is there, in order of name; a run that comes is seen within two seconds."""
        with self._guard:
            if time.monotonic() >= self._look_again:
                began = time.monotonic()
                self._look()
                now = time.monotonic()
                self._look_again = now + max(LOOK_SECONDS, (now - began) / LOOK_SHARE)
            return sorted(self._places)

    def cards(self) -> list[RunCard]:
        """A card for each run, the newest first."""
        return sorted((self.card(id) for id in self.ids()), key=lambda card: (-card.changed, card.id))

    def card(self, id: str) -> RunCard:
        """One run as the picker shows it; read again only if its file changed."""
        place = self._place(id)
        signature = self.signature(id)
        with self._guard:
            known = self._cards.get(id)
        if known is None or known[0] != signature:
            known = signature, self._read_card(place, signature)
            with self._guard:
                self._cards[id] = known
        card = known[1]
        alive = card.state != "unreadable" and time.time() - card.changed < LIVE_SECONDS and card.kind == "run"
        state = "live" if alive else "unreadable" if card.state == "unreadable" else "still"
        return _with_state(card, state)

    def signature(self, id: str) -> Signature:
        """Changes whenever something was written to the run."""
        return tuple(_stamp(file) for file in _files(self._place(id).path))

    @contextmanager
    def open(self, id: str) -> Iterator[Run | Log]:
        """A run for reading; of our own runs a fresh connection, so that nobody waits and the writer can tidy up."""
        place = self._place(id)
        if (place.path / DATABASE_NAME).exists() or place.path.name == DATABASE_NAME:
            with open_log(place.path) as run:
                yield run
            return
        yield self._log(place)

    def _log(self, place: _Place) -> Run | Log:
        signature = self.signature(place.id)
        with self._guard:
            known = self._logs.get(place.id)
            if known is not None and known[0] == signature:
                return known[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradiometerWarning)
            log = open_log(place.path)
        if isinstance(log, Log):
            with self._guard:
                self._logs.pop(place.id, None)
                self._logs[place.id] = signature, log
                while len(self._logs) > MOST_LOGS:
                    self._logs.pop(next(iter(self._logs)))
        return log

    def _place(self, id: str) -> _Place:
        with self._guard:
            if id not in self._places:
                self.ids()
            if id not in self._places:
                raise UnknownName("run", id, self._places, hint=f"(there are {len(self._places)} in the served folder)")
            return self._places[id]

    def _look(self) -> None:
        found = {self._id(path): path for path in self._there() if path.exists()}
        for id in [id for id in self._places if id not in found]:
            del self._places[id]
        new = sorted((id for id in found if id not in self._places), key=lambda id: (_born(found[id]), id))
        taken = {place.colour for place in self._places.values()}
        free = (colour for colour in range(len(found) + len(taken)) if colour not in taken)
        for id in new:
            self._places[id] = _Place(id=id, path=found[id], colour=next(free))

    def _there(self) -> list[Path]:
        found = logs_in(self.root)
        alone = found == [self.root] and self.root.is_dir()
        return [] if alone and choose(self.root) is None else found

    def _id(self, path: Path) -> str:
        path = path.resolve()
        if path == self.root:
            return path.parent.name if path.name == DATABASE_NAME else path.name
        return path.relative_to(self.root).as_posix()

    def _read_card(self, place: _Place, signature: Signature) -> RunCard:
        changed = max((stamp[0] for stamp in signature), default=0) / 1e9
        try:
            with self.open(place.id) as run:
                facts = run.facts
                kind = "run" if isinstance(run, Run) else str(facts.get("imported", {}).get("format", "log"))
                return RunCard(
                    id=place.id, name=place.id.rpartition("/")[2], colour=place.colour, state="still",
                    newest_step=run.newest_step, started=str(facts.get("started", "")), changed=changed, kind=kind,
                )  # fmt: skip
        except (UsageError, OSError) as problem:
            return RunCard(
                id=place.id, name=place.id.rpartition("/")[2], colour=place.colour, state="unreadable",
                newest_step=None, started="", changed=changed, kind="", problem=str(problem),
            )  # fmt: skip


def _with_state(card: RunCard, state: str) -> RunCard:
    if card.state == state:
        return card
    return replace(card, state=state)  # type: ignore[arg-type]


def _files(path: Path) -> list[Path]:
    """The files of a run or log whose change means that it changed."""
    if path.is_dir():
        file = path / DATABASE_NAME
        if file.exists():
            return [file, file.with_name(file.name + "-wal")]
        try:
            return sorted(inside for inside in path.iterdir() if inside.is_file())
        except OSError:
            return []
    return [path, path.with_name(path.name + "-wal")]


def _stamp(file: Path) -> tuple[int, int]:
    try:
        state = file.stat()
    except OSError:
        return 0, 0
    # Looking at a run that was not closed makes an empty log beside it: that is our doing and no change.
    return (state.st_mtime_ns, state.st_size) if state.st_size else (0, 0)


def _born(path: Path) -> int:
    """About when a run began: a folder is made before anything is written into it."""
    return min((_stamp(file)[0] for file in (path, *_files(path)) if file.exists()), default=0)
