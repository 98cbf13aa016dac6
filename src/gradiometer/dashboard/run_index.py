"""The runs below a folder: which there are, whether they changed, and how one is opened.

An id is a path below the folder, but it is only ever looked up among the runs that were found,
never joined to a path: no request can reach outside. A link that leads out of the folder is not
followed either.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gradiometer.charts.model import Points
from gradiometer.dashboard.byte_cache import ByteCache
from gradiometer.dashboard.replaceable_threads import ReplaceableThreads, TookTooLong
from gradiometer.dashboard.shape import RunCard
from gradiometer.errors import GradiometerWarning, NotARun, UnknownName, UsageError
from gradiometer.store.database import DATABASE_NAME, impatient
from gradiometer.store.importers import Log, choose, logs_in, open_log
from gradiometer.store.opening import within
from gradiometer.store.reader import Run
from gradiometer.store.run_notes import NOTES_NAME, notes_file
from gradiometer.store.tailing import TailedLog

__all__ = [
    "LIVE_SECONDS",
    "STATEMENT_SECONDS",
    "Place",
    "RunIndex",
    "Signature",
    "changed_at",
    "signature_of",
    "unread_card",
]

Signature = tuple[tuple[int, int], ...]
"""Sizes and times of a run's files: the same while nothing was written."""

LOOK_SECONDS = 2.0
"""How often the folder is searched for new runs; less often where a search takes long."""
LOOK_SHARE = 0.05
MOST_BELOW = 500
"""Files a level below a log's folder that are watched."""
LIVE_SECONDS = 30.0
"""A run whose file changed this recently is still training."""
MOST_LOGGED = 20_000_000
"""Logs of other tools are parsed once and kept in memory: so many points of all of them, 320 MB."""
POINT_BYTES = 96 << 20
"""Of series held for pages that ask again."""


PARSERS = 3
MOST_WAITING = 3
"""Of those who answer pages, how many may wait for a log; the others say that it is being read."""
PARSE_SECONDS = 5.0
AGAIN_SECONDS = 0.25
"""How long a list waits for a log that grew: a small one is read by then."""
GIVEN_UP_SECONDS = 120.0
"""A log that is not read by then is left alone until its file changes."""
STATEMENT_SECONDS = 10.0
"""What one question to a run's file may take: a page asks many small ones."""


class StillReading(UsageError):
    """A log that is not parsed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run lies."""

    id: str
    path: Path
    colour: int


