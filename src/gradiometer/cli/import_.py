"""`gradiometer import`: a log of another tool becomes a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gradiometer.cli.export import counting
from gradiometer.cli.plot import warnings_in_a_line
from gradiometer.cli.printing import console, print_json
from gradiometer.errors import UsageError
from gradiometer.store.importers import open_log
from gradiometer.store.intake import Imported, check_free, import_log

__all__ = ["import_"]

SHOWN = 20


def import_(log: str, *, output: str, as_json: bool) -> None:
    """Make a run of a log and say what was kept."""
    if not output:
        raise UsageError("-o must name the folder of the run, such as runs/imported")
    check_free(Path(output))
    with warnings_in_a_line(), open_log(log) as opened, counting(f"importing {opened.name}") as progress:
        done = import_log(opened, output, progress=progress)
    if as_json:
        print_json({"log": log, **dataclasses.asdict(done)})
    else:
        _print(log, done)


def _print(log: str, done: Imported) -> None:
    out = console()
    span = "" if done.first_step is None else f" ({done.first_step} to {done.last_step})"
    tables = f", {done.tables} table{'s' * (done.tables != 1)}" if done.tables else ""
    out.print(f"{log}: {done.format}, {done.series} series at {done.steps} steps{span}, {done.points} values{tables}")
    if done.unknown:
        out.print(f"not in the catalogue, kept under their own names: {_some(done.unknown)}", soft_wrap=True)
    if done.left_out:
        out.print(f"left out, being neither numbers nor tables: {_some(done.left_out)}", soft_wrap=True)
    out.print(f"kept in {done.run}", soft_wrap=True)


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more (--json lists them)" if more > 0 else "")
