"""`gradiometer import`: a log of another tool becomes a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gradiometer.cli.commands import ImportRequest
from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.cli.progress import counting
from gradiometer.errors import UsageError
from gradiometer.metrics import parse_told
from gradiometer.store.import_log import Imported, check_free, import_log
from gradiometer.store.importers import open_log
from gradiometer.words import counted

__all__ = ["import_"]

SHOWN = 20


def import_(request: ImportRequest) -> None:
    """Make a run of a log and say what was kept."""
    log, output = request.log, request.output
    if not output:
        raise UsageError("-o must name the folder of the run, such as runs/imported")
    check_free(Path(output))
    told = parse_told(request.name)
    with (
        warnings_in_a_line(),
        open_log(log) as opened,
        counting(f"importing {opened.name}") as progress,
    ):
        done = import_log(opened, output, progress=progress, names=told)
    if request.json:
        print_json({"log": log, **dataclasses.asdict(done)})
    else:
        _print(log, done)


def _print(log: str, done: Imported) -> None:
    out = console()
    span = "" if done.first_step is None else f" ({done.first_step} to {done.last_step})"
    tables = f", {counted(done.tables, 'table')}" if done.tables else ""
    out.print(
        f"{log}: {done.format}, {done.series} series at {done.steps} steps{span},"
        f" {done.points} values{tables}",
        soft_wrap=True,
    )
    if done.library or done.step:
        out.print(_origin(done), soft_wrap=True)
    if done.replaced:
        values = counted(done.replaced, "value")
        out.print(f"{values} replaced by a later one")
    if done.unknown:
        out.print(
            f"not in the catalogue, kept under their own names: {_some(done.unknown)}",
            soft_wrap=True,
        )
    for how, names in (
        ("as you specified", done.told),
        ("by a guess from their names", done.guessed),
    ):
        if names:
            words = tuple(f"{column} as {meaning}" for column, meaning in names.items())
            out.print(f"read {how}: {_some(words)}", soft_wrap=True)
    if done.guessed:
        out.print("--name MEANING=COLUMN says otherwise; the run keeps it", soft_wrap=True)
    if done.left_out:
        out.print(
            f"left out, being neither numbers nor tables: {_some(done.left_out)}", soft_wrap=True
        )
    out.print(f"kept in {done.run}", soft_wrap=True)


def _origin(done: Imported) -> str:
    whose = f"names of {done.library}" if done.library else "no known library"
    step = f", steps from {done.step}" if done.step else ""
    axis = f" ({done.x_axis})" if done.x_axis else ""
    return f"{whose}{step}{axis}"


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more (--json lists them)" if more > 0 else "")