class RunIndex:
    """The runs that may be looked at. Every method may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._guard = threading.RLock()
        self._places: dict[str, Place] = {}
        self._look_again = 0.0
        self._cards: dict[str, tuple[Signature, RunCard]] = {}
        self._logs: dict[str, tuple[Signature, Log]] = {}
        self._tails: dict[str, TailedLog] = {}
        self._given_up: dict[str, tuple[Signature, str]] = {}
        self._parsing: dict[str, Future[Run | Log]] = {}
        self._parsers = ReplaceableThreads(
            PARSERS, seconds=GIVEN_UP_SECONDS, name="gradiometer-logs"
        )
        self._waiting = 0
        self._owed = False
        """Somebody was told less than there is to say."""
        self.points: ByteCache[Points] = ByteCache(POINT_BYTES, _weight)

    def ids(self) -> list[str]:
        """Every run that is there, in order of name; a new one is seen within two seconds."""
        with self._guard:
            if time.monotonic() >= self._look_again:
                began = time.monotonic()
                self._look()
                now = time.monotonic()
                self._look_again = now + max(LOOK_SECONDS, (now - began) / LOOK_SHARE)
            return sorted(self._places)

    def cards(self, patience: float = math.inf) -> list[RunCard]:
        """A card for each run, the newest first; one that takes long to read says little yet."""
        until = time.monotonic() + patience
        found = []
        for id in self.ids():
            with suppress(UnknownName):  # gone since
                if id in self._cards or time.monotonic() < until:
                    found.append(self.card(id, until - time.monotonic()))
                else:
                    found.append(unread_card(self._place(id), self.signature(id)))
                    self._owed = True
        return sorted(found, key=lambda card: (-card.changed, card.id))

    def newest(self) -> str | None:
        """The run written last that can be read; if there is none, one that cannot, to say so."""
        changed = {id: changed_at(signature) for id, signature in self.signatures().items()}
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

    def card(self, id: str, patience: float = math.inf) -> RunCard:
        """One run as the picker shows it; read again only if its file changed. While a log that
        grew is read again, the card is as it was."""
        place = self._place(id)
        signature = self.signature(id)
        with self._guard:
            known = self._cards.get(id)
        if known is None or known[0] != signature:
            try:
                patience = min(patience, AGAIN_SECONDS) if known else patience
                known = signature, self._read_card(place, signature, patience)
            except StillReading:
                self._owed = True
                if known is None:
                    return unread_card(place, signature)
                return replace(known[1], changed=changed_at(signature))
            with self._guard:
                self._cards[id] = known
        card = known[1]
        recent = time.time() - card.changed < LIVE_SECONDS
        alive = card.state == "still" and recent and card.kind == "run"
        return replace(card, state="live") if alive else card

    def signature(self, id: str) -> Signature:
        """Changes whenever something was written to the run."""
        return signature_of(self._place(id).path)

    def signatures(self) -> dict[str, Signature]:
        """Of every run that is there."""
        with self._guard:
            paths = {id: self._places[id].path for id in self.ids()}
        return {id: signature_of(path) for id, path in paths.items()}

    def paths(self) -> dict[str, Path]:
        """Where every run lies."""
        with self._guard:
            return {id: self._places[id].path for id in self.ids()}

    def source(self, path: Path) -> str:
        """What another process opens instead of a path."""
        return str(path)

    def notes_of(self, path: Path) -> str:
        """The file of the notes on a run; empty where there can be none."""
        return str(notes_file(path))

    def look_again(self) -> None:
        """Search the folder with the next question: runs were moved through us."""
        with self._guard:
            self._look_again = 0.0

    def problem_of(self, path: Path) -> str:
        """Why a run may not be opened; empty when it may."""
        try:
            self._check_inside(path)
        except (UsageError, OSError) as problem:
            return str(problem)
        return ""

    @contextmanager
    def open(self, id: str, patience: float = math.inf) -> Iterator[Run | Log]:
        """A run for reading; our own over a fresh connection, so that nobody waits. For a log that
        is not parsed one waits so many seconds, and never longer than `PARSE_SECONDS`."""
        place = self._place(id)
        self._check_inside(place.path)
        if (place.path / DATABASE_NAME).exists() or place.path.name == DATABASE_NAME:
            with within(self.root), impatient(STATEMENT_SECONDS):
                opened = open_log(place.path)
            with opened as run:
                yield run
            return
        yield self._log(place, min(patience, PARSE_SECONDS))

    def _log(self, place: Place, patience: float) -> Run | Log:
        """A log is parsed once, however many ask, on threads of its own: whatever a file does to
        its reader, those who answer are not used up."""
        signature = self.signature(place.id)
        with self._guard:
            known = self._logs.get(place.id)
            if known is not None and known[0] == signature:
                self._logs[place.id] = self._logs.pop(place.id)  # the newest again
                return known[1]
            given_up = self._given_up.get(place.id)
            if given_up is not None and given_up[0] == signature:
                raise NotARun(given_up[1])
            asked = self._parsing.get(place.id)
            if asked is None:
                asked = self._parsing[place.id] = self._parsers.submit(self._parse, place)
            patient = self._waiting < MOST_WAITING and patience > 0.0
            self._waiting += patient
        try:
            return asked.result(max(0.0, patience) if patient else 0.0)
        except TookTooLong as problem:
            self._give_up(place, signature, asked, f"{place.id}: {problem}")
            raise NotARun(f"{place.id}: {problem}") from None
        except TooLate:
            raise StillReading(
                f"{place.id} is still being read: it is large, or others are read before it"
            ) from None
        finally:
            with self._guard:
                self._waiting -= patient

    def _give_up(
        self, place: Place, signature: Signature, asked: Future[Run | Log], why: str
    ) -> None:
        with self._guard:
            self._given_up[place.id] = signature, why
            if self._parsing.get(place.id) is asked:
                del self._parsing[place.id]

    def _read_log(self, place: Place) -> Run | Log:
        """The log of a place; of one that only grew no more than its new lines are read."""
        known = self._tails.pop(place.id, None)
        if known is not None and self._reads(place) == (known.log.path,):
            longer = known.read_on()
            if longer is not None:
                return longer
        return open_log(place.path)

    def _reads(self, place: Place) -> tuple[Path, ...]:
        """The files that are read of a place."""
        if not place.path.is_dir():
            return (place.path,)
        chosen = choose(place.path)
        return () if chosen is None else chosen.attempts[0]

    def _parse(self, place: Place) -> Run | Log:
        try:
            signature = signature_of(place.path)
            sizes = {file: _stamp(file)[1] for file in self._reads(place)}
            with warnings.catch_warnings(), within(self.root):
                warnings.simplefilter("ignore", GradiometerWarning)
                log = self._read_log(place)
                tail = TailedLog.of(log, sizes.get(log.path, 0)) if isinstance(log, Log) else None
            if isinstance(log, Log):
                with self._guard:
                    if tail is not None:
                        self._tails[place.id] = tail
                    self._logs.pop(place.id, None)
                    self._logs[place.id] = signature, log
                    while len(self._logs) > 1 and self._num_logged() > MOST_LOGGED:
                        oldest = next(iter(self._logs))
                        self._logs.pop(oldest)
                        self._tails.pop(oldest, None)
            return log
        finally:
            with self._guard:
                self._parsing.pop(place.id, None)

    def _num_logged(self) -> int:
        logs = (log for _, log in self._logs.values())
        return sum(len(log.series(name)[0]) for log in logs for name in log.names())

    def _check_inside(self, path: Path) -> None:
        """Folders that are links are not looked into, but a file in one of ours may be a link."""
        for file in _read_of(path):
            real = Path(os.path.realpath(file))
            if real != self.root and self.root not in real.parents:
                raise NotARun(
                    f"{file} is a link out of the served folder and not followed: serve what it"
                    " points at"
                )

    def _place(self, id: str) -> Place:
        with self._guard:
            if id not in self._places:
                self.ids()
            if id not in self._places:
                raise UnknownName(
                    "run",
                    id,
                    self._places,
                    hint=f"(there are {len(self._places)} in the served folder)",
                )
            return self._places[id]

    def _found(self) -> dict[str, Path]:
        """Where the runs lie that are there now."""
        with within(self.root):
            there = logs_in(self.root, or_itself=False)
        return {self._id(path): path for path in there if os.path.exists(path)}

    def _look(self) -> None:
        found = self._found()
        for id in [id for id in self._places if id not in found]:
            del self._places[id]
            self._cards.pop(id, None)
            self._logs.pop(id, None)
            self._tails.pop(id, None)
        unknown = (id for id in found if id not in self._places)
        new = sorted(unknown, key=lambda id: (self._born(found[id]), id))
        taken = {place.colour for place in self._places.values()}
        free = (colour for colour in range(len(found) + len(taken)) if colour not in taken)
        for id in new:
            self._places[id] = Place(id=id, path=found[id], colour=next(free))

    def _born(self, path: Path) -> int:
        """About when a run began: a folder is made before anything is written into it."""
        stamps = (_stamp(path), *signature_of(path))
        return min((when for when, _ in stamps if when), default=0)

    def _id(self, path: Path) -> str:
        if path == self.root:
            name = path.parent.name if path.name == DATABASE_NAME else path.name
        else:
            name = path.relative_to(self.root).as_posix()
        # Bytes that are no text cannot be in a URL.
        return name.encode("utf-8", "backslashreplace").decode()

    def _read_card(self, place: Place, signature: Signature, patience: float) -> RunCard:
        card = unread_card(place, signature)
        try:
            with self.open(place.id, patience) as run:
                facts, newest = run.facts, run.newest_step
        except StillReading:
            raise
        except Exception as problem:  # whatever is wrong with one run, the others can be looked at
            why = f"it cannot be read ({type(problem).__name__}: {problem})"
            why = str(problem) if isinstance(problem, UsageError | OSError) else why
            return replace(card, state="unreadable", problem=why)
        kind = str(facts.get("imported", {}).get("format", "log"))
        kind = "run" if isinstance(run, Run) else kind
        return replace(card, newest_step=newest, started=str(facts.get("started", "")), kind=kind)


def unread_card(place: Place, signature: Signature) -> RunCard:
    """What can be said of a run before it is opened."""
    return RunCard(
        id=place.id,
        name=place.id.rpartition("/")[2],
        colour=place.colour,
        state="still",
        newest_step=None,
        started="",
        changed=changed_at(signature),
        kind="",
    )


def signature_of(path: Path) -> Signature:
    """Sizes and times of the files of a run or log."""
    # Of a run, by far the commonest, without a Path for each question: there may be thousands.
    database = f"{path}/{DATABASE_NAME}"
    stamp = _stamp(database)
    if stamp != (0, 0):
        return stamp, _stamp(f"{database}-wal")
    return tuple(_stamp(file) for file in _files(path))


def changed_at(signature: Signature) -> float:
    """When the newest file of a run was written, in seconds since the epoch."""
    return max((stamp[0] for stamp in signature), default=0) / 1e9


def _files(path: Path) -> list[Path]:
    """The files of a run or log whose change means that it changed."""
    try:
        if not path.is_dir():
            return [path, path.with_name(path.name + "-wal")]
        file = path / DATABASE_NAME
        if file.exists():
            return [file, file.with_name(file.name + "-wal")]
        # Also a level below: some tools keep their log in checkpoints or a file for each series.
        inside = [*path.iterdir(), *islice(path.glob("*/*"), MOST_BELOW)]
        return sorted(file for file in inside if file.is_file() and file.name != NOTES_NAME)
    except OSError:
        return []


def _read_of(path: Path) -> tuple[Path, ...]:
    """The files that are opened for a run or log."""
    if not path.is_dir():
        return (path,)
    chosen = None if (path / DATABASE_NAME).exists() else choose(path)
    return (path / DATABASE_NAME,) if chosen is None else tuple(chosen.every)


def _stamp(file: Path | str) -> tuple[int, int]:
    try:
        state = os.stat(file)
    except OSError:
        return 0, 0
    # Looking at a run that was not closed makes an empty log beside it: that is our doing and no
    # change.
    return (state.st_mtime_ns, state.st_size) if state.st_size else (0, 0)


def _weight(points: Points) -> int:
    """Bytes: a number in a list takes 32, a whole one 36."""
    columns = 1 + 2 * (points.low is not None) + (points.x is not None)
    return 400 + len(points.steps) * (36 + 32 * columns)
