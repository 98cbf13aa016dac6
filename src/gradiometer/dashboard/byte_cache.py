"""What was made once and may be asked for again, within so many bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["ByteCache"]

T = TypeVar("T")


class ByteCache(Generic[T]):
    """Values by key, of which those not asked for longest go when all weigh more than `capacity`
    bytes. Any thread may ask.

    Of a run that is being written only the state last asked for is held: nobody will ask for an
    older one.
    """

    def __init__(self, capacity: int, weigh: Callable[[T], int]) -> None:
        self._capacity, self._weigh = capacity, weigh
        self._guard = threading.Lock()
        self._kept: dict[Hashable, tuple[Hashable, T, int]] = {}
        self.held = 0
        """Bytes."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, state: Hashable, make: Callable[[], T]) -> T:
        """What is held under a key, or what `make` gives when its state is another one."""
        with self._guard:
            known = self._kept.get(key)
            if known is not None and known[0] == state:
                self._kept[key] = self._kept.pop(key)  # the newest again
                return known[1]
        made = make()
        self.put(key, state, made)
        return made

    def peek(self, key: Hashable) -> T | None:
        """What is held under a key, in whatever state."""
        with self._guard:
            known = self._kept.get(key)
            return None if known is None else known[1]

    def put(self, key: Hashable, state: Hashable, made: T) -> None:
        """Hold a value; alone it is held whatever it weighs."""
        weight = self._weigh(made)
        with self._guard:
            self._take(key)
            self._kept[key] = state, made, weight
            self.held += weight
            while self.held > self._capacity and len(self._kept) > 1:
                self._take(next(iter(self._kept)))

    def _take(self, key: Hashable) -> None:
        known = self._kept.pop(key, None)
        self.held -= 0 if known is None else known[2]
