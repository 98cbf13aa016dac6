"""`gradiometer clinic`: train the grid, diagnose it, count."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.cli.lists import words
from gradiometer.cli.printing import console, print_json, table
from gradiometer.cli.progress import progress_bar
from gradiometer.errors import UsageError
from gradiometer.store.strictjson import to_json
from gradiometer_labs.cli.commands import ClinicRequest

if TYPE_CHECKING:
    from gradiometer_labs.clinic.grid import ClinicTraining
    from gradiometer_labs.clinic.sweep import SweepRow

__all__ = ["clinic"]

FLOOR = 0.9
"""Top 1 of --quick below which it fails: its trainings are those that are named today."""
RESULTS = "clinic.json"
WARD_RESULTS = "wards.json"


def clinic(request: ClinicRequest) -> int:
    """The exit code: 1 when --quick finds less than it should."""
    if request.sweep:
        return _sweep(request)
    if request.only or request.wild:
        raise UsageError("--only and --wild belong to --sweep")
    if request.wards:
        return _wards(request)
    if request.limit or request.judge or request.stored:
        raise UsageError("--limit, --judge and --stored belong to --wards")
    from gradiometer_labs.clinic.judging import JudgedTraining, JudgeTask
    from gradiometer_labs.clinic.summary import summary
    from gradiometer_labs.clinic.training import TrainTask, needed_weights

    engine, workers = request.engine, request.workers
    trainings = _trainings(request)
    folder = Path(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    for round_ in needed_weights(trainings, folder):
        _do("weights", round_, engine, workers)
    # Seed by seed, so that a clinic that is stopped has seen every fault once before any twice.
    in_turn = sorted(trainings, key=lambda training: training.seed)
    _do(
        "training", [TrainTask(training=each, out=str(folder)) for each in in_turn], engine, workers
    )
    all_judged: list[JudgedTraining] = []
    _do(
        "diagnosis",
        [JudgeTask(training=each, out=str(folder)) for each in trainings],
        engine,
        workers,
        all_judged.append,
    )
    found = summary(all_judged)
    (folder / RESULTS).write_text(to_json(found, indent=1) + "\n", encoding="utf-8")
    if request.report:
        from gradiometer_labs.clinic.report import markdown

        _write(found, Path(request.report), markdown)
    if request.json:
        print_json(found)
    else:
        _print(found, folder)
    return int(request.quick and _fails(found))


def _wards(request: ClinicRequest) -> int:
    """Other people's trainers."""
    from gradiometer_labs.clinic.judging import JudgedTraining, JudgeTask
    from gradiometer_labs.clinic.outsider import OutsiderTask, check_command
    from gradiometer_labs.clinic.patients import PatientTask, ward_patients, write_card
    from gradiometer_labs.clinic.training import kept_record
    from gradiometer_labs.clinic.wardreport import ward_lines, ward_markdown
    from gradiometer_labs.clinic.wardsummary import ward_summary

    if request.labs or request.quick:
        raise UsageError("--wards has its own patients: leave out --labs and --quick")
    if request.judge:
        check_command(request.judge)
    wards = words(request.wards)
    patients = ward_patients(
        () if wards == ["all"] else wards,
        only=words(request.faults),
        each=request.seeds,
        controls=request.controls,
        limit=request.limit,
    )
    folder, engine, workers = Path(request.out), request.engine, request.workers
    if request.stored:
        patients = [each for each in patients if kept_record(folder / each.name, each)]
        if not patients:
            raise UsageError(f"--stored: {folder} holds none of these patients")
    folder.mkdir(parents=True, exist_ok=True)
    if not request.stored:
        tasks = [PatientTask(patient=each, out=str(folder)) for each in patients]
        _do("training", tasks, engine, workers)
    write_card(folder)
    judged: list[JudgedTraining] = []
    judging = [JudgeTask(training=each, out=str(folder)) for each in patients]
    _do("diagnosis", judging, engine, workers, judged.append)
    outside: list[list[str]] = []
    if request.judge:
        asked = [
            OutsiderTask(training=each, out=str(folder), command=request.judge) for each in patients
        ]
        _do("their diagnosis", asked, engine, workers, outside.append)
    found = ward_summary(judged, outside)
    (folder / WARD_RESULTS).write_text(to_json(found, indent=1) + "\n", encoding="utf-8")
    if request.report:
        _write(found, Path(request.report), ward_markdown)
    if request.json:
        print_json(found)
    else:
        for line in ward_lines(found):
            console().print(line, soft_wrap=True, markup=False)
    return 0


