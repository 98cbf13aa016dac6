"""`gradiometer check`: whether a run is still what was written."""

from __future__ import annotations

import dataclasses

from gradiometer.cli.commands import CheckRequest
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.store.checksums import Damage
from gradiometer.store.reader import Run, load
from gradiometer.words import counted

__all__ = ["check"]

OLD = "written before there were checksums, so only its structure could be checked"


def check(request: CheckRequest) -> int:
    """Name what is damaged; the exit code is 1 when something is."""
    with warnings_in_a_line(), load(request.run) as run, run.still():
        damage = run.verify()
        if request.json:
            print_json(
                {
                    "run": str(run.path),
                    "whole": not damage,
                    "checksums": run.has_checksums,
                    "damage": [dataclasses.asdict(each) for each in damage],
                }
            )
        else:
            _print(run, damage)
    return 1 if damage else 0


def _print(run: Run, damage: list[Damage]) -> None:
    out = console()
    if damage:
        rows = [(each.kind, each.name, _steps(each), str(each.count), each.why) for each in damage]
        out.print(table("what", "name", "steps", "rows", "why", rows=rows, right=["rows"]))
        out.print(f"{run.name}: {counted(len(damage), 'place')} damaged; readers skip them")
    else:
        out.print(f"{run.name}: whole, {len(run.names())} series up to step {run.newest_step}")
    if not run.has_checksums:
        out.print(f"{run.name}: {OLD}")


def _steps(damage: Damage) -> str:
    if damage.first_step is None:
        return ""
    until = "" if damage.last_step == damage.first_step else f" to {damage.last_step}"
    return f"{damage.first_step}{until}"
