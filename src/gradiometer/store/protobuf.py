"""The wire format of protobuf messages, as much of it as logs need."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["Message", "fields", "floats", "varints"]

Message = dict[int, list[Any]]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SIZES = {FIXED64: 8, FIXED32: 4}


def fields(body: bytes) -> Message:
    """A message one level deep: varints as int, the rest as bytes. ValueError when it is none."""
    found: Message = {}
    place, end = 0, len(body)
    while place < end:
        tag, place = _varint(body, place)
        kind = tag & 7
        value: int | bytes
        if kind == VARINT:
            value, place = _varint(body, place)
        else:
            size, place = _varint(body, place) if kind == BYTES else (SIZES.get(kind, -1), place)
            if size < 0 or place + size > end:
                raise ValueError(f"a field of kind {kind} does not fit into its message")
            value, place = body[place : place + size], place + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def floats(values: list[Any], code: str) -> list[float]:
    """Repeated numbers of a fixed size, packed or one by one; `code` is struct's, `f` or `d`."""
    size = struct.calcsize(code)
    blob = b"".join(value for value in values if isinstance(value, bytes))
    return list(struct.unpack(f"<{len(blob) // size}{code}", blob[: len(blob) // size * size]))


def varints(values: list[Any]) -> list[int]:
    """Repeated whole numbers, packed or one by one, as signed 64-bit numbers."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        place = 0
        while place < len(value):
            number, place = _varint(value, place)
            found.append(number)
    return [_signed(number) for number in found]


def _varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(body) and shift < 70:
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("a number does not end within its message")


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
