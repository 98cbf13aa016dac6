"""The table of runs: what is known of each without opening it now, and who finds out the rest.

A question is answered at once from what is known. Cards (settings, steps, how it ended) and states
(the doctor's) are read by processes of their own, the newest runs first, while somebody looks; they
hold for the state of the file they were read from. A cursor gets only the rows that changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from gradiometer.dashboard.run_index import (
    LIVE_SECONDS,
    RunIndex,
    Signature,
    changed_at,
)
from gradiometer.dashboard.survey import SurveyProcess, SurveyTooLong
from gradiometer.store.run_notes import RunNotes, read_notes
from gradiometer.version import __version__

__all__ = ["RowOutcome", "RunRow", "RunTable", "RunTableAnswer"]

REFRESH_SECONDS = 1.0
"""However many ask, files are looked at once in so many seconds."""
PROCESSES = 2
CARD_SECONDS, STATE_SECONDS = 15.0, 60.0
"""What reading one file may take, its process ended after it."""
LEAST_REST = {"card": 2.0, "state": 15.0}
REST_PER_SECOND = 20.0
"""A run that is being written is not read again before so many times what reading took."""
WATCHED_SECONDS = 20.0
"""Files are read for so long after somebody asked."""
IDLE_SECONDS = 60.0
FIRST_SECONDS = 1.0
"""Reading begins so long after the first question: the page is painted before."""
SAVE_SECONDS = 10.0

What = Literal["card", "state"]
Status = Literal["live", "finished", "crashed", "stopped", "log", "unreadable", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """How well a run did, in a few numbers."""

    series: str
    lower: bool
    """Whether less is better."""
    best: float | None
    best_step: int
    last: float | None
    """The level of the last tenth."""
    spark: Sequence[int | None]
    """The curve from 0 to 99; null where it is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the table."""

    id: str
    name: str
    folder: str
    kind: str
    status: Status
    """live; finished; crashed: an exception ended it; stopped: interrupted, or killed before it
    could close its file; log: of another tool, which does not say; empty: not read yet."""
    ended: str
    """The exception."""
    problem: str
    started: str
    changed: float
    newest_step: int | None
    seconds: float | None
    state: str
    """The doctor's; empty while it is not read."""
    severity: str
    verdict: str
    findings: Sequence[str]
    outcome: RowOutcome | None
    settings: Mapping[str, str]
    """Those that are not the same in all runs."""
    tags: Sequence[str]
    note: str
    archived: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTableAnswer:
    """What `/table.json` answers."""

    root: str
    cursor: str
    """Give it back as `after=` to get only rows that changed."""
    whole: bool
    """Every row there is; otherwise only those that changed."""
    rows: Sequence[RunRow]
    shared: Mapping[str, str]
    """Settings that are the same in all runs."""
    total: int
    unread: int
    """Runs whose state is still to be read."""
    write: bool
    """Whether names, tags and notes can be changed here."""


