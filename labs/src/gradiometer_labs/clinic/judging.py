"""One run diagnosed three times: from all that was kept, from its scalar log alone, and by public
thresholds.

The scalar log is what another tool would have: the settings, and those logged scalars that some
other library logs too (they have an alias in the catalogue), and the norm of the whole gradient,
which TRL and verl log. When the doctor could first have said it is found by judging copies of the
run that end earlier.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer import metrics
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding
from gradiometer.store.batches import rewind
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run, load
from gradiometer_labs.clinic.grid import ClinicTraining
from gradiometer_labs.clinic.patients import READINGS, unpacked
from gradiometer_labs.clinic.thresholds import public_findings
from gradiometer_labs.clinic.training import TrainingRecord, kept_record
from gradiometer_labs.wards.ward import Patient

__all__ = ["EARLY", "MEASURED", "CountedFinding", "JudgeTask", "JudgedTraining", "scalar_log"]

NORM, MEASUREMENTS = "grad/all/norm/raw", "meter/interval"
MEASURED = 5
"""Measured steps within which a wiring fault should be said."""
EARLY = (0.1, 0.25, 0.5)
"""Shares of a run after which the doctor is asked besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFinding:
    """A finding, as far as it is counted."""

    id: str
    severity: str
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTraining:
    """A training, what it came to, and what was said about it."""

    training: ClinicTraining | Patient
    record: TrainingRecord
    measured: int
    """Steps that were measured."""
    last_step: int
    full: list[CountedFinding]
    scalars: list[CountedFinding]
    public: list[str]
    early: Mapping[str, list[str]] = field(default_factory=dict)
    """The ids shown after the first measured steps (`5`) and after shares of the run (`0.1`,
    ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTask:
    """A task for an engine: diagnose what was trained."""

    training: ClinicTraining | Patient
    out: str

    def __call__(self, subject: Any = None) -> JudgedTraining:
        """What was said."""
        folder = Path(self.out) / self.training.name
        record = kept_record(folder, self.training)
        assert record is not None, f"{folder} was not trained"
        if record.ended and not (folder / READINGS).exists() and not (folder / "run").exists():
            return JudgedTraining(
                training=self.training,
                record=record,
                measured=0,
                last_step=0,
                full=[],
                scalars=[],
                public=[],
            )
        with unpacked(folder) as place, load(place) as run:
            assert isinstance(run, Run)
            # a step that made no gradient is measured too
            told = next((x for x in (MEASUREMENTS, NORM) if x in run.names()), None)
            steps = np.zeros(0, np.int64) if told is None else run.series(told)[0]
            last = run.newest_step or 0
            log = scalar_log(run)
            return JudgedTraining(
                training=self.training,
                record=record,
                measured=len(steps),
                last_step=last,
                full=_said(diagnose(run).findings),
                scalars=_said(diagnose(log).findings),
                public=public_findings(RunData(log)),
                early=({} if self.training.healthy else _early(place / DATABASE_NAME, steps, last)),
            )


def scalar_log(run: Run) -> Log:
    """The run as another tool would have logged it."""
    rows: dict[int, dict[str, float]] = {}
    for name in run.names():
        found = metrics.resolve(name)
        if name != NORM and (found is None or found[0].origin != "logged" or not found[0].aliases):
            continue
        for step, value in zip(*run.series(name), strict=True):
            rows.setdefault(int(step), {})["grad_norm" if name == NORM else name] = float(value)
    config = {"config": run.facts.get("config")}
    return Log(run.path, name="log", run_id="log", rows=sorted(rows.items()), facts=config)


def _said(findings: tuple[Finding, ...]) -> list[CountedFinding]:
    return [
        CountedFinding(id=each.id, severity=each.severity, basis=each.basis) for each in findings
    ]


def _early(database: Path, measured: Any, last: int) -> dict[str, list[str]]:
    """The first three findings of the run, had it ended earlier."""
    ends = {str(share): int(share * last) for share in EARLY}
    if len(measured) >= MEASURED:
        ends[str(MEASURED)] = int(measured[MEASURED - 1])
    return {name: _had_it_ended(database, end) for name, end in ends.items()}


def _had_it_ended(database: Path, step: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="gradiometer-clinic-") as folder:
        copy = Path(folder) / DATABASE_NAME
        shutil.copyfile(database, copy)
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            rewind(db, step)
        with load(folder) as run:
            return [each.id for each in diagnose(run).findings if each.severity != "info"][:3]
