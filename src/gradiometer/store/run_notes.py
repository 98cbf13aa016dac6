"""What people write about a run: a name, tags, a note, and that it is put away.

It lies in `gradiometer.json` beside the run's own files and never in `run.db`, which a training may
be writing; of a log that is a single file in `<file>.gradiometer.json`. A file is written whole
under another name first, so that who reads sees the old or the new one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradiometer.errors import UsageError

__all__ = ["NOTES_NAME", "RunNotes", "notes_file", "read_notes", "write_notes"]

NOTES_NAME = "gradiometer.json"
LONGEST_NAME, LONGEST_TAG, LONGEST_NOTE = 120, 40, 4_000
MOST_TAGS = 20
MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotes:
    """All of it; empty where nobody wrote anything."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


def notes_file(path: Path) -> Path:
    """Where the notes on a run or log lie."""
    if path.is_dir():
        return path / NOTES_NAME
    if path.name == "run.db":
        return path.parent / NOTES_NAME
    return path.with_name(f"{path.name}.{NOTES_NAME}")


def read_notes(path: Path) -> RunNotes:
    """The notes on a run; none where the file is missing or not ours."""
    try:
        descriptor = os.open(notes_file(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            content = json.loads(file.read(MOST_BYTES))
        return _checked(content) if isinstance(content, dict) else RunNotes()
    except (OSError, ValueError, RecursionError, UsageError):
        return RunNotes()


def write_notes(path: Path, notes: RunNotes) -> RunNotes:
    """Keep notes on a run; the file goes when there is nothing left to say."""
    notes, file = _checked(asdict(notes)), notes_file(path)
    if notes == RunNotes():
        file.unlink(missing_ok=True)
        return notes
    descriptor, beside = tempfile.mkstemp(dir=file.parent, prefix=".gradiometer-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(asdict(notes), out, ensure_ascii=False, indent=1)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, file)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return notes


def _checked(content: Mapping[str, Any]) -> RunNotes:
    tags = content.get("tags", ())
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise UsageError(f"tags={tags!r}: tags are a list of words")
    words = tuple(dict.fromkeys(filter(None, (_line(tag, "tag", LONGEST_TAG) for tag in tags))))
    if len(words) > MOST_TAGS:
        raise UsageError(f"{len(words)} tags: a run has at most {MOST_TAGS}")
    for tag in words:
        if any(letter in tag for letter in ' ,"'):
            raise UsageError(f"{tag!r}: a tag is one word, without commas and quotes")
    return RunNotes(
        name=_line(content.get("name", ""), "name", LONGEST_NAME),
        tags=words,
        note=_text(content.get("note", ""), "note", LONGEST_NOTE),
        archived=content.get("archived", False) is True,
    )


def _line(value: Any, what: str, longest: int) -> str:
    return " ".join(_text(value, what, longest).split())


def _text(value: Any, what: str, longest: int) -> str:
    """Text without control characters, which terminals would obey."""
    if not isinstance(value, str):
        raise UsageError(f"{what}={value!r}: a {what} is a text")
    kept = "".join(letter for letter in value if letter.isprintable() or letter == "\n").strip()
    kept = kept.encode("utf-8", "replace").decode()
    if len(kept) > longest:
        raise UsageError(f"the {what} has {len(kept)} characters: at most {longest} are kept")
    return kept
