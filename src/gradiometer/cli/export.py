"""`gradiometer export`: what a run holds, in the files of other tools."""

from __future__ import annotations

import dataclasses
from typing import cast

from gradiometer.cli.commands import ExportRequest
from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.cli.progress import counting
from gradiometer.errors import UnknownName, UsageError
from gradiometer.store import exporters
from gradiometer.store.exporters import ExportedExperts, ExportedRun, ExportFormat
from gradiometer.store.importers import open_log
from gradiometer.words import counted

__all__ = ["FORMATS", "export"]

DYNAMICS = "dynamics-db"
FORMATS = (*exporters.FORMATS, DYNAMICS)


def export(request: ExportRequest) -> None:
    """Write a file, or a folder, of another tool."""
    run, to, output, overwrite = request.run, request.to, request.output, request.overwrite
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS, hint=f"(there are: {', '.join(FORMATS)})")
    if not output:
        raise UsageError(
            "-o must name a file, such as dynamics.db; with tensorboard and wandb a folder"
        )
    with (
        warnings_in_a_line(),
        open_log(run) as opened,
        counting(f"exporting {opened.name}") as progress,
    ):
        done: ExportedExperts | ExportedRun
        if to == DYNAMICS:
            done = exporters.export_dynamics(opened, output, overwrite=overwrite, progress=progress)
        else:
            format = cast(ExportFormat, to)
            done = exporters.export_run(
                opened, output, to=format, overwrite=overwrite, progress=progress
            )
    if request.json:
        print_json({"run": run, "to": to, **dataclasses.asdict(done)})
    elif isinstance(done, ExportedExperts):
        _print_experts(run, done)
    else:
        _print(run, to, done)


def _print_experts(run: str, done: ExportedExperts) -> None:
    out = console()
    experts = counted(len(done.experts), "expert")
    out.print(
        f"{run}: {experts} at {done.steps} steps, {done.columns} columns, {done.values} values"
    )
    if done.nans:
        out.print(
            f"{done.nans} recorded NaN are NULL in the file, where a missing value is NULL too"
        )
    out.print(f"kept in {done.file}", soft_wrap=True)


def _print(run: str, to: str, done: ExportedRun) -> None:
    out = console()
    nans = f", {done.nans} of them NaN" if done.nans else ""
    out.print(
        f"{run}: {done.series} series at {done.steps} steps, {done.values} values{nans}",
        soft_wrap=True,
    )
    for note in done.notes:
        out.print(note, soft_wrap=True)
    if done.left_out:
        out.print(
            f"{to} cannot hold {', '.join(done.left_out)}: they stay in the run", soft_wrap=True
        )
    out.print(f"kept in {done.file}", soft_wrap=True)
    if to == "wandb":
        out.print(f"to upload it: wandb sync {done.file}", soft_wrap=True)
