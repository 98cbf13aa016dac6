"""TensorBoard event files, read without TensorBoard: the records, their checksums, and the few
fields that hold scalars.

A record is the length of its data (8 bytes), a masked crc32c of the length (4), the data, and a
masked crc32c of the data (4). The data is a protobuf `Event`; its field numbers are TensorFlow's
contract with every file ever written.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import NotARun, RunDamaged, UsageError
from gradiometer.store.facts import redact
from gradiometer.store.formats import Reads, log_format
from gradiometer.store.logs import Gathered, Log, cut_off, short_id, warn
from gradiometer.store.opening import open_bytes
from gradiometer.store.protobuf import Message, fields, floats, varints
from gradiometer.store.provenance import config_beside, log_of
from gradiometer.words import counted

__all__ = ["read_tfevents"]

NAME = "tfevents"
HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
BLOCK = 1 << 22
LARGEST_HELD = 1 << 26
LARGEST_CHECKED = 1 << 16
"""Larger records are pictures, graphs and histograms: only their length is checked."""

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
NO_TIME = struct.pack("<d", float("nan"))
NOT_OF_ITS_KIND = (ValueError, TypeError, AttributeError, struct.error, OverflowError)
"""What a field that holds something else than its number says leads to."""
SETTINGS = ("hyperparameters", "args", "config")
"""Texts that hold the settings: CleanRL's table, transformers' JSON."""

# crc32c, the checksum of the records, masked so that a checksum of checksums is sound.
REVERSED_POLYNOMIAL = 0x82F63B78
MASK = 0xA282EAD8
WORTH_AN_ARRAY = 8


def _is_events(path: Path, start: bytes) -> bool:
    """By TensorBoard's name, or a length and the checksum that belongs to it."""
    if NAME in path.name:
        return True
    return len(start) >= HEADER.size and FOOTER.unpack_from(start, 8)[0] == masked_crc32c(start[:8])


def _events_in(folder: Path, files: list[Path]) -> list[Path]:
    return [path for path in files if NAME in path.name]


@log_format(
    "tensorboard",
    rank=50,
    title="TensorBoard event files",
    detect=_is_events,
    find=_events_in,
    joined=True,
    reads=[
        Reads(
            tool="SB3, CleanRL, TRL, RLlib, OpenRLHF, ML-Agents, rsl_rl, legged_gym, rl_games,"
            " skrl, tianshou, Dreamer, Lightning",
            file="`events.out.tfevents.*`, or their folder (files of one folder are one run)",
            steps="the step of each event",
            taken="scalars in both forms; a text of hyperparameters as the settings",
        )
    ],
)
def read_tfevents(path: Path, *also: Path) -> Log:
    """The log in an event file, with the other files of its folder that go on where it ended.

    Scalars are read in both forms, the old (`simple_value`) and the new (a tensor of one number).
    Pictures, histograms and texts are named as left out; a text of hyperparameters becomes the
    config. A cut-off end is reported and left out, a record whose checksum is wrong too.
    """
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
            except NOT_OF_ITS_KIND:
                broken += 1
        if broken:
            warn(f"{file}: {counted(broken, 'record')} left out: not an event")

    def log(self) -> Log:
        """The log of all files."""
        if not self.gathered.steps:
            raise UsageError(
                f"{self.path} holds no scalars: nothing was logged yet, or only pictures and texts"
            )
        run_id = short_id(self.path.name, self.began)
        config = redact({**config_beside(self.path), **self.config}) or None
        return log_of(self.path, self.gathered, "tensorboard", run_id, step="step", config=config)

    def _event(self, event: Message) -> None:
        if EVENT_SUMMARY not in event:
            return
        (step,) = varints(event.get(EVENT_STEP, [0])[-1:])
        when = event.get(EVENT_WALL_TIME, [NO_TIME])[-1]
        (wall_time,) = struct.unpack("<d", when)
        bodies = (body for summary in event[EVENT_SUMMARY] for body in fields(summary).get(1, ()))
        found = [value for body in bodies for value in _read(body)]
        numbers = {}
        for tag, number in found:
            if number is None or isinstance(number, str):
                self._leave_out(tag, number)
            else:
                numbers[tag] = number
        if numbers:
            self.began = wall_time if self.began is None else self.began
            self.gathered.numbers(step, numbers)
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
    """The number of a tensor that holds one, the text of one that holds text; else None."""
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
            return [float(x) for x in _from_bfloat16(np.frombuffer(content, dtype="<u2"))]
        known = CONTENT.get(kind)
        return [] if known is None else np.frombuffer(content, dtype=known).astype(float).tolist()
    if kind in NUMBERS:
        number, code = NUMBERS[kind]
        return floats(tensor.get(number, []), code)
    if kind in (HALF, BFLOAT16):
        bits = np.array(varints(tensor.get(HALF_VALUES, [])), dtype=np.int64).astype(np.uint16)
        wide = bits.view(np.float16) if kind == HALF else _from_bfloat16(bits)
        return [float(x) for x in wide]
    return [float(x) for x in varints(tensor.get(WHOLE.get(kind, -1), []))]


