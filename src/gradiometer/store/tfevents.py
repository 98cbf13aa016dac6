"""TensorBoard event files, read without TensorBoard: the records, their checksums, and the few fields that hold scalars.

A record is the length of its data (8 bytes), a masked crc32c of the length (4), the data, and a masked crc32c of the data
(4). The data is a protobuf `Event`; its field numbers are TensorFlow's contract with every file ever written.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import GradiometerWarning, NotARun, RunDamaged, UsageError
from gradiometer.store.crc32c import masked_crc32c, masked_crc32c_of_many
from gradiometer.store.facts import redact
from gradiometer.store.logs import Gathered, Log, short_id
from gradiometer.store.origins import config_beside, name_of, origin
from gradiometer.store.protobuf import Message, fields, floats, varints

__all__ = ["begins_like_events", "is_event_file", "read_tfevents"]

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
BLOCK = 1 << 22
LARGEST_HELD = 1 << 26
LARGEST_CHECKED = 1 << 16
"""Larger records are pictures, graphs and histograms, which are not read: only their length is checked."""

EVENT_WALL_TIME, EVENT_STEP, EVENT_SUMMARY = 1, 2, 5
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR = 1, 2, 8
OTHER_VALUES = (3, 4, 5, 6)
"""Histograms, pictures and sounds."""
TENSOR_DTYPE, TENSOR_SHAPE, TENSOR_CONTENT, TENSOR_STRINGS = 1, 2, 4, 8
NUMBERS = {1: (5, "f"), 2: (6, "d")}
"""The field of the values, by dtype, for those of a fixed size; those below are varints."""
WHOLE = {3: 7, 4: 7, 5: 7, 6: 7, 9: 10, 10: 11, 17: 7, 22: 16, 23: 17}
CONTENT = {
    1: "<f4",
    2: "<f8",
    3: "<i4",
    4: "u1",
    5: "<i2",
    6: "i1",
    9: "<i8",
    10: "?",
    17: "<u2",
    19: "<f2",
    22: "<u4",
    23: "<u8",
}
HALF, BFLOAT16, HALF_VALUES = 19, 14, 13
STRING = 7
SETTINGS = ("hyperparameters", "args", "config")
"""Texts that hold the settings: CleanRL's table, transformers' JSON."""


def is_event_file(path: Path) -> bool:
    """Whether a file is called like TensorBoard's."""
    return "tfevents" in path.name


def begins_like_events(start: bytes) -> bool:
    """Whether a file's first bytes are the header of a record: a length and the checksum that belongs to it."""
    return len(start) >= HEADER.size and FOOTER.unpack_from(start, 8)[0] == masked_crc32c(start[:8])


def read_tfevents(path: str | os.PathLike[str], *, also: Sequence[Path] = ()) -> Log:
    """The log in an event file, with the other files of its folder that go on where it ended.

    Scalars are read in both forms, the old (`simple_value`) and the new (a tensor of one number). Pictures, histograms and
    texts are named as left out; a text of hyperparameters becomes the config. A cut-off end is reported and left out, a
    record whose checksum is wrong too.
    """
    path = Path(path)
    events = Events(path)
    for file in (path, *also):
        events.read(file)
    return events.log()


class Events:
    """What was found in event files so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gathered = Gathered()
        self.config: dict[str, Any] = {}
        self.began: float | None = None

    def read(self, file: Path) -> None:
        """Take in one file."""
        broken = 0
        for record in _records(file):
            try:
                self._event(fields(record))
            except (ValueError, TypeError, AttributeError, struct.error, OverflowError):  # a field is not of its kind
                broken += 1
        if broken:
            _warn(f"{file}: {broken} record{'s' * (broken != 1)} left out: not an event")

    def log(self) -> Log:
        """The log of all files."""
        if not self.gathered.steps:
            raise UsageError(f"{self.path} holds no scalars: nothing was logged yet, or only pictures and texts")
        run_id = short_id(self.path.name, self.began)
        log = Log(self.path, name=name_of(self.path), run_id=run_id, rows=self.gathered, facts={"imported": {}})
        log.facts["imported"] |= origin("tensorboard", log.names(), step="step")
        if config := {**config_beside(self.path), **self.config}:
            log.facts["config"] = redact(config)
        return log

    def _event(self, event: Message) -> None:
        if EVENT_SUMMARY not in event:
            return
        (step,) = varints(event.get(EVENT_STEP, [0])[-1:])
        (wall_time,) = struct.unpack("<d", event[EVENT_WALL_TIME][-1]) if EVENT_WALL_TIME in event else (float("nan"),)
        found = [
            value for summary in event[EVENT_SUMMARY] for body in fields(summary).get(1, ()) for value in _read(body)
        ]
        for tag, number in found:
            if number is None or isinstance(number, str):
                self._leave_out(tag, number)
            else:
                self.gathered.columns.add(tag, step, number)
        if any(isinstance(number, float) for _, number in found):
            self.began = wall_time if self.began is None else self.began
            self.gathered.steps.append(step)
            self.gathered.clock.add("wall_time", step, wall_time)

    def _leave_out(self, tag: str, text: str | None) -> None:
        name = tag.removesuffix("/text_summary")
        if text is not None and name in SETTINGS and (settings := _settings(text)):
            self.config |= settings
        else:
            self.gathered.left_out.add(name)


def _read(body: bytes) -> Iterator[tuple[str, float | str | None]]:
    """The tag of a summary's value and its number; its text, or None, when it is none."""
    value = fields(body)
    tag = value[VALUE_TAG][-1].decode(errors="replace") if VALUE_TAG in value else ""
    if VALUE_SIMPLE in value:
        yield tag, float(struct.unpack("<f", value[VALUE_SIMPLE][-1])[0])
    elif VALUE_TENSOR in value:
        yield tag, _tensor(fields(value[VALUE_TENSOR][-1]))
    elif any(number in value for number in OTHER_VALUES):
        yield tag, None


