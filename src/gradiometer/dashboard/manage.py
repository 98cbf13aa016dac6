"""What the page may change, when it was served with `--write`: notes on runs, and the bin.

Nothing is deleted: a run is moved to `.gradiometer-bin` in the served folder, with a note where it
came from, and can be moved back. A run that is being written stays where it is.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradiometer.dashboard.run_index import LIVE_SECONDS, RunIndex, changed_at
from gradiometer.errors import RunLocked, UsageError
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.locks import WriterLock
from gradiometer.store.run_notes import RunNotes, notes_file, read_notes, write_notes

__all__ = ["BIN", "Managed", "RunManager"]

BIN = ".gradiometer-bin"
MANIFEST = "moved.json"
MOST_RUNS = 2_000
ACTIONS = ("edit", "delete", "undo")
FIELDS = ("name", "note", "archived", "tags", "add_tags", "remove_tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """What was done."""

    changed: Sequence[str]
    """Ids of runs."""
    ticket: str = ""
    """Of what was moved to the bin: `undo` takes it."""


class RunManager:
    """Changes to the runs of an index."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index

    def do(self, asked: Mapping[str, Any]) -> Managed:
        """One of `ACTIONS`: {"action": "edit", "runs": [...], "add_tags": [...], ...},
        {"action": "delete", "runs": [...]} or {"action": "undo", "ticket": "..."}."""
        action = asked.get("action")
        if action == "undo":
            return self._undo(str(asked.get("ticket", "")))
        if action not in ACTIONS:
            raise UsageError(f"action={action!r}: an action is one of {', '.join(ACTIONS)}")
        ids = asked.get("runs")
        if not isinstance(ids, list) or not ids or not all(isinstance(id, str) for id in ids):
            raise UsageError("runs: a list of ids of runs is needed")
        if len(ids) > MOST_RUNS:
            raise UsageError(f"{len(ids)} runs at once: at most {MOST_RUNS}")
        paths = {id: self._path(id) for id in dict.fromkeys(ids)}
        return self._edit(paths, asked) if action == "edit" else self._delete(paths)

    def _path(self, id: str) -> Path:
        self._index.signature(id)  # an unknown one is an error that names close ones
        path = self._index.paths()[id]
        problem = self._index.problem_of(path)
        if problem or path.is_symlink():
            raise UsageError(problem or f"{id} is a link: change what it points at")
        return path

    def _edit(self, paths: Mapping[str, Path], asked: Mapping[str, Any]) -> Managed:
        strange = [key for key in asked if key not in (*FIELDS, "action", "runs")]
        if strange:
            raise UsageError(f"{strange[0]!r} cannot be changed: {', '.join(FIELDS)} can")
        edited = {id: _edited(read_notes(path), asked) for id, path in paths.items()}
        for id, path in paths.items():
            write_notes(path, edited[id])
        return Managed(changed=list(paths))

    def _delete(self, paths: Mapping[str, Path]) -> Managed:
        for id, path in paths.items():
            self._check_movable(id, path, set(paths.values()))
        now = datetime.now(UTC)
        ticket = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        place = self._index.root / BIN / ticket
        place.mkdir(parents=True)
        moved: list[dict[str, str]] = []
        for number, (id, path) in enumerate(paths.items()):
            for part in _parts(path):
                target = place / str(number) / part.name
                target.parent.mkdir(exist_ok=True)
                where = part.relative_to(self._index.root).as_posix()
                moved.append({"run": id, "from": where, "to": f"{number}/{part.name}"})
                # Written first: whatever happens in between, it is known where a run came from.
                (place / MANIFEST).write_text(json.dumps(moved, indent=1), "utf-8")
                shutil.move(part, target)
        self._index.look_again()
        return Managed(changed=list(paths), ticket=ticket)

    def _check_movable(self, id: str, path: Path, also: set[Path]) -> None:
        if path == self._index.root:
            raise UsageError(f"{id} is the served folder itself: delete it where it lies")
        below = [other for other in self._index.paths().values() if path in other.parents]
        if any(other not in also for other in below):
            raise UsageError(f"{id} holds other runs: choose them too, or move it by hand")
        if time.time() - changed_at(self._index.signature(id)) < LIVE_SECONDS or _is_written(path):
            raise UsageError(f"{id} is being written: end its training first")

    def _undo(self, ticket: str) -> Managed:
        bin = self._index.root / BIN
        known = {place.name: place for place in bin.iterdir()} if bin.is_dir() else {}
        if ticket not in known or not (known[ticket] / MANIFEST).is_file():
            raise UsageError(f"ticket={ticket!r:.60}: nothing in the bin is called so")
        place = known[ticket]
        moved = json.loads((place / MANIFEST).read_text("utf-8"))
        targets = {place / each["to"]: self._index.root / each["from"] for each in moved}
        for part, target in targets.items():
            # The bin lies in a folder that anybody may have written.
            if not (_is_below(part, place) and _is_below(target, self._index.root)):
                raise UsageError(
                    f"ticket={ticket}: what it names lies outside of the served folder"
                )
            if target.exists():
                raise UsageError(f"{target.relative_to(self._index.root)} is there again: move one")
        for part, target in targets.items():
            if part.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(part, target)
        shutil.rmtree(place)
        self._index.look_again()
        return Managed(changed=list(dict.fromkeys(each["run"] for each in moved)))


def _is_below(path: Path, folder: Path) -> bool:
    """Wherever its links lead."""
    return folder.resolve() in path.resolve().parents


def _edited(notes: RunNotes, asked: Mapping[str, Any]) -> RunNotes:
    given = {key: asked[key] for key in ("name", "note", "archived", "tags") if key in asked}
    if not isinstance(given.get("archived", False), bool):
        raise UsageError(f"archived={given['archived']!r}: true or false")
    lists = {key: asked.get(key, []) for key in ("tags", "add_tags", "remove_tags")}
    for key, words in lists.items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{key}={words!r:.60}: a list of words")
    tags = [*given.pop("tags", notes.tags), *lists["add_tags"]]
    gone = set(lists["remove_tags"])
    return replace(notes, **given, tags=tuple(tag for tag in tags if tag not in gone))


def _parts(path: Path) -> list[Path]:
    """What is moved for a run: its folder with all that lies in it, or a log and its notes."""
    if path.is_dir():
        return [path]
    return [part for part in (path, notes_file(path)) if part.exists()]


def _is_written(path: Path) -> bool:
    """Whether a writer holds the run, however long ago it wrote."""
    if not (path / DATABASE_NAME).is_file():
        return False
    try:
        WriterLock(path).release()
    except RunLocked:
        return True
    return False