def _sweep(request: ClinicRequest) -> int:
    from gradiometer_labs.clinic.cases import clinic_cases, labelled_cases, synthetic_cases
    from gradiometer_labs.clinic.sweep import plain_rows, sweep

    if request.quick or request.labs or request.faults or request.report:
        raise UsageError("--sweep trains nothing: leave out --quick, --labs, --faults and --report")
    with ExitStack() as stack:
        cases = list(synthetic_cases())
        cases += clinic_cases(Path(request.out), stack)
        cases += labelled_cases(Path(request.wild), stack) if request.wild else ()
        with progress_bar("sweep") as show:
            rows = sweep(
                cases,
                only=words(request.only),
                progress=lambda done, total: show(done, total, unit="thresholds"),
            )
        content = plain_rows(rows, cases)
    if request.json:
        print_json(content)
    else:
        _print_sweep(content)
    return 0


def _print_sweep(content: dict[str, Any]) -> None:
    out = console()
    counts = ", ".join(
        f"{each['count']} {each['label']} ({each['origin']})" for each in content["logs"]
    )
    out.print(f"{counts}\n", soft_wrap=True)
    moving = [row for row in content["rows"] if row.moves]
    columns = ("rule, and its threshold", "value", "found", "alarms", "elsewhere")
    lines = [line for row in moving for line in _lines_of(row)]
    if lines:
        out.print(table(*columns, rows=lines, right=columns[1:]))
    still = len(content["rows"]) - len(moving)
    out.print(
        f"{len(moving)} of {len(content['rows'])} pairs of rule and threshold move;"
        f" {still} say the same on these logs from a quarter of their value to four times it.",
        soft_wrap=True,
    )


def _lines_of(row: SweepRow) -> list[tuple[str, ...]]:
    """A line for each stretch of values that say the same; the one in force is named."""
    lines: list[tuple[str, ...]] = []
    for place, (values, count) in enumerate(row.stretches):
        ends = f"{values[0]:.3g}" + (f" to {values[-1]:.3g}" if len(values) > 1 else "")
        now = f", now {row.value:g}" if row.value in values and len(values) > 1 else ""
        now = ", now" if row.value in values and len(values) == 1 else now
        lines.append(
            (
                (row.rule, f"  {row.threshold}", "")[min(place, 2)],
                ends + now,
                f"{count.found} of {count.of}",
                f"{count.alarms} of {count.healthy}",
                str(count.elsewhere),
            )
        )
    return lines


def _trainings(request: ClinicRequest) -> list[ClinicTraining]:
    from gradiometer_labs.clinic.grid import grid, quick_grid

    if request.quick:
        if request.labs or request.faults:
            raise UsageError("--quick has its own patients: leave out --labs and --faults")
        return quick_grid()
    found = grid(
        labs=words(request.labs),
        only=words(request.faults),
        seeds=request.seeds,
        controls=request.controls,
    )
    if not found:
        raise UsageError("nobody to treat: no fault of these labs has one of these names")
    return found


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
    with progress_bar(label) as show:
        yield lambda done, total: show(done, total, unit="patients")


def _fails(found: dict[str, Any]) -> bool:
    rate = found["accuracy"]["all"]["full"]["top1"]
    return rate is None or rate["share"] < FLOOR or found["healthy"]["with_warning"] > 0


def _write(found: dict[str, Any], page: Path, markdown: Callable[..., str]) -> None:
    """The page, and its picture in `pictures/` beside it."""
    from gradiometer.plots.files import write_whole
    from gradiometer.plots.style import render, styled
    from gradiometer_labs.clinic.confusion import draw_confusion

    picture = page.parent / "pictures" / f"{page.stem}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        content = render(draw_confusion(found["confusion"]), "png")
    write_whole(picture, content)
    command = " ".join(["gradiometer", *sys.argv[1:]])
    told = (
        f"Measured on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}."
    )
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
    out.print(
        table(
            "trainings",
            "judged by",
            "faults",
            "named first",
            "among three",
            rows=rows,
            right=("faults",),
        )
    )
    healthy = found["healthy"]
    out.print(
        f"\nhealthy: {healthy['with_warning']} of {healthy['runs']} with a warning,"
        f" {healthy['with_critical']} critical; {found['patients']} trainings,"
        f" {found['cpu_seconds']} CPU seconds",
        soft_wrap=True,
    )
    missed = [row for row in found["by_fault"] if not all(row["top1"])]
    if missed:
        lines = [
            (f"{row['ward']}/{row['fault']}", " or ".join(row["expected"][0]), _said(row))
            for row in missed
        ]
        out.print(table("not named first", "expected", "said", rows=lines))
    out.print(f"kept in {folder}; {folder / RESULTS} has every figure", soft_wrap=True)


def _said(row: dict[str, Any]) -> str:
    return "; ".join(dict.fromkeys(", ".join(ids) or "nothing" for ids in row["said"]))


def _rate(rate: dict[str, Any] | None) -> str:
    return "-" if rate is None else f"{rate['share']:.0%} ({rate['low']:.0%}–{rate['high']:.0%})"
