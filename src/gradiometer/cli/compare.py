"""`gradiometer compare`: several runs beside each other, in numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gradiometer.cli.commands import CompareRequest
from gradiometer.cli.lists import words
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.cli.progress import tracked
from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.doctor.state import STATES
from gradiometer.errors import UsageError
from gradiometer.store.comparison import (
    ComparedSeries,
    Difference,
    Differences,
    Source,
    chosen,
    differences,
    grouped,
    mean_std,
    quantities,
    read,
    usual_grouping,
)
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.importers import Log, logs_in, open_log
from gradiometer.store.postgres import address_of
from gradiometer.store.reader import Run
from gradiometer.words import counted, number, some

__all__ = ["compare"]

MOST_RUNS = 200
MOST_METRICS = 24
"""Of what matches in the text; --json has them all."""
SIDE_BY_SIDE = 4
"""Runs whose settings stand in columns; of more it is said which value how many have."""
SLOW_RUNS = 20
"""From which a bar is shown while the doctor reads them, 40 ms each and more."""
NUMBERS = ("last", "mean of last 10 %", "best", "at step")
DEEP = 3
"""Folders that a name may spell out."""
MOST_SETTINGS = 20
"""Up to which those that only some runs have are listed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Everything there is to say, by the names of the runs."""

    runs: Mapping[str, Run | Log]
    judged: Mapping[str, Diagnosis]
    """What the doctor says of each."""
    by: str
    groups: Mapping[str, Sequence[str]]
    """Those of several runs."""
    metrics: Mapping[str, Mapping[str, ComparedSeries]]
    """By quantity and run; a run without it is not there."""
    differences: Differences


def compare(request: CompareRequest) -> None:
    """Where each run ended up, means over groups, and the settings that differ."""
    with warnings_in_a_line(), _opened(request.runs) as runs:
        books = {name: quantities(run.names(), run.facts) for name, run in runs.items()}
        if not any(books.values()):
            raise UsageError(
                f"these {len(runs)} runs contain no series yet: there is nothing to compare"
            )
        named = _named(request.metric, books)
        wanted = chosen(list(books.values()), match=request.match, names=named)
        facts = {name: run.facts for name, run in runs.items()}
        found = differences(facts)
        by = request.group or usual_grouping(facts, found)
        groups = {name: own for name, own in grouped(facts, by, found).items() if len(own) > 1}
        shown = wanted if request.json else wanted[:MOST_METRICS]
        readings = {metric: _readings(runs, books, metric) for metric in shown}
        bar = tracked(list(runs), "runs", from_on=SLOW_RUNS)
        made = _Comparison(
            runs=runs,
            judged={name: diagnose(runs[name]) for name in bar},
            by=by,
            groups=groups,
            metrics=readings,
            differences=found,
        )
        if request.json:
            print_json(_plain(made))
        else:
            _print(made, hidden=len(wanted) - len(shown))


@contextmanager
def _opened(paths: list[str]) -> Iterator[dict[str, Run | Log]]:
    """The runs by what sets their paths apart; fewer than two are an error."""
    found = dict.fromkeys(_place(path) for given in paths for path in logs_in(given))
    if len(found) > MOST_RUNS:
        raise UsageError(f"{len(found)} runs at once: at most {MOST_RUNS} can be compared")
    with ExitStack() as stack:
        opened: dict[Path, Run | Log] = {path: open_log(path) for path in found}
        for run in opened.values():
            stack.enter_context(run)
        if len(opened) < 2:
            here = "".join(f": here is only {path}" for path in opened)
            raise UsageError(f"give two runs to compare, or a folder of runs{here}")
        yield dict(zip(_names(list(opened)), opened.values(), strict=True))


def _place(path: Path) -> Path:
    if address_of(path) is not None:
        return path
    absolute = Path(os.path.abspath(path))
    return absolute.parent if absolute.name == DATABASE_NAME else absolute


def _names(paths: Sequence[Path]) -> list[str]:
    """Each path without what all share; of a long rest only the end that tells it from others."""
    shared = Path(os.path.commonpath([path.parent for path in paths]))
    parts = [path.relative_to(shared).parts for path in paths]
    longest = max(map(len, parts))
    ends = range(1, longest + 1) if longest > DEEP else [longest]
    size = next(size for size in ends if len({each[-size:] for each in parts}) == len(parts))
    return ["/".join(each[-size:]) for each in parts]


def _named(metrics: list[str], books: Mapping[str, Mapping[str, Source]]) -> list[str]:
    there = {key for book in books.values() for key in book}
    return list(
        dict.fromkeys(
            name for text in metrics for name in ([text] if text in there else words([text]))
        )
    )


def _readings(
    runs: Mapping[str, Run | Log], books: Mapping[str, Mapping[str, Source]], metric: str
) -> dict[str, ComparedSeries]:
    there = {
        name: read(run, books[name][metric]) for name, run in runs.items() if metric in books[name]
    }
    return {name: reading for name, reading in there.items() if reading is not None}


def _plain(made: _Comparison) -> dict[str, Any]:
    return {
        "runs": {
            name: {
                "path": str(run.path),
                "newest_step": run.newest_step,
                "state": made.judged[name].state,
                "verdict": made.judged[name].verdict,
            }
            for name, run in made.runs.items()
        },
        "grouped_by": made.by,
        "groups": {name: list(own) for name, own in made.groups.items()},
        "metrics": {
            metric: _plain_metric(made, metric, readings)
            for metric, readings in made.metrics.items()
        },
        "differs": [
            {"group": row.group, "name": row.name, "values": dict(row.values)}
            for row in made.differences.differs
        ],
        "equal": dict(made.differences.equal),
        "without_config": list(made.differences.unknown),
    }


def _plain_metric(
    made: _Comparison, metric: str, readings: Mapping[str, ComparedSeries]
) -> dict[str, Any]:
    by_run: dict[str, Any] = {}
    for name, reading in readings.items():
        best = reading.best(metric)
        by_run[name] = {
            "series": reading.series,
            "last": reading.last,
            "last_step": reading.last_step,
            "mean_of_last_tenth": reading.tail,
            "min": reading.low,
            "max": reading.high,
            "best": None if best is None else best[0],
            "best_step": None if best is None else best[1],
        }
    by_group = {}
    for name, own in _groups_with(made, readings):
        ends = _group_numbers(metric, own)
        by_group[name] = {"n": len(own)} | {
            what: None if pair is None else {"mean": pair[0], "std": pair[1]}
            for what, pair in ends.items()
        }
    return {"runs": by_run, "groups": by_group}


def _groups_with(
    made: _Comparison, readings: Mapping[str, ComparedSeries]
) -> Iterator[tuple[str, list[ComparedSeries]]]:
    for name, members in made.groups.items():
        own = [readings[run] for run in members if run in readings]
        if len(own) > 1:
            yield name, own


def _group_numbers(
    metric: str, readings: Sequence[ComparedSeries]
) -> dict[str, tuple[float, float] | None]:
    """Mean and sample standard deviation over runs, of each run's own number."""
    bests = [found[0] for reading in readings if (found := reading.best(metric)) is not None]
    return {
        "last": mean_std([reading.last for reading in readings]),
        "mean_of_last_tenth": mean_std([reading.tail for reading in readings]),
        "best": mean_std(bests) if len(bests) == len(readings) else None,
    }


