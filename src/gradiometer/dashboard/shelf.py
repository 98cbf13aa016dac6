"""The runs below a folder: which there are, whether they changed, and how one is opened.

An id is a path below the folder, but it is only ever looked up among the runs that were found, never joined to a path: no
request can reach outside. A link that leads out of the folder is not followed either.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gradiometer.dashboard.points import PointCache
from gradiometer.dashboard.shape import RunCard
from gradiometer.errors import GradiometerWarning, NotARun, UnknownName, UsageError
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.folders import choose
from gradiometer.store.importers import Log, logs_in, open_log
from gradiometer.store.jsonl import TRAINER_STATE
from gradiometer.store.reader import Run

__all__ = ["Shelf", "Signature"]

Signature = tuple[tuple[int, int], ...]
"""Sizes and times of a run's files: the same while nothing was written."""

LOOK_SECONDS = 2.0
"""How often the folder is searched for new runs; less often where a search takes long."""
LOOK_SHARE = 0.05
LIVE_SECONDS = 30.0
"""A run whose file changed this recently is still training."""
MOST_LOGGED = 20_000_000
"""Logs of other tools are parsed once and kept in memory: so many points of all of them, 320 MB."""


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
        self._parsing = threading.Lock()
        self._owed = False
        """Somebody was told less than there is to say."""
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

    def cards(self, patience: float = math.inf) -> list[RunCard]:
        """A card for each run, the newest first; what takes longer to read than one waits says little as yet."""
        until = time.monotonic() + patience
        found = []
        for id in self.ids():
            with suppress(UnknownName):  # gone since
                if id in self._cards or time.monotonic() < until:
                    found.append(self.card(id))
                else:
                    found.append(self._unread(id))
                    self._owed = True
        return sorted(found, key=lambda card: (-card.changed, card.id))

    def newest(self) -> str | None:
        """The run that was written last and can be read; when there is none, one that cannot, so that this is said."""
        changed = {id: _changed(signature) for id, signature in self.signatures().items()}
        ordered = sorted(changed, key=lambda id: (-changed[id], id))
        readable = (id for id in ordered if self.card(id).state != "unreadable")
        return next(readable, next(iter(ordered), None))

    def read_on(self, seconds: float) -> bool:
        """Read cards that nobody had the patience for; whether there were any."""
        until = time.monotonic() + seconds
        owed, self._owed = self._owed, False
        for id in self.ids() if owed else ():
            if id in self._cards:
                continue
            with suppress(UnknownName):
                self.card(id)
            if time.monotonic() >= until:
                self._owed = True
                break
        return owed

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
        return _signature(self._place(id).path)

    def signatures(self) -> dict[str, Signature]:
        """Of every run that is there."""
        with self._guard:
            paths = {id: self._places[id].path for id in self.ids()}
        return {id: _signature(path) for id, path in paths.items()}

    @contextmanager
    def open(self, id: str) -> Iterator[Run | Log]:
        """A run for reading; of our own runs a fresh connection, so that nobody waits and the writer can tidy up."""
        place = self._place(id)
        self._check_inside(place.path)
        if (place.path / DATABASE_NAME).exists() or place.path.name == DATABASE_NAME:
            with open_log(place.path) as run:
                yield run
            return
        with self._parsing:  # of two who ask at once, one would do the other's work again
            log = self._log(place)
        yield log

    def _log(self, place: _Place) -> Run | Log:
        signature = self.signature(place.id)
        with self._guard:
            known = self._logs.get(place.id)
            if known is not None and known[0] == signature:
                self._logs[place.id] = self._logs.pop(place.id)  # the newest again
                return known[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradiometerWarning)
            log = open_log(place.path)
        if isinstance(log, Log):
            with self._guard:
                self._logs.pop(place.id, None)
                self._logs[place.id] = signature, log
                while len(self._logs) > 1 and sum(map(_num_points, self._logs.values())) > MOST_LOGGED:
                    self._logs.pop(next(iter(self._logs)))
        return log

    def _check_inside(self, path: Path) -> None:
        """Folders that are links are never looked into, but a file in one of ours may be a link as well."""
        for file in _read_of(path):
            real = Path(os.path.realpath(file))
            if real != self.root and self.root not in real.parents:
                raise NotARun(f"{file} is a link out of the served folder and not followed: serve what it points at")

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
            self._cards.pop(id, None)
            self._logs.pop(id, None)
        new = sorted((id for id in found if id not in self._places), key=lambda id: (_born(found[id]), id))
        taken = {place.colour for place in self._places.values()}
        free = (colour for colour in range(len(found) + len(taken)) if colour not in taken)
        for id in new:
            self._places[id] = _Place(id=id, path=found[id], colour=next(free))

    def _there(self) -> list[Path]:
        return logs_in(self.root, or_itself=False)

    def _id(self, path: Path) -> str:
        if path == self.root:
            name = path.parent.name if path.name == DATABASE_NAME else path.name
        else:
            name = path.relative_to(self.root).as_posix()
        return name.encode("utf-8", "backslashreplace").decode()  # bytes that are no text cannot be in a URL

    def _unread(self, id: str) -> RunCard:
        place = self._place(id)
        return RunCard(
            id=id, name=id.rpartition("/")[2], colour=place.colour, state="still", newest_step=None, started="",
            changed=_changed(_signature(place.path)), kind="",
        )  # fmt: skip

    def _read_card(self, place: _Place, signature: Signature) -> RunCard:
        changed = _changed(signature)
        try:
            with self.open(place.id) as run:
                facts = run.facts
                kind = "run" if isinstance(run, Run) else str(facts.get("imported", {}).get("format", "log"))
                return RunCard(
                    id=place.id, name=place.id.rpartition("/")[2], colour=place.colour, state="still",
                    newest_step=run.newest_step, started=str(facts.get("started", "")), changed=changed, kind=kind,
                )  # fmt: skip
        except Exception as problem:  # whatever is wrong with one run, the others can be looked at
            known = isinstance(problem, UsageError | OSError)
            return RunCard(
                id=place.id, name=place.id.rpartition("/")[2], colour=place.colour, state="unreadable",
                newest_step=None, started="", changed=changed, kind="",
                problem=str(problem) if known else f"it cannot be read ({type(problem).__name__}: {problem})",
            )  # fmt: skip


def _with_state(card: RunCard, state: str) -> RunCard:
    if card.state == state:
        return card
    return replace(card, state=state)  # type: ignore[arg-type]


def _signature(path: Path) -> Signature:
    return tuple(_stamp(file) for file in _files(path))


def _changed(signature: Signature) -> float:
    return max((stamp[0] for stamp in signature), default=0) / 1e9


def _files(path: Path) -> list[Path]:
    """The files of a run or log whose change means that it changed."""
    try:
        if not path.is_dir():
            return [path, path.with_name(path.name + "-wal")]
        file = path / DATABASE_NAME
        if file.exists():
            return [file, file.with_name(file.name + "-wal")]
        saved = path.glob(f"checkpoint-*/{TRAINER_STATE}")
        return sorted([*(inside for inside in path.iterdir() if inside.is_file()), *saved])
    except OSError:
        return []


def _read_of(path: Path) -> tuple[Path, ...]:
    """The files that are opened for a run or log."""
    if not path.is_dir():
        return (path,)
    chosen = None if (path / DATABASE_NAME).exists() else choose(path)
    return (path / DATABASE_NAME,) if chosen is None else chosen.files


def _num_points(kept: tuple[Signature, Log]) -> int:
    return sum(len(kept[1].series(name)[0]) for name in kept[1].names())


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
