"""`gradiometer clinic`: train the grid, diagnose it, count."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradiometer.cli.lists import words
from gradiometer.cli.printing import console, print_json, table
from gradiometer.errors import UsageError
from gradiometer.store.strictjson import to_json

__all__ = ["clinic"]

FLOOR = 0.9
"""Top 1 of --quick below which it fails: its patients are those that are named today."""
RESULTS = "clinic.json"


def clinic(
    *,
    labs: Sequence[str],
    faults: Sequence[str],
    seeds: int,
    controls: int,
    engine: str,
    workers: int,
    quick: bool,
    out: str,
    report: str,
    as_json: bool,
) -> int:
    """The exit code: 1 when --quick finds less than it should."""
    from gradiometer.labs.clinic.admission import Admit, needed_weights
    from gradiometer.labs.clinic.judging import Judge, Judged
    from gradiometer.labs.clinic.patients import grid, quick_grid
    from gradiometer.labs.clinic.summary import summary

    if quick and (labs or faults):
        raise UsageError("--quick has its own patients: leave out --labs and --faults")
    chosen, named = words(list(labs)), words(list(faults))
    patients = quick_grid() if quick else grid(labs=chosen, only=named, seeds=seeds, controls=controls)
    if not patients:
        raise UsageError("nobody to treat: no fault of these labs has one of these names")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for round_ in needed_weights(patients, folder):
        _do("weights", round_, engine, workers)
    # Seed by seed, so that a clinic that is stopped has seen every fault once before any twice.
    in_turn = sorted(patients, key=lambda patient: patient.seed)
    _do("training", [Admit(patient=each, out=str(folder)) for each in in_turn], engine, workers)
    everybody: list[Judged] = []
    _do("diagnosis", [Judge(patient=each, out=str(folder)) for each in patients], engine, workers, everybody.append)
    found = summary(everybody)
    (folder / RESULTS).write_text(to_json(found, indent=1) + "\n", encoding="utf-8")
    if report:
        _write(found, Path(report))
    if as_json:
        print_json(found)
    else:
        _print(found, folder)
    return int(quick and _fails(found))


def _do(
    label: str,
    tasks: Sequence[Any],
    engine: str,
    workers: int,
    keep: Callable[[Any], None] = lambda _: None,
) -> None:
    from gradiometer.probes.engine import run_tasks

    if not tasks:
        return
    with _progress(label) as progress:
        run_tasks(
            tasks,
            _nothing,
            engine=engine,
            workers=workers or os.cpu_count() or 1,
            progress=progress,
            receive=lambda _, result: keep(result),
        )


def _nothing() -> None:
    """What the tasks share."""


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    from gradiometer.cli.train import progress_bar
    from gradiometer.labs.config import Progress

    with progress_bar(label) as show:
        yield lambda done, total: show(Progress(done=done, total=total, unit="patients", mean_return=float("nan")))


def _fails(found: dict[str, Any]) -> bool:
    rate = found["accuracy"]["all"]["full"]["top1"]
    return rate is None or rate["share"] < FLOOR or found["healthy"]["with_warning"] > 0


def _write(found: dict[str, Any], page: Path) -> None:
    """The page, and its picture in `pictures/` beside it."""
    from gradiometer.labs.clinic.report import markdown
    from gradiometer.plots.confusion import draw_confusion
    from gradiometer.plots.export import write_whole
    from gradiometer.plots.style import render, styled

    picture = page.parent / "pictures" / f"{page.stem}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        content = render(draw_confusion(found["confusion"]), "png")
    write_whole(picture, content)
    command = " ".join(["gradiometer", *sys.argv[1:]])
    told = f"Measured on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}."
    text = markdown(found, command=command, picture=f"pictures/{picture.name}", told=told)
    write_whole(page, text.encode())


def _print(found: dict[str, Any], folder: Path) -> None:
    out = console()
    rows: list[tuple[str, ...]] = []
    for part, views in found["accuracy"].items():
        for view, rates in views.items():
            cells = [_rate(rates[top]) for top in ("top1", "top3")]
            counted = rates["top1"]["clusters"] if rates["top1"] else 0
            rows += [(part.replace("_", " "), view, str(counted), *cells)] if counted else []
    out.print(table("trainings", "judged by", "faults", "named first", "among three", rows=rows, right=("faults",)))
    healthy = found["healthy"]
    out.print(
        f"\nhealthy: {healthy['with_warning']} of {healthy['runs']} with a warning, {healthy['with_critical']} critical; "
        f"{found['patients']} trainings, {found['cpu_seconds']} CPU seconds",
        soft_wrap=True,
    )
    missed = [row for row in found["by_fault"] if not all(row["top1"])]
    if missed:
        lines = [(f"{row['ward']}/{row['fault']}", " or ".join(row["expected"][0]), _said(row)) for row in missed]
        out.print(table("not named first", "expected", "said", rows=lines))
    out.print(f"kept in {folder}; {folder / RESULTS} has every figure", soft_wrap=True)


def _said(row: dict[str, Any]) -> str:
    return "; ".join(dict.fromkeys(", ".join(ids) or "nothing" for ids in row["said"]))


def _rate(rate: dict[str, Any] | None) -> str:
    return "-" if rate is None else f"{rate['share']:.0%} ({rate['low']:.0%}–{rate['high']:.0%})"