def _print(made: _Comparison, *, hidden: int) -> None:
    out = console()
    grouping = (
        f", grouped by {made.by}: mean ± standard deviation over n runs" if made.groups else ""
    )
    out.print(f"{len(made.runs)} runs{grouping}")
    _print_states(out, made)
    for metric, readings in made.metrics.items():
        _print_metric(out, made, metric, readings)
    if hidden:
        out.print(f"{hidden} more series match: narrow --match, or use --json")
    _print_differences(out, made)


def _print_states(out: Console, made: _Comparison) -> None:
    """What became of the runs, the doctor's first word on each."""
    by_state = {
        state: [name for name in made.runs if made.judged[name].state == state] for state in STATES
    }
    rows = [(state, some(names, SIDE_BY_SIDE)) for state, names in by_state.items() if names]
    out.print(table("state", "runs", rows=rows))


def _print_metric(
    out: Console, made: _Comparison, metric: str, readings: Mapping[str, ComparedSeries]
) -> None:
    rows = []
    for name, own in _groups_with(made, readings):
        ends = [_plus_minus(pair) for pair in _group_numbers(metric, own).values()]
        rows.append((f"{name} (n = {len(own)})", *ends, ""))
    for name, reading in readings.items():
        best = reading.best(metric) or (None, None)
        rows.append(
            (_spelled(name, metric, reading), *map(number, (reading.last, reading.tail, *best)))
        )
    out.print(table(metric, *NUMBERS, rows=rows, right=NUMBERS))
    without = [name for name in made.runs if name not in readings]
    if without:
        out.print(f"{some(without, SIDE_BY_SIDE)} without {metric}")


def _spelled(name: str, metric: str, reading: ComparedSeries) -> str:
    return name if reading.series == metric else f"{name} ({reading.series})"


def _plus_minus(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{number(pair[0])} ± {number(pair[1])}"


def _print_differences(out: Console, made: _Comparison) -> None:
    found = made.differences
    if len(found.unknown) == len(made.runs):
        out.print("none of these runs has a config")
        return
    if found.unknown:
        out.print(f"{some(found.unknown, SIDE_BY_SIDE)} without a config")
    equal = sum(found.equal.values())
    if not found.differs:
        out.print(f"no setting differs, {equal} are equal")
        return
    told = [row for row in found.differs if len(found.differs) <= MOST_SETTINGS or row.contested]
    beside = len(made.runs) <= SIDE_BY_SIDE
    columns = tuple(made.runs) if beside else ("values",)
    rows = [
        (
            row.name if row.group == "config" else f"{row.group}: {row.name}",
            *([row.values.get(run, "-") for run in made.runs] if beside else [_counted(row, made)]),
        )
        for row in told
    ]
    out.print(table("setting", *columns, rows=rows))
    left = len(found.differs) - len(told)
    only = f"; {left} more are set in some of the runs only: --json lists them" if left else ""
    out.print(
        f"{counted(len(rows), 'setting')} differ{'s' * (len(rows) == 1)}, {equal} are equal{only}"
    )


def _counted(row: Difference, made: _Comparison) -> str:
    counts: dict[str, int] = {}
    for run in made.runs:
        value = row.values.get(run, "-")
        counts[value] = counts.get(value, 0) + 1
    if len(counts) == len(made.runs):
        return f"{len(counts)} different: {some(counts, SIDE_BY_SIDE)}"
    listed = [f"{value} ({counted(count, 'run')})" for value, count in counts.items()]
    return some(listed, SIDE_BY_SIDE)
