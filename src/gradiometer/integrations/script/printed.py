"""Scalars in what the script prints: `step 10 reward 3.2 loss=0.1`, `{'loss': 0.1}`, and tables of
`| key | value |`, as `store/console_lines.py` reads them in a log.

A guess, so a careful one: a line counts when its keys have come before, or when one of them is a
name of the catalogue. What is printed stays as it is: sys.stdout is the same object, of which
`write` is overheard.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress

from gradiometer.metrics import resolve
from gradiometer.store.console_lines import LineReader, is_counter, plain

__all__ = ["Printed", "overhear"]

LONGEST = 1 << 16
CLOCKS = ("time", "eta")


class Printed:
    """Lines as they are completed, from pieces of text."""

    def __init__(self, take: Callable[[dict[str, float]], None]) -> None:
        self._take = take
        self._rest = ""
        self._lines = LineReader()
        self._shapes: set[tuple[str, ...]] = set()

    def hear(self, text: str) -> None:
        """Some text was written."""
        if "\n" not in text and "\r" not in text:
            self._rest = (self._rest + text)[-LONGEST - 1 :]
            return
        *lines, self._rest = re.split(r"[\r\n]+", self._rest + text)
        for line in lines:
            self._line(plain(line).strip())

    def _line(self, line: str) -> None:
        """Where in the training a line was printed is no series: our own axis says it."""
        for found in self._lines.read(line) if len(line) <= LONGEST else ():
            values = {
                name: value
                for name, value in found.values.items()
                if not is_counter(name) and name.lower() not in CLOCKS
            }
            shape = tuple(values)
            if values and (shape in self._shapes or any(resolve(name) for name in values)):
                self._take(values)
            self._shapes.add(shape)


def overhear(hear: Callable[[str], None]) -> Callable[[], None]:
    """Tell `hear` what is written to stdout, until the returned function is called."""
    out = sys.stdout
    if out is None:
        return lambda: None
    write = out.write

    def overheard(text: str) -> int:
        count = write(text)
        hear(text)
        return count

    try:
        out.write = overheard  # type: ignore[method-assign]
    except AttributeError:  # a stream that takes no attributes
        return lambda: None

    def remove() -> None:
        with suppress(AttributeError):
            if out.write is overheard:
                del out.write

    return remove
