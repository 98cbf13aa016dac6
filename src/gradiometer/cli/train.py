"""`gradiometer train`: a lab, its overrides, and a progress bar."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradiometer import labs
from gradiometer.cli.printing import console, number

__all__ = ["progress_bar", "train"]

PLAIN_LINES = 10  # where nobody looks, this many lines are enough


def train(name: str, overrides: list[str]) -> None:
    """Train with the overrides on top of the lab's defaults, and say where the run is."""
    from gradiometer.labs.config import configure

    lab = labs.find(name)
    if not any(override.startswith("run=") for override in overrides):
        overrides = [*overrides, f"run=runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"]
    config = configure(lab.config(), overrides)
    with progress_bar(name) as progress:
        result = lab.train(config, progress)
    out = console()
    out.print(f"mean return {number(result.mean_return)} over the last 100 of {result.episodes} episodes")
    if result.run is not None:
        out.print(f"kept in {result.run}; look at it with: gradiometer show {result.run}")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[Any], None]]:
    """A bar with the live return on a terminal, a few plain lines otherwise."""
    if not sys.stderr.isatty():
        yield _plain_lines(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, TextColumn("return {task.fields[value]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, value="-")
        yield lambda now: bar.update(task, completed=now.env_steps, total=now.total_steps, value=_return(now))


def _plain_lines(label: str) -> Callable[[Any], None]:
    said = 0

    def say(now: Any) -> None:
        nonlocal said
        part = now.env_steps * PLAIN_LINES // now.total_steps
        if part > said:
            said = part
            print(
                f"{label}: {now.env_steps}/{now.total_steps} steps, return {_return(now)}", file=sys.stderr, flush=True
            )

    return say


def _return(now: Any) -> str:
    return "-" if math.isnan(now.mean_return) else f"{now.mean_return:.1f}"
