"""crc32c, the checksum of TensorFlow's records: polynomial 0x1EDC6F41, masked so that a checksum of checksums is sound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["masked_crc32c", "masked_crc32c_of_many"]

REVERSED_POLYNOMIAL = 0x82F63B78
MASK = 0xA282EAD8
WORTH_AN_ARRAY = 8


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
    """Of many pieces (start, length) of a blob: those of the same length side by side, a byte of each at a time."""
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