class Surveyor(Protocol):
    """Who reads a run."""

    def ask(self, question: Mapping[str, str], seconds: float) -> dict[str, Any]: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class _KnownRun:
    """What is known of a run, and of which state of its file."""

    path: Path
    notes_path: str
    signature: Signature = ()
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By `card` and `state`."""
    read_of: dict[str, Signature] = field(default_factory=dict)
    again: dict[str, float] = field(default_factory=dict)
    """When each may be read anew."""
    notes: RunNotes = field(default_factory=RunNotes)
    notes_stamp: tuple[int, int] = (-1, -1)
    row: RunRow | None = None
    row_of: tuple[object, ...] = ()
    """What it was made of."""
    revision: int = 0


class RunTable:
    """Rows of every run of an index. Any thread may ask."""

    def __init__(
        self,
        index: RunIndex,
        *,
        write: bool = False,
        cache: Path | None = None,
        surveyor: type[Surveyor] = SurveyProcess,
    ) -> None:
        self._index, self._write, self._surveyor = index, write, surveyor
        self._guard = threading.RLock()
        self._work = threading.Condition(self._guard)
        self._runs: dict[str, _KnownRun] = {}
        self._epoch = secrets.token_hex(4)
        self._revision = 0
        self._shared: dict[str, str] = {}
        self._cards_read = True
        self._refreshed = self._asked = -1e9
        self._begin = float("inf")
        self._taken: set[tuple[str, What]] = set()
        self._queue: list[tuple[str, What]] = []
        self._threads: list[threading.Thread] = []
        self._readers: list[Surveyor] = []
        self._closed = False
        self._kept = SurveyCache(cache, index.root) if cache is not None else None

    def answer(self, after: str = "") -> RunTableAnswer:
        """Every row, or those that changed since a cursor."""
        with self._guard:
            self._asked = time.monotonic()
            self._begin = min(self._begin, self._asked + FIRST_SECONDS)
            self._refresh()
            if self._share():  # cards were read since: the last of them nobody asks for again
                self._renew_all()
            self._start()
            epoch, _, revision = after.partition(".")
            whole = epoch != self._epoch or not revision.isdecimal()
            since = -1 if whole else int(revision)
            rows = [known.row for known in self._runs.values() if known.revision > since]
            return RunTableAnswer(
                root=self._index.root.name,
                cursor=f"{self._epoch}.{self._revision}",
                whole=whole,
                rows=[row for row in rows if row is not None],
                shared=self._shared if whole else {},
                total=len(self._runs),
                unread=sum("state" not in known.read for known in self._runs.values()),
                write=self._write,
            )

    def look(self) -> None:
        """Find the runs before anybody asks; nothing is opened yet."""
        with self._guard:
            self._refresh()

    def forget(self) -> None:
        """Look at the files anew with the next question: somebody changed them through us."""
        with self._guard:
            self._refreshed = -1e9

    def close(self) -> None:
        """End the processes, and keep what was read."""
        with self._guard:
            self._closed = True
            for reader in self._readers:
                reader.kill()
            self._work.notify_all()
        for thread in self._threads:
            thread.join(CARD_SECONDS)
        if self._kept is not None:
            self._kept.save(self._runs)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return
        there = self._index.paths()
        signatures = self._index.signatures()
        if any(id not in there for id in self._runs):
            self._runs = {id: known for id, known in self._runs.items() if id in there}
            self._epoch = secrets.token_hex(4)
        for id, path in there.items():
            known = self._runs.get(id)
            if known is None:
                known = _KnownRun(path=path, notes_path=self._index.notes_of(path))
                self._runs[id] = known
                if self._kept is not None:
                    self._kept.fill(id, known)
            known.signature = signatures.get(id, known.signature)
            _read_notes(known)
        self._share()
        self._renew_all()
        self._queue = self._due()
        self._refreshed = time.monotonic()

    def _share(self) -> bool:
        """Settings that all runs have alike are told once; whether they are others than before."""
        if not self._cards_read:
            return False
        self._cards_read = False
        configs = [
            known.read["card"].get("settings", {})
            for known in self._runs.values()
            if "card" in known.read
        ]
        configs = [config for config in configs if config]
        first = configs[0] if configs else {}
        shared = {
            name: value
            for name, value in first.items()
            if all(config.get(name) == value for config in configs[1:])
        }
        changed = shared != self._shared
        if changed:
            self._shared, self._epoch = shared, secrets.token_hex(4)
        return changed

    def _renew_all(self) -> None:
        for id, known in self._runs.items():
            self._renew(id, known)

    def _renew(self, id: str, known: _KnownRun) -> None:
        live = time.time() - changed_at(known.signature) < LIVE_SECONDS
        made_of = known.signature, known.notes_stamp, dict(known.read_of), live, self._epoch
        if made_of == known.row_of:
            return
        known.row_of = made_of
        row = _row(id, known, self._shared)
        if row != known.row:
            self._revision += 1
            known.row, known.revision = row, self._revision

    # Reading in the background

    def _start(self) -> None:
        while len(self._threads) < PROCESSES and not self._closed:
            name = f"gradiometer-survey-{len(self._threads)}"
            thread = threading.Thread(target=self._read_on, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.notify_all()

    def _read_on(self) -> None:
        reader = self._surveyor()
        self._readers.append(reader)
        try:
            while True:
                with self._guard:
                    task = self._next()
                    if task is None and not self._closed:
                        idle = not self._work.wait(IDLE_SECONDS)
                    if self._closed:
                        return
                if task is not None:
                    self._read(reader, *task)
                elif idle:
                    reader.close()
        finally:
            reader.close()

    def _due(self) -> list[tuple[str, What]]:
        """What is to be read, the last of it first: cards before states, and of each the runs that
        were written last."""
        now = time.monotonic()
        newest_last = sorted(self._runs, key=lambda id: changed_at(self._runs[id].signature))
        kinds: tuple[What, What] = ("state", "card")
        return [
            (id, what)
            for what in kinds
            for id in newest_last
            if self._is_due(id, self._runs[id], what, now)
        ]

    def _next(self) -> tuple[str, What] | None:
        now = time.monotonic()
        watched = now - self._asked <= WATCHED_SECONDS and now >= self._begin
        while self._queue and watched and not self._closed:
            id, what = self._queue.pop()
            if (id, what) not in self._taken and id in self._runs:
                self._taken.add((id, what))
                return id, what
        return None

    def _is_due(self, id: str, known: _KnownRun, what: What, now: float) -> bool:
        if (id, what) in self._taken or known.read_of.get(what) == known.signature:
            return False
        return now >= known.again.get(what, 0.0)

    def _read(self, reader: Surveyor, id: str, what: What) -> None:
        with self._guard:
            known = self._runs.get(id)
        try:
            if known is not None:
                self._survey(reader, id, known, what)
        finally:
            with self._guard:
                self._taken.discard((id, what))
            if self._kept is not None:
                self._kept.save_sometimes(self._runs)

    def _survey(self, reader: Surveyor, id: str, known: _KnownRun, what: What) -> None:
        began, signature = time.monotonic(), known.signature  # of the file as it is before
        limit = CARD_SECONDS if what == "card" else STATE_SECONDS
        path = self._index.source(known.path)
        question = {"what": what, "path": path, "root": str(self._index.root)}
        try:
            problem = self._index.problem_of(known.path)
            answer = {"problem": problem} if problem else reader.ask(question, limit)
        except SurveyTooLong as late:
            # Perhaps the machine was busy: after its rest it is tried again.
            answer, signature = {"problem": f"{known.path.name}: {late}"}, ()
        now = time.monotonic()
        with self._guard:  # in one go: who is told that nothing is unread sees the row
            if self._closed:
                return
            known.read[what], known.read_of[what] = answer, signature
            known.again[what] = now + max(LEAST_REST[what], REST_PER_SECOND * (now - began))
            if self._runs.get(id) is known:
                self._cards_read |= what == "card"
                self._renew(id, known)


def _read_notes(known: _KnownRun) -> None:
    if not known.notes_path:
        return
    try:
        state = os.stat(known.notes_path)
        stamp = state.st_mtime_ns, state.st_size
    except OSError:
        stamp = (0, 0)
    if stamp != known.notes_stamp:
        there = stamp != (0, 0)
        known.notes, known.notes_stamp = read_notes(known.path) if there else RunNotes(), stamp


def _row(id: str, known: _KnownRun, shared: Mapping[str, str]) -> RunRow:
    card, state = known.read.get("card", {}), known.read.get("state", {})
    settings = card.get("settings", {})
    folder, _, name = id.rpartition("/")
    outcome = state.get("outcome")
    unreadable = str(card.get("problem") or state.get("problem") or "")
    return RunRow(
        id=id,
        name=known.notes.name or name,
        folder=folder,
        kind=card.get("kind", ""),
        status=_status(known, card, unreadable),
        ended=card.get("ended", ""),
        problem=unreadable,
        started=card.get("started", ""),
        changed=round(changed_at(known.signature), 1),
        newest_step=card.get("newest_step"),
        seconds=card.get("seconds"),
        state="unreadable" if unreadable else state.get("state", ""),
        severity=state.get("severity", "unknown"),
        verdict=unreadable or state.get("verdict", ""),
        findings=state.get("findings", ()),
        outcome=None if outcome is None else RowOutcome(**outcome),
        settings={name: value for name, value in settings.items() if name not in shared},
        tags=known.notes.tags,
        note=known.notes.note,
        archived=known.notes.archived,
    )


def _status(known: _KnownRun, card: Mapping[str, Any], unreadable: str) -> Status:
    if unreadable:
        return "unreadable"
    if time.time() - changed_at(known.signature) < LIVE_SECONDS and not card.get("ended"):
        return "live"
    if not card:
        return ""
    if card["kind"] != "run":
        return "log"
    if card["ended"]:
        return "stopped" if card["ended"].startswith("KeyboardInterrupt") else "crashed"
    # Closing a run empties the log beside its file; whoever was killed left it.
    return "stopped" if len(known.signature) > 1 and known.signature[1][1] else "finished"


class SurveyCache:
    """What was read, kept for the next server over the same folder, in the user's cache folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        name = hashlib.blake2b(str(root).encode(errors="replace"), digest_size=12).hexdigest()
        self._file = folder / f"runs-{name}.json"
        self._saved = time.monotonic()
        self._guard = threading.Lock()
        self._content = self._load()

    def fill(self, id: str, known: _KnownRun) -> None:
        """What is kept of a run; it counts only while its file is the same."""
        for what, (signature, read) in self._content.pop(id, {}).items():
            if isinstance(read, dict) and "problem" not in read:
                known.read[what] = read
                known.read_of[what] = tuple((int(when), int(size)) for when, size in signature)

    def save_sometimes(self, runs: Mapping[str, _KnownRun]) -> None:
        """Save, if that was not done just now."""
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save(runs)

    def save(self, runs: Mapping[str, _KnownRun]) -> None:
        """Keep what is known; a folder that cannot be written is no matter."""
        self._saved = time.monotonic()
        content = {
            id: {what: (known.read_of[what], read) for what, read in dict(known.read).items()}
            for id, known in dict(runs).items()
        }
        with self._guard, suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside = self._file.with_suffix(f".{os.getpid()}")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as out:
                json.dump({"version": __version__, "runs": content}, out)
            beside.replace(self._file)

    def _load(self) -> dict[str, Any]:
        try:
            content = json.loads(self._file.read_text("utf-8"))
            current = content["version"] == __version__
            return dict(content["runs"]) if current else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
