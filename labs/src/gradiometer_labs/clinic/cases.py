"""Logs whose truth is known, each read once: what a sweep of thresholds is counted on.

The clinic's kept runs, a folder of labelled logs of other people, and made-up ones.

A folder of labelled logs holds `labels.jsonl`, a line a log: `id`, `files`, `state` (healthy,
concern, not-learning, broken, ...) and `accept`, the findings that would name what is wrong. The
files are in the folder `id` beside it, or in `logs.tar.xz`.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradiometer.doctor.rundata import RunData
from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.store.importers import logs_in, open_log
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run, load
from gradiometer_labs.clinic.grid import ClinicTraining, grid, quick_grid
from gradiometer_labs.clinic.judging import scalar_log
from gradiometer_labs.clinic.training import kept_record
from gradiometer_labs.synthetic import healthy_logs, sick_logs

__all__ = ["LabelledCase", "clinic_cases", "labelled_cases", "synthetic_cases"]

LABELS, ARCHIVE = "labels.jsonl", "logs.tar.xz"
SYNTHETIC_HEALTHY, SYNTHETIC_SICK = 10, 6
"""Seeds of each kind."""
MOST_SEEDS = 9
"""Of a fault or a control, that are looked for among the kept runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCase:
    """A log as rules read it, and what a careful reader says of it."""

    name: str
    origin: str
    """clinic, scalars (the clinic's runs as another tool would have logged them), labelled or
    synthetic."""
    data: RunData
    healthy: bool
    accept: frozenset[str]
    """Findings that name what is wrong."""


def clinic_cases(folder: Path, stack: ExitStack) -> Iterator[LabelledCase]:
    """The trainings of the grid that are kept there; none is trained. `stack` closes the runs."""
    for training in _kept(folder):
        run = load(folder / training.name / "run")
        assert isinstance(run, Run)
        stack.enter_context(run)
        accept = frozenset(id for expected in training.expected for id in expected)
        known: dict[str, Any] = {"healthy": training.healthy, "accept": accept}
        yield LabelledCase(name=training.name, origin="clinic", data=RunData(run), **known)
        scalars = RunData(scalar_log(run))
        yield LabelledCase(name=training.name, origin="scalars", data=scalars, **known)


def _kept(folder: Path) -> list[ClinicTraining]:
    """At most as many seeds as anybody has trained: what is not there is left out."""
    trainings = [*grid(seeds=MOST_SEEDS, controls=MOST_SEEDS), *quick_grid()]
    return [each for each in trainings if kept_record(folder / each.name, each) is not None]


def synthetic_cases(
    healthy: int = SYNTHETIC_HEALTHY, sick: int = SYNTHETIC_SICK
) -> Iterator[LabelledCase]:
    """Made-up logs, of this many seeds each."""
    for each in (*healthy_logs(healthy), *sick_logs(sick)):
        yield LabelledCase(
            name=each.log.name,
            origin="synthetic",
            data=RunData(each.log),
            healthy=not each.accept,
            accept=frozenset(each.accept),
        )


def labelled_cases(folder: Path, stack: ExitStack) -> Iterator[LabelledCase]:
    """Other people's logs that can be read, with their labels."""
    rows = _labels(folder)
    with _files(folder) as place:
        for row in rows:
            for data in _opened(place / row["id"], row["files"], stack):
                yield LabelledCase(
                    name=row["id"],
                    origin="labelled",
                    data=data,
                    healthy=row["state"] == "healthy",
                    accept=frozenset(row.get("accept") or ()),
                )


def _labels(folder: Path) -> list[dict[str, Any]]:
    try:
        text = (folder / LABELS).read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as problem:
        raise UsageError(f"{folder} holds no {LABELS} that can be read: {problem}") from problem
    lacking = [key for row in rows for key in ("id", "files", "state") if key not in row]
    if lacking:
        raise UsageError(f"{folder / LABELS}: a line has no {lacking[0]!r}")
    return rows


@contextmanager
def _files(folder: Path) -> Iterator[Path]:
    if not (folder / ARCHIVE).exists():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="gradiometer-sweep-") as scratch:
        with tarfile.open(folder / ARCHIVE) as archive:
            archive.extractall(scratch, filter="data")
        yield Path(scratch)


def _opened(place: Path, files: Sequence[str], stack: ExitStack) -> list[RunData]:
    """The longest log of those files, wholly read; nothing where none can be."""
    path = place / files[0] if len(files) == 1 else place
    found: list[Run | Log] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradiometerWarning)
        try:
            for each in logs_in(path):
                found.append(open_log(each))  # noqa: PERF401  (kept when the next cannot be read)
        except UsageError:
            pass
    for log in found:
        stack.enter_context(log)
    found.sort(key=lambda log: -len(log.steps()["step"]))
    return [RunData(each) for each in found[:1]]
