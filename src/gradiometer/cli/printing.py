"""One voice on the terminal: one way to write a number, a table, a JSON object."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gradiometer.errors import GradiometerWarning
from gradiometer.store.strictjson import to_json

__all__ = ["console", "print_json", "table", "visible", "warnings_in_a_line"]


UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What moves the cursor, colours, renames the window or turns the writing around, and halves of
characters, which cannot be written at all."""


def visible(text: str) -> str:
    """A text from anybody's file, as it may be written to a terminal."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PlainConsole(Console):
    """Writes texts so that they are only seen."""

    def print(self, *objects: Any, **how: Any) -> None:
        """The same, of visible texts."""
        shown = (visible(each) if isinstance(each, str) else each for each in objects)
        super().print(*shown, **how)


def console() -> Console:
    """Plain where nobody looks, coloured on a terminal; numbers and paths are left as they are."""
    return PlainConsole(highlight=False, markup=False, soft_wrap=False)


def table(*columns: str, rows: Iterable[tuple[str, ...]], right: Iterable[str] = ()) -> Table:
    """A plain table; columns named in `right` are numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = set(right)
    rows = [tuple(map(visible, row)) for row in rows]
    # Where there is too little room a text wraps in its last column, and before numbers in its
    # first; numbers never do.
    wraps = columns[0] if columns[-1] in numeric else columns[-1]
    for place, column in enumerate(columns):
        width = (
            max(len(column), *(len(row[place]) for row in rows), 1) if column in numeric else None
        )
        made.add_column(
            visible(column),
            justify="right" if column in numeric else "left",
            no_wrap=column != wraps,
            overflow="fold",
            min_width=width,
        )
    for row in rows:
        made.add_row(*row)
    return made


def print_json(content: Any) -> None:
    """One object on stdout and nothing else."""
    print(to_json(content))


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """What a reader skipped, said in a line on stderr instead of in Python's two."""

    def say(message: Warning | str, *_: object) -> None:
        print(visible(f"warning: {message}"), file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", GradiometerWarning)
        warnings.showwarning = say  # type: ignore[assignment]
        yield
