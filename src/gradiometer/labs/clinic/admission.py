"""One patient trained, or found trained already: what is done once is kept, so a clinic that was stopped goes on."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradiometer import labs
from gradiometer.labs.clinic.patients import Patient
from gradiometer.labs.clinic.wards import WARDS
from gradiometer.labs.config import Progress, configure
from gradiometer.labs.lab import Ward

__all__ = ["Admission", "Admit", "Weights", "admitted", "needed_weights"]

RECORD = "admission.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a training came to."""

    overrides: list[str]
    first_return: float
    """The first the training told of; NaN if it never did."""
    mean_return: float
    """The last it told of."""
    seconds: float
    """CPU seconds of the training's process, which does nothing else."""
    ended: str
    """Empty, or what the training died of: a NaN may end it, and what was measured till then is judged."""


def admitted(folder: Path, patient: Patient) -> Admission | None:
    """The kept record of a patient that was trained with just these settings; None if there is none."""
    try:
        kept = Admission(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return kept if kept.overrides == patient.overrides else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """A task for an engine: train the patient into its folder, unless that was done."""

    patient: Patient
    out: str

    def __call__(self, subject: Any = None) -> str:
        """The folder of its run."""
        folder = Path(self.out) / self.patient.name
        if admitted(folder, self.patient) is None:
            shutil.rmtree(folder, ignore_errors=True)
            made = _train(self.patient, folder / "run", _start_of(self.patient, Path(self.out)))
            (folder / RECORD).write_text(json.dumps(asdict(made)), encoding="utf-8")
        return str(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A task for an engine: train what some patients start from, unless that was done."""

    ward: str
    which: str
    """base: where everybody starts; trained: where the converged ones do."""
    out: str

    def __call__(self, subject: Any = None) -> str:
        """The file."""
        from gradiometer.labs.weights import save_weights

        place = _weights_file(Path(self.out), self.ward, self.which)
        if not place.exists():
            ward = WARDS[self.ward]
            own = ward.trained if self.which == "trained" else ward.base or ()
            base = _start_override(ward, Path(self.out)) if self.which == "trained" else []
            lab = labs.find(ward.lab)
            result = lab.train(configure(lab.config(), [*ward.overrides, *base, *own, "run=null", "seed=7"]), None)
            save_weights(result.model, place)
        return str(place)


def needed_weights(patients: list[Patient], out: Path) -> list[list[Weights]]:
    """In two rounds: what everybody starts from, then what is trained on from there."""
    wards = dict.fromkeys(patient.ward for patient in patients)
    converged = dict.fromkeys(patient.ward for patient in patients if patient.kind == "converged")
    first = [Weights(ward=name, which="base", out=str(out)) for name in wards if WARDS[name].base is not None]
    return [first, [Weights(ward=name, which="trained", out=str(out)) for name in converged]]


def _weights_file(out: Path, ward: str, which: str) -> Path:
    return out / "weights" / f"{ward}-{which}.pt"


def _start_override(ward: Ward, out: Path) -> list[str]:
    return [] if ward.base is None else [f"start={_weights_file(out, ward.name, 'base')}"]


def _start_of(patient: Patient, out: Path) -> list[str]:
    if patient.kind == "converged":
        return [f"start={_weights_file(out, patient.ward, 'trained')}"]
    return _start_override(patient.home, out)


def _train(patient: Patient, run: Path, start: list[str]) -> Admission:
    returns: list[float] = []

    def progress(now: Progress) -> None:
        if now.unit == "steps" and math.isfinite(now.mean_return):
            returns.append(now.mean_return)

    lab, began, ended = labs.find(patient.home.lab), time.process_time(), ""
    try:
        lab.train(configure(lab.config(), [*patient.overrides, *start, f"run={run}"]), progress)
    except (RuntimeError, ValueError, ArithmeticError) as problem:  # as torch's samplers on a NaN
        if not (run / "run.db").exists():
            raise
        ended = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200] if str(problem) else ''}"
    return Admission(
        overrides=patient.overrides,
        first_return=returns[0] if returns else math.nan,
        mean_return=returns[-1] if returns else math.nan,
        seconds=time.process_time() - began,
        ended=ended,
    )
