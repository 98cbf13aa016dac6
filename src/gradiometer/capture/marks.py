"""Were the gradients made anew? Seen from torch's change counters, without reading a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gradiometer.capture.gauge import Gauge
from gradiometer.capture.roster import Roster
from gradiometer.capture.shards import version_of

__all__ = ["Mark", "Marks"]

Mark: TypeAlias = tuple[int, int, int]
"""Parameter, address and change counter of one gradient."""


class Marks:
    """How the last backward, or clip, left one gradient of each block: the sentinels'."""

    def __init__(self, gauge: Gauge, roster: Roster) -> None:
        self._gauge, self._roster = gauge, roster
        self._left: dict[int, Mark | None] = {}

    def of(self, indices: Sequence[int]) -> Mark | None:
        """The first of these parameters that has a gradient."""
        for i in indices:
            if (grad := self._gauge.parameters[i].grad) is not None:
                return i, id(grad), version_of(grad)
        return None

    def note(self, reached: Iterable[int]) -> None:
        """After a backward, of the sentinels it reached."""
        self._left.update((number, self._sentinel(number)) for number in reached)

    def note_again(self) -> None:
        """After a clip, which changed them."""
        self.note(tuple(self._left))

    def clear(self) -> None:
        """After a step, when making them anew is what everybody does."""
        self._left.clear()

    def dropped(self, reached: frozenset[int]) -> bool:
        """Accumulating adds one change to the same tensor; anything else means the gradient was set to zero or None."""
        if self._roster.data_parallel or self._gauge.pieces:
            # DDP touches gradients once more when it averages them, and may hand out new views of a buffer; so does FSDP2.
            return False
        for number in reached:
            before, now = self._left.get(number), self._sentinel(number)
            if before is not None and now is not None and (now[1] != before[1] or now[2] != before[2] + 1):
                return True
        return False

    def all_dropped(self) -> bool:
        """Between two backward passes: no gradient is as the last one left it."""
        now = {number: self._sentinel(number) for number in self._left}
        if self._roster.data_parallel or self._gauge.pieces:
            return bool(now) and all(mark is None for mark in now.values())
        return bool(now) and all(mark != self._left[number] for number, mark in now.items())

    def _sentinel(self, number: int) -> Mark | None:
        return self.of([self._roster.sentinels[number]])
