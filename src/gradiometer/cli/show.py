"""`gradiometer show`: a run in a table."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

from gradiometer.cli.commands import ShowRequest
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.errors import UsageError
from gradiometer.records import Summary
from gradiometer.store.importers import Log, open_log
from gradiometer.store.reader import Run
from gradiometer.store.run_notes import read_notes
from gradiometer.words import number

__all__ = ["show"]

COLUMNS = ("last", "mean", "min", "max", "points")


def show(request: ShowRequest) -> None:
    """Facts, events, and a table for each block."""
    path, match, layers = request.run, request.match, request.layers
    wanted = _pattern(match)
    with warnings_in_a_line(), open_log(path) as run:
        summaries = [
            s
            for s in run.summaries()
            if wanted.search(s.name)
            and (layers or request.json or not _block(s.name).startswith("layer."))
        ]
        if match and not summaries:
            raise UsageError(
                f"no series of {path} matches {match!r};"
                f" `gradiometer show {path} --layers` lists them all"
            )
        if request.json:
            print_json(_plain(run, summaries))
        else:
            _print(run, summaries, hidden=0 if layers else _num_layers(run))


def _pattern(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as problem:
        raise UsageError(f"--match {match!r} is not a regular expression ({problem})") from problem


def _plain(run: Run | Log, summaries: list[Summary]) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "newest_step": run.newest_step,
        "facts": run.facts,
        "series": [dataclasses.asdict(s) for s in summaries],
        "states": _states(run),
        "events": [dataclasses.asdict(event) for event in run.events()],
        "notes": _notes(run.path),
    }


def _print(run: Run | Log, summaries: list[Summary], *, hidden: int) -> None:
    out = console()
    newest = run.newest_step
    steps = "no steps yet" if newest is None else f"up to step {newest}"
    out.print(
        f"{run.name}: {steps},"
        f" {sum(s.count for s in summaries):,} points in {len(summaries)} series"
    )
    for what, told in _notes(run.path).items():
        out.print(f"{what}: {', '.join(told) if isinstance(told, tuple) else told}", markup=False)
    counted = Counter(_states(run).values())
    if counted:
        out.print(
            "parameters: " + ", ".join(f"{count} {state}" for state, count in counted.items())
        )
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(_block(summary.name), []).append(summary)
    for block in sorted(groups, key=_rank):
        rows = [_row(block, summary) for summary in groups[block]]
        out.print(table(block, *COLUMNS, rows=rows, right=COLUMNS))
    if hidden:
        out.print(f"{hidden} layers not shown; --layers shows them")
    for event in run.events():
        out.print(f"step {event.step}: {event.kind}: {event.message.splitlines()[0]}")


def _notes(path: Path) -> dict[str, Any]:
    """What people wrote about the run."""
    return {what: told for what, told in dataclasses.asdict(read_notes(path)).items() if told}


def _row(block: str, s: Summary) -> tuple[str, ...]:
    nans = f" ({s.nan_count} NaN)" if s.nan_count else ""
    name = s.name.removeprefix(f"grad/{block}/")
    return name, number(s.last), number(s.mean), number(s.min), number(s.max), f"{s.count}{nans}"


def _block(name: str) -> str:
    """The block a series belongs to; the user's own scalars are a group of their own."""
    parts = name.split("/")
    return parts[1] if parts[0] == "grad" and len(parts) > 2 else "logged"


def _rank(block: str) -> tuple[int, str]:
    order = {"logged": 0, "all": 1}
    return (3 if block.startswith("layer.") else order.get(block, 2), block)


def _num_layers(run: Run | Log) -> int:
    return len({_block(name) for name in run.names() if _block(name).startswith("layer.")})


def _states(run: Run | Log) -> dict[str, str]:
    return dict(run.table("states").content) if "states" in run.table_names() else {}
