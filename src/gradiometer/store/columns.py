"""Points of many series, in arrays and never as Python objects; of a log too large for memory, in a temporary file.

Points come in the order of the log and go out in the order of steps, each step once, the last word counting. At most
`AT_ONCE` points wait in memory while a log is read, and one series at a time is put in order.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from gradiometer.store.readable import Floats, Ints

__all__ = ["Columns"]

AT_ONCE = 1 << 22
"""Points held in memory, of 16 bytes each: 64 MB."""
STEPS_AT_ONCE = 1 << 12
SHOWN_RETURNS = 10

Buffer = tuple["array[int]", "array[float]"]
Points = tuple[Ints, Floats]


class Columns:
    """Fill it with `add` and `extend`, then `finish` it once; only then can it be read."""

    def __init__(self, *, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: dict[str, Buffer] = {}
        self._num_waiting = 0
        self._spilled: dict[str, list[tuple[int, int]]] = {}
        self._file: BinaryIO | None = None
        self._points: dict[str, Points] = {}
        self.replaced = 0
        """Points that gave way to a later one of the same step and another value."""
        self.returns: tuple[tuple[int, int], ...] = ()
        """Where steps go backwards, as (from, to), of the series that does so most; the first ten."""

    def add(self, name: str, step: int, value: float) -> None:
        """One point."""
        buffer = self._waiting.get(name)
        if buffer is None:
            buffer = self._waiting[name] = (array("q"), array("d"))
        buffer[0].append(step)
        buffer[1].append(value)
        self._num_waiting += 1
        if self._num_waiting >= self._at_once:
            self._spill()

    def extend(self, name: str, steps: Ints, values: Floats) -> None:
        """Many points of a series."""
        buffer = self._waiting.setdefault(name, (array("q"), array("d")))
        buffer[0].frombytes(np.ascontiguousarray(steps, dtype=np.int64).tobytes())
        buffer[1].frombytes(np.ascontiguousarray(values, dtype=np.float64).tobytes())
        self._num_waiting += len(steps)
        if self._num_waiting >= self._at_once:
            self._spill()

    def finish(self) -> None:
        """Put every series in order."""
        names = sorted({*self._waiting, *self._spilled})
        returns: list[tuple[int, int]] = []
        sink = None if self._file is None else tempfile.TemporaryFile()  # noqa: SIM115 (the maps keep it)
        sizes = {}
        for name in names:
            arrived = self._arrived(name)
            steps, values = in_order(*arrived)
            if len(steps) < len(arrived[0]):
                kept = values[np.searchsorted(steps, arrived[0])]
                self.replaced += int(
                    np.count_nonzero(~((arrived[1] == kept) | (np.isnan(arrived[1]) & np.isnan(kept))))
                )
            returns = max(returns, _returns(arrived[0]), key=len)
            if sink is None:
                self._points[name] = (steps, values)
            else:
                sizes[name] = (sink.tell(), len(steps))
                sink.write(steps.tobytes())
                sink.write(values.tobytes())
        self.returns = tuple(returns[:SHOWN_RETURNS])
        if sink is not None:
            sink.flush()
            self._points = _mapped(sink, sizes)
            sink.close()
        if self._file is not None:
            self._file.close()
        self._waiting, self._spilled, self._file = {}, {}, None

    def names(self) -> list[str]:
        """Every series, in order."""
        return list(self._points)

    def __contains__(self, name: str) -> bool:
        return name in self._points

    def series(self, name: str) -> Points:
        """The steps and values of a series, in order of the steps; arrays of the caller's own."""
        steps, values = self._points[name]
        return np.array(steps), np.array(values)

    def rows(self, steps: Ints) -> Iterator[tuple[int, dict[str, float]]]:
        """The values at each of these steps, which are in order; a few thousand steps are looked up at once."""
        for start in range(0, len(steps), STEPS_AT_ONCE):
            some = steps[start : start + STEPS_AT_ONCE]
            values: dict[int, dict[str, float]] = {step: {} for step in some.tolist()}
            for name, (of, numbers) in self._points.items():
                first, end = int(np.searchsorted(of, some[0])), int(np.searchsorted(of, some[-1], side="right"))
                for step, value in zip(of[first:end].tolist(), numbers[first:end].tolist(), strict=True):
                    values[step][name] = value
            yield from values.items()

    def _arrived(self, name: str) -> Points:
        pieces = [self._read(*place) for place in self._spilled.get(name, ())]
        if name in self._waiting:
            steps, values = self._waiting.pop(name)
            pieces.append((np.frombuffer(steps, dtype=np.int64), np.frombuffer(values, dtype=np.float64)))
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([piece[0] for piece in pieces]), np.concatenate([piece[1] for piece in pieces])

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the series are in order)
        for name, (steps, values) in self._waiting.items():
            self._spilled.setdefault(name, []).append((self._file.tell(), len(steps)))
            self._file.write(steps.tobytes())
            self._file.write(values.tobytes())
        self._waiting, self._num_waiting = {}, 0

    def _read(self, place: int, size: int) -> Points:
        assert self._file is not None
        self._file.seek(place)
        blob = self._file.read(16 * size)
        self._file.seek(0, 2)
        return np.frombuffer(blob, dtype=np.int64, count=size), np.frombuffer(blob, dtype=np.float64, offset=8 * size)


def in_order(steps: Ints, values: Floats) -> Points:
    """By step, each once: where a log goes backwards or says a step twice, what came later counts."""
    if len(steps) < 2 or bool((steps[1:] > steps[:-1]).all()):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    newest = np.append(steps[1:] != steps[:-1], True)
    return steps[newest], values[newest]


def _returns(steps: Ints) -> list[tuple[int, int]]:
    back = np.flatnonzero(steps[1:] < steps[:-1])
    return [(int(steps[place]), int(steps[place + 1])) for place in back[: 10 * SHOWN_RETURNS]]


def _mapped(file: Any, places: dict[str, tuple[int, int]]) -> dict[str, Points]:
    """The series in a file by their byte and length; the map holds the file, which has no name any more."""
    whole: Ints = np.memmap(file, dtype=np.int64, mode="r")
    points = {}
    for name, (byte, size) in places.items():
        first = byte // 8
        points[name] = (whole[first : first + size], whole[first + size : first + 2 * size].view(np.float64))
    return points