def _tensor(tensor: Message) -> float | str | None:
    """The number of a tensor that holds one, the text of one that holds text; None for any other."""
    kind = int(tensor.get(TENSOR_DTYPE, [0])[-1])
    if kind == STRING:
        texts = tensor.get(TENSOR_STRINGS, [])
        return texts[0].decode(errors="replace") if texts else None
    shape = fields(tensor[TENSOR_SHAPE][-1]) if TENSOR_SHAPE in tensor else {}
    if any(size != 1 for dim in shape.get(2, ()) for size in fields(dim).get(1, [0])):
        return None
    numbers = _numbers(tensor, kind)
    return float(numbers[0]) if len(numbers) == 1 else None


def _numbers(tensor: Message, kind: int) -> Sequence[float]:
    content = tensor[TENSOR_CONTENT][-1] if TENSOR_CONTENT in tensor else b""
    if content:
        if kind == BFLOAT16:
            return [float(x) for x in (np.frombuffer(content, dtype="<u2").astype("<u4") << 16).view("<f4")]
        return [float(x) for x in np.frombuffer(content, dtype=CONTENT[kind])] if kind in CONTENT else []
    if kind in NUMBERS:
        number, code = NUMBERS[kind]
        return floats(tensor.get(number, []), code)
    if kind in (HALF, BFLOAT16):
        bits = np.array(varints(tensor.get(HALF_VALUES, [])), dtype=np.int64).astype(np.uint16)
        wide = bits.view(np.float16) if kind == HALF else (bits.astype(np.uint32) << 16).view(np.float32)
        return [float(x) for x in wide]
    return [float(x) for x in varints(tensor.get(WHOLE.get(kind, -1), []))]


def _settings(text: str) -> dict[str, Any]:
    """The settings in a text: a JSON object, or a table of Markdown with a row for each."""
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            content = json.loads(text)
            return content if isinstance(content, dict) else {}
    rows = [line.strip().strip("|").split("|", 1) for line in text.splitlines() if line.strip().startswith("|")]
    return {row[0].strip(): _plain(row[1].strip()) for row in rows[2:] if len(row) == 2}


def _plain(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text


def _records(path: Path) -> Iterator[bytes]:
    """The data of the records, in order; what is cut off or does not match its checksum is reported and left out."""
    wrong, size = 0, path.stat().st_size
    with path.open("rb") as file:
        rest, place = b"", 0
        while True:
            block = file.read(BLOCK)
            blob = rest + block
            found, used = _split(blob, path, place, last=not block)
            sound = _sound(blob, found)
            wrong += len(found) - sum(sound)
            yield from (
                blob[start : start + length] for (start, length), good in zip(found, sound, strict=True) if good
            )
            rest, place = blob[used:], place + used
            if not block:
                break
            if len(rest) >= HEADER.size and (length := HEADER.unpack_from(rest)[0]) > LARGEST_HELD:
                place += HEADER.size + length + FOOTER.size
                rest = b""
                file.seek(min(place, size))
                if place > size:
                    _cut_off(path)
                    break
    if wrong:
        _warn(f"{path}: {wrong} record{'s' * (wrong != 1)} left out: a wrong checksum; copy it again")


def _split(blob: bytes, path: Path, place: int, *, last: bool) -> tuple[list[tuple[int, int]], int]:
    """Where the whole records of a block lie, as (start, length), and how many bytes they take."""
    found, at = [], 0
    while at + HEADER.size <= len(blob):
        length, checksum = HEADER.unpack_from(blob, at)
        if checksum != masked_crc32c(blob[at : at + 8]):
            if not any(blob[at:]):  # zeros the disk never filled, if nothing else follows
                break
            raise _not_a_record(path, place + at)
        end = at + HEADER.size + length + FOOTER.size
        if end > len(blob):
            break
        found.append((at + HEADER.size, length))
        at = end
    if last and at < len(blob):
        if not place and not found:
            raise NotARun(f"{path} is not a run, nor an event file of TensorBoard: not one whole record in it")
        _cut_off(path)
    return found, at


def _not_a_record(path: Path, place: int) -> UsageError:
    if not place:
        return NotARun(f"{path} is not a run, nor an event file of TensorBoard: it does not begin with a record")
    return RunDamaged(
        f"{path} is damaged at byte {place}: a checksum is wrong and the rest cannot be found; copy it again"
    )


def _sound(blob: bytes, found: list[tuple[int, int]]) -> list[bool]:
    """Whether the data of each record matches its checksum."""
    small = [(start, length) for start, length in found if length <= LARGEST_CHECKED]
    sums = dict(zip(small, masked_crc32c_of_many(blob, small), strict=True))
    return [
        sums[start, length] == FOOTER.unpack_from(blob, start + length)[0] if (start, length) in sums else True
        for start, length in found
    ]


def _cut_off(path: Path) -> None:
    _warn(f"{path} is cut off at its end, so the last record was left out: the run crashed or is still going")


def _warn(message: str) -> None:
    warnings.warn(message, GradiometerWarning, stacklevel=2)
