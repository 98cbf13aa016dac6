"""`gradiometer export`: what a run holds, in the files of other tools."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.errors import UnknownName, UsageError
from gradiometer.store import exporters
from gradiometer.store.exporters import Exported, Format, Whole
from gradiometer.store.importers import open_log

__all__ = ["FORMATS", "counting", "export"]

DYNAMICS = "dynamics-db"
FORMATS = (*exporters.FORMATS, DYNAMICS)
QUIET_SECONDS = 5.0


def export(run: str, *, to: str, output: str, overwrite: bool, as_json: bool) -> None:
    """Write a file, or a folder, of another tool."""
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS, hint=f"(there are: {', '.join(FORMATS)})")
    if not output:
        raise UsageError("-o must name a file, such as dynamics.db; with tensorboard and wandb a folder")
    with warnings_in_a_line(), open_log(run) as opened, counting(f"exporting {opened.name}") as progress:
        done: Exported | Whole
        if to == DYNAMICS:
            done = exporters.export_dynamics(opened, output, overwrite=overwrite, progress=progress)
        else:
            format = cast(Format, to)
            done = exporters.export_run(opened, output, to=format, overwrite=overwrite, progress=progress)
    if as_json:
        print_json({"run": run, "to": to, **dataclasses.asdict(done)})
    elif isinstance(done, Exported):
        _print_experts(run, done)
    else:
        _print(run, to, done)


def _print_experts(run: str, done: Exported) -> None:
    out = console()
    experts = f"{len(done.experts)} expert{'s' * (len(done.experts) != 1)}"
    out.print(f"{run}: {experts} at {done.steps} steps, {done.columns} columns, {done.values} values")
    if done.nans:
        out.print(f"{done.nans} recorded NaN are NULL in the file, where a missing value is NULL too")
    out.print(f"kept in {done.file}", soft_wrap=True)


def _print(run: str, to: str, done: Whole) -> None:
    out = console()
    nans = f", {done.nans} of them NaN" if done.nans else ""
    out.print(f"{run}: {done.series} series at {done.steps} steps, {done.values} values{nans}", soft_wrap=True)
    for note in done.notes:
        out.print(note, soft_wrap=True)
    if done.left_out:
        out.print(f"{to} cannot hold {', '.join(done.left_out)}: they stay in the run", soft_wrap=True)
    out.print(f"kept in {done.file}", soft_wrap=True)
    if to == "wandb":
        out.print(f"to upload it: wandb sync {done.file}", soft_wrap=True)


@contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """Steps done of all: a bar on a terminal, elsewhere a line every few seconds."""
    if not sys.stderr.isatty():
        yield _lines(label)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(label: str) -> Callable[[int, int], None]:
    said = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            print(f"{label}: {done}/{total} steps", file=sys.stderr, flush=True)

    return say
