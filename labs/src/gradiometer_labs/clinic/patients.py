"""Patients of the wards: trained where they are missing, and stored small.

A patient's folder holds its record (`admission.json`: what it drew, what it came to) and its
readings (`run.db.xz`, 131 kB in the median): judging again needs no training.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import shutil
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gradiometer.errors import GradiometerWarning, UnknownName, UsageError
from gradiometer.store.database import DATABASE_NAME
from gradiometer_labs.clinic.training import RECORD, TrainingRecord, kept_record
from gradiometer_labs.wards.ward import HEALTHY, WARDS, Patient, find_ward

__all__ = ["READINGS", "PatientTask", "unpacked", "ward_patients", "write_card"]

READINGS = "run.db.xz"
SHARE = 0.2
"""Of the episodes: the first and the last of them are the return before and after training."""


def ward_patients(
    wards: Sequence[str], *, only: Sequence[str] = (), each: int, controls: int, limit: int = 0
) -> list[Patient]:
    """Those of some wards, or of all; `limit` keeps the first of each ward: every setup once
    healthy, then every fault once."""
    found: list[Patient] = []
    for name in wards or WARDS:
        ward = find_ward(name)
        own = ward.patients(each=each, controls=controls)
        chosen = (one for one in own if not only or one.fault in only)
        found += islice(chosen, limit or None)
    known = {HEALTHY, *(fault for name in wards or WARDS for fault in find_ward(name).faults)}
    for fault in only:
        if fault not in known:
            raise UnknownName("fault", fault, sorted(known), hint="none stands for the controls.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientTask:
    """A task for an engine: train a patient into its folder, unless that was done."""

    patient: Patient
    out: str

    def __call__(self, subject: Any = None) -> str:
        """The folder."""
        folder = Path(self.out) / self.patient.name
        if kept_record(folder, self.patient) is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with TemporaryDirectory(prefix="gradiometer-ward-") as scratch:
                made = _train(self.patient, Path(scratch) / "run")
                if (database := Path(scratch) / "run" / DATABASE_NAME).exists():
                    _pack(database, folder / READINGS)
            (folder / RECORD).write_text(json.dumps(asdict(made)), encoding="utf-8")
        return str(folder)


def _train(patient: Patient, run: Path) -> TrainingRecord:
    began, ended = time.process_time(), ""
    returns: Sequence[float] = ()
    # Trainers print, and --json prints too.
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", GradiometerWarning)
        warnings.simplefilter("ignore", UserWarning)  # torch's own, of what is broken on purpose
        try:
            returns = patient.train(run)
        except (RuntimeError, ValueError, ArithmeticError) as problem:
            # what we refuse to watch is a patient too: nothing was said of it
            if not isinstance(problem, UsageError) and not (run / DATABASE_NAME).exists():
                raise
            ended = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
    count = max(1, int(SHARE * len(returns)))
    return TrainingRecord(
        overrides=patient.overrides,
        first_return=float(np.mean(returns[:count])) if returns else math.nan,
        mean_return=float(np.mean(returns[-count:])) if returns else math.nan,
        seconds=time.process_time() - began,
        ended=ended,
    )


def _pack(database: Path, readings: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("DELETE FROM vectors")  # sketches and pairs, for the page: no rule reads them
        db.execute("VACUUM")
    readings.write_bytes(lzma.compress(database.read_bytes()))


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """The folder of the run, from its readings where it was packed."""
    if not (folder / READINGS).exists():
        yield folder / "run"
        return
    with TemporaryDirectory(prefix="gradiometer-ward-") as scratch:
        packed = (folder / READINGS).read_bytes()
        (Path(scratch) / DATABASE_NAME).write_bytes(lzma.decompress(packed))
        yield Path(scratch)


CARD = """\
---
license: apache-2.0
pretty_name: Gradiometer clinic
tags: [reinforcement-learning, debugging, anomaly-detection]
---

# Trainings with one wrong line

{count} short trainings of reinforcement learning in other people's trainers ({wards}): {faulty}
with one known fault, {healthy} healthy. Each drew its task, network, learning rate, batch size,
discount and seed from a random stream of its own.

- `WARD/ALGORITHM-TASK/FAULT-NUMBER/admission.json`: the settings it drew, its true mean return over
  the first and the last fifth of its episodes, CPU seconds, and what it died of, if it did. The
  fault `none` is a healthy training.
- `.../run.db.xz`: what was measured, an SQLite file (xz). Unpacked as `run.db` into a folder it is
  a run: `gradiometer doctor FOLDER`.

A fault is a changed method or argument of the real trainer; `gradiometer_labs/wards` holds the code
and the findings that would name it. Score another tool on the scalar logs:
`gradiometer clinic --wards all --out THIS_FOLDER --judge "their command {{log}}"`.

Not for: comparing trainers or algorithms. The trainings are as short as learning allows.
"""


def write_card(folder: Path) -> None:
    """A dataset card beside the readings: what is there now."""
    found = [path.relative_to(folder).parts for path in folder.glob(f"*/*/*/{READINGS}")]
    healthy = sum(parts[2].startswith(f"{HEALTHY}-") for parts in found)
    text = CARD.format(
        count=len(found),
        faulty=len(found) - healthy,
        healthy=healthy,
        wards=", ".join(find_ward(name).summary for name in sorted({parts[0] for parts in found})),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
