"""`gradiometer train`: a lab, its overrides, and a progress bar."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradiometer import labs
from gradiometer.cli.printing import console
from gradiometer.words import number

if TYPE_CHECKING:
    from gradiometer.labs.config import LabConfig, Progress

__all__ = ["prepared", "progress_bar", "train"]

PLAIN_LINES = 10  # where nobody looks, this many lines are enough


def train(
    name: str,
    overrides: list[str],
    *,
    config_name: str | None = None,
    config: str | None = None,
    variation: str | None = None,
) -> None:
    """Train with the overrides on top of a case study's and of the lab's defaults, and say where the run is."""
    from gradiometer.labs import study

    lab = labs.find(name)
    settings = prepared(name, [*study.overrides_from(config, variation, lab), *overrides], config_name=config_name)
    with progress_bar(name, wording=lab.wording) as progress:
        result = lab.train(settings, progress)
    out, words = console(), lab.wording
    reached = f"{words.result} {number(result.mean_return)} over {lab.return_over}"
    out.print(f"{reached}; {result.episodes} {words.counted} in all", soft_wrap=True)
    if result.run is not None:
        out.print(f"kept in {result.run}; look at it with: gradiometer show {result.run}")


def prepared(name: str, overrides: list[str], *, config_name: str | None = None) -> LabConfig:
    """The lab's config with the overrides and a folder for the run; says on stderr which keys do nothing here."""
    from gradiometer.labs.config import configure

    config_class = labs.find(name).config()
    now = time.strftime("%Y%m%d-%H%M%S")
    config = configure(config_class, [f"run=runs/{name}-{now}", *overrides], config_name=config_name)
    if config.run_name is not None and config.run == f"runs/{name}-{now}":
        config = dataclasses.replace(config, run=f"runs/{config.run_name}-{now}")
    unused = config_class.no_effect(overrides)
    if unused:
        print(f"no effect in this lab: {', '.join(unused)}", file=sys.stderr, flush=True)
    return config


@contextmanager
def progress_bar(label: str, *, wording: labs.Wording | None = None) -> Iterator[Callable[[Progress], None]]:
    """A bar with the live return on a terminal, a few plain lines otherwise."""
    words = wording or labs.Wording()
    if not sys.stderr.isatty():
        yield _plain_lines(label, words)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, TextColumn(words.live + " {task.fields[value]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, value="-", unit="steps")

        def show(now: Progress) -> None:
            for note in now.notes:
                bar.console.print(note, markup=False, highlight=False)
            value = _return(now, words.decimals)
            bar.update(task, completed=now.done, total=now.total, unit=now.unit, value=value)

        yield show


def _plain_lines(label: str, words: labs.Wording) -> Callable[[Progress], None]:
    said: dict[str, int] = {}
    speaks = False

    def say(now: Progress) -> None:
        nonlocal speaks
        speaks = speaks or bool(now.notes)
        if speaks:  # a training with notes of its own needs no others
            print(*now.notes, sep="\n", end="\n" if now.notes else "", file=sys.stderr, flush=True)
            return
        part = now.done * PLAIN_LINES // now.total
        if part > said.get(now.unit, 0):
            said[now.unit] = part
            reached = "" if math.isnan(now.mean_return) else f", {words.live} {_return(now, words.decimals)}"
            print(f"{label}: {now.done}/{now.total} {now.unit}{reached}", file=sys.stderr, flush=True)

    return say


def _return(now: Progress, decimals: int) -> str:
    return "-" if math.isnan(now.mean_return) else f"{now.mean_return:.{decimals}f}"