def _from_bfloat16(bits: Any) -> Any:
    """A bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _settings(text: str) -> dict[str, Any]:
    """The settings in a text: a JSON object, or a table of Markdown with a row for each."""
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            content = json.loads(text)
            return content if isinstance(content, dict) else {}
    lines = (line.strip() for line in text.splitlines())
    rows = [line.strip("|").split("|", 1) for line in lines if line.startswith("|")]
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
    """The data of the records in order, without what is cut off or has a wrong checksum."""
    wrong, size = 0, path.stat().st_size
    with open_bytes(path) as file:
        rest, place = b"", 0
        while True:
            block = file.read(BLOCK)
            blob = rest + block
            found, used = _split(blob, path, place, last=not block)
            sound = _sound(blob, found)
            wrong += len(found) - sum(sound)
            for (start, length), good in zip(found, sound, strict=True):
                if good:
                    yield blob[start : start + length]
            rest, place = blob[used:], place + used
            if not block:
                break
            if len(rest) >= HEADER.size and (length := HEADER.unpack_from(rest)[0]) > LARGEST_HELD:
                place += HEADER.size + length + FOOTER.size
                rest = b""
                file.seek(min(place, size))
                if place > size:
                    cut_off(path)
                    break
    if wrong:
        warn(f"{path}: {counted(wrong, 'record')} left out: a wrong checksum; copy it again")


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
            raise NotARun(
                f"{path} is not a run, nor an event file of TensorBoard: not one whole record in it"
            )
        cut_off(path)
    return found, at


def _not_a_record(path: Path, place: int) -> UsageError:
    if not place:
        return NotARun(
            f"{path} is not a run, nor an event file of TensorBoard: it does not begin with a"
            " record"
        )
    return RunDamaged(
        f"{path} is damaged at byte {place}: a checksum is wrong and the rest cannot be found; copy"
        " it again"
    )


def _sound(blob: bytes, found: list[tuple[int, int]]) -> list[bool]:
    """Whether the data of each record matches its checksum."""
    small = [(start, length) for start, length in found if length <= LARGEST_CHECKED]
    sums = dict(zip(small, masked_crc32c_of_many(blob, small), strict=True))
    stored = {piece: FOOTER.unpack_from(blob, sum(piece))[0] for piece in small}
    return [piece not in sums or sums[piece] == stored[piece] for piece in found]


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (REVERSED_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _table()
TABLE_ARRAY = np.array(TABLE, dtype=np.uint32)


@lru_cache(maxsize=1 << 12)
def masked_crc32c(data: bytes) -> int:
    """Of one piece of data; the lengths of records are few, so they are remembered."""
    return int(_masked(_crc32c(data)))


def masked_crc32c_of_many(blob: bytes, pieces: Sequence[tuple[int, int]]) -> list[int]:
    """Of many pieces (start, length) of a blob: those of one length side by side, byte by byte."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, (_, length) in enumerate(pieces):
        by_length[length].append(number)
    sums = [0] * len(pieces)
    whole = np.frombuffer(blob, dtype=np.uint8)
    for length, numbers in by_length.items():
        starts = [pieces[number][0] for number in numbers]
        if len(numbers) < WORTH_AN_ARRAY:
            found = [_masked(_crc32c(blob[start : start + length])) for start in starts]
        else:
            found = _masked(_side_by_side(whole, np.array(starts), length)).tolist()
        for number, crc in zip(numbers, found, strict=True):
            sums[number] = int(crc)
    return sums


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _side_by_side(whole: Any, starts: Any, length: int) -> Any:
    crc = np.full(len(starts), 0xFFFFFFFF, dtype=np.uint32)
    for offset in range(length):
        crc = TABLE_ARRAY[(crc ^ whole[starts + offset]) & 0xFF] ^ (crc >> 8)
    return (crc ^ 0xFFFFFFFF).astype(np.uint64)


def _masked(crc: Any) -> Any:
    """Rotated right by 15 bits, plus a constant."""
    return ((((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + MASK) & 0xFFFFFFFF
