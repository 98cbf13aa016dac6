"""How far a long command is: a bar on a terminal, a few plain lines where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

__all__ = ["ShowProgress", "counting", "progress_bar", "tracked"]

PLAIN_LINES = 10
QUIET_SECONDS = 5.0

T = TypeVar("T")


class ShowProgress(Protocol):
    """What a command calls now and then."""

    def __call__(
        self, done: int, total: int, *, unit: str, value: str = "", notes: tuple[str, ...] = ()
    ) -> None:
        """`value` is the live number as text, if there is one; `notes` are lines to print."""


@contextmanager
def progress_bar(label: str, *, value_name: str = "return") -> Iterator[ShowProgress]:
    """A bar with the live value on a terminal, a few plain lines otherwise."""
    if not sys.stderr.isatty():
        yield _plain_lines(label, value_name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
        TimeRemainingColumn(),
        TextColumn(value_name + " {task.fields[value]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, value="-", unit="steps")

        def show(
            done: int, total: int, *, unit: str, value: str = "", notes: tuple[str, ...] = ()
        ) -> None:
            for note in notes:
                bar.console.print(note, markup=False, highlight=False)
            bar.update(task, completed=done, total=total, unit=unit, value=value or "-")

        yield show


def _plain_lines(label: str, value_name: str) -> ShowProgress:
    said: dict[str, int] = {}
    has_notes = has_begun = False

    def show(
        done: int, total: int, *, unit: str, value: str = "", notes: tuple[str, ...] = ()
    ) -> None:
        nonlocal has_notes, has_begun
        print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr, flush=True)
        has_notes = has_notes or bool(notes and has_begun)  # the first are of what comes before it
        has_begun = True
        if has_notes:  # a training with notes of its own needs no others
            return
        part = done * PLAIN_LINES // total
        if part > said.get(unit, 0):
            said[unit] = part
            reached = f", {value_name} {value}" if value else ""
            print(f"{label}: {done}/{total} {unit}{reached}", file=sys.stderr, flush=True)

    return show


@contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """Steps done of all: a bar on a terminal, elsewhere a line every few seconds."""
    if not sys.stderr.isatty():
        yield _now_and_then(label)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _now_and_then(label: str) -> Callable[[int, int], None]:
    said = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            print(f"{label}: {done}/{total} steps", file=sys.stderr, flush=True)

    return say


def tracked(items: Sequence[T], label: str, *, from_on: int) -> Iterable[T]:
    """The items, with a bar on a terminal if they are at least so many; elsewhere silently."""
    if len(items) < from_on or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=label, console=Console(stderr=True), transient=True)
