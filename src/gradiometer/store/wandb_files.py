"""Offline runs of W&B, read without W&B: the frames of a `.wandb` file, the few fields we need, and its table files.

A file is a header of seven bytes and blocks of 32 KiB. A block holds frames of crc32 (4 bytes), length (2) and kind (1:
whole, 2: first, 3: middle, 4: last piece), then the data; a record in one or more frames is a protobuf message. The
numbers of its fields are W&B's contract with its own server, so they do not change.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradiometer.errors import GradiometerWarning, NotARun, RunDamaged, UsageError
from gradiometer.store.facts import redact
from gradiometer.store.logs import Gathered, Log, is_table, short_id
from gradiometer.store.origins import origin
from gradiometer.store.protobuf import Message, fields

__all__ = ["MAGIC", "read_records", "read_wandb_file", "wandb_files_in"]

MAGIC = b":W&B\xe1\xbe"
FILE_HEADER = 7
BLOCK = 32 * 1024
FRAME = struct.Struct("<IHB")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MISREAD = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What a record of another shape than W&B's leads to."""


def wandb_files_in(folder: Path) -> list[Path]:
    """The `.wandb` files of a run folder, or of the run folders in a `wandb` folder; `latest-run` is one of the others."""
    found = {file.resolve(): file for pattern in ("latest-run/*.wandb", "*/*.wandb") for file in folder.glob(pattern)}
    return sorted(folder.glob("*.wandb")) or sorted(found.values())


def read_wandb_file(path: str | os.PathLike[str]) -> Log:
    """The log in a `.wandb` file, with the tables that lie under `files/` beside it."""
    path = Path(path)
    found = Found(path)
    for record in read_records(path):
        try:
            found.take(record)
        except UsageError:
            raise
        except MISREAD as problem:
            raise _not_a_record(path) from problem
    about, config = found.about, found.config
    run_id = about.get("run_id") or short_id(path.name)
    facts = {"imported": {}, "config": redact({key: config[key] for key in config if key != "_wandb"})}
    log = Log(path, name=about.get("name") or path.stem, run_id=run_id, rows=found.gathered, facts=facts)
    log.facts["imported"] |= origin("wandb", log.names(), step="_step") | about
    return log


class Found:
    """What the records of a file say so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, str] = {}
        self.config: dict[str, Any] = {}
        self.gathered = Gathered()

    def take(self, record: Message) -> None:
        """Take one record in."""
        for body in record.get(17, ()):  # run
            run = _message(body, self.path)
            self.about |= {name: _text(run, number) for name, number in RUN_FIELDS.items() if number in run}
            for update in run.get(4, ()):
                _merge(self.config, _message(update, self.path), self.path)
        for body in record.get(5, ()):  # config
            _merge(self.config, _message(body, self.path), self.path)
        for body in record.get(2, ()):
            step, values = _history(_message(body, self.path), self.path)
            self.gathered.row(step, values, f"{self.path}, step {step!r:.30}")


RUN_FIELDS = {"run_id": 1, "entity": 2, "project": 3, "group": 6, "job_type": 7, "name": 8}


def read_records(path: Path) -> Iterator[Message]:
    """The records of a `.wandb` file as field number → values; a cut-off end is reported and left out."""
    blob = path.read_bytes()
    if not blob.startswith(MAGIC):
        raise NotARun(f"{path} is not a W&B file: it does not begin with {MAGIC[:4].decode()}")
    pieces: list[bytes] = []
    for kind, data in _frames(blob, path):
        if kind in (WHOLE, FIRST):
            pieces = []
        pieces.append(data)
        if kind in (WHOLE, LAST):
            yield _message(b"".join(pieces), path)
            pieces = []
    if pieces:
        _cut_off(path)


def _frames(blob: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    place = FILE_HEADER
    while place < len(blob):
        left = BLOCK - place % BLOCK
        if left < FRAME.size:  # too small for a frame: padding
            place += left
            continue
        if place + FRAME.size > len(blob):
            return _cut_off(path)
        checksum, length, kind = FRAME.unpack_from(blob, place)
        end = place + FRAME.size + length
        data = blob[place + FRAME.size : end]
        sound = checksum == zlib.crc32(data, zlib.crc32(bytes([kind]))) and kind in (WHOLE, FIRST, MIDDLE, LAST)
        if not sound and (end >= len(blob) or not any(blob[place:])):  # half a frame, or zeros the disk never filled
            return _cut_off(path)
        if not sound:
            raise RunDamaged(f"{path} is damaged at byte {place}: a checksum is wrong; copy the file again")
        yield kind, data
        place = end
    return None


def _message(body: bytes, path: Path) -> Message:
    try:
        return fields(body)
    except ValueError as problem:
        raise _not_a_record(path) from problem


def _not_a_record(path: Path) -> RunDamaged:
    return RunDamaged(f"{path} holds a record that is not a W&B record; copy the file again")


def _text(message: Message, number: int) -> str:
    return str(message[number][-1].decode())


def _items(bodies: list[Any], path: Path) -> dict[str, Any]:
    """Items of key (1) or nested key (2) and JSON value (16), as one nested dict."""
    values: dict[str, Any] = {}
    for body in bodies:
        item = _message(body, path)
        keys = [key.decode() for key in item.get(2, ())] or [_text(item, 1)]
        inner = values
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = json.loads(_text(item, 16))
    return values


def _merge(config: dict[str, Any], update: Message, path: Path) -> None:
    config |= _items(update.get(1, []), path)
    for name in _items(update.get(2, []), path):
        config.pop(name, None)


def _history(history: Message, path: Path) -> tuple[int, dict[str, Any]]:
    values = _items(history.get(1, []), path)
    step = values.pop("_step", None)
    if step is None:
        (number,) = _message(history.get(2, [b""])[-1], path).get(1, [0])
        step = number
    return int(step), {name: _opened(value, name, path) for name, value in values.items()}


def _opened(value: Any, name: str, path: Path) -> Any:
    """A table's content in place of the note that says in which file it lies."""
    if not isinstance(value, Mapping) or value.get("_type") != "table-file":
        return value
    files = path.parent / "files"
    file = files / str(value.get("path", ""))
    if files.resolve() in file.resolve().parents and file.is_file():
        with suppress(ValueError):  # not JSON, not text: as good as gone
            content = json.loads(file.read_bytes())
            if is_table(content):
                return content
    _warn(f"{path}: the table {name} is not at {file} and was left out; copy the whole run folder")
    return None


def _cut_off(path: Path) -> None:
    _warn(f"{path} is cut off at its end, so the last record was left out: the run crashed or is still going")


def _warn(message: str) -> None:
    warnings.warn(message, GradiometerWarning, stacklevel=2)
