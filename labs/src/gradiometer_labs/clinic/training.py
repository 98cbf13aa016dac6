"""One training of the grid, or its kept record: a clinic that was stopped goes on from there."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gradiometer_labs as labs
from gradiometer_labs.clinic.grid import SETUPS, ClinicTraining
from gradiometer_labs.config import TrainingProgress, configure
from gradiometer_labs.lab import ClinicSetup
from gradiometer_labs.wards.ward import Patient

__all__ = ["TrainTask", "TrainingRecord", "WeightsTask", "kept_record", "needed_weights"]

RECORD = "admission.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What a training came to."""

    overrides: list[str]
    first_return: float
    """The first the training told of; NaN if it never did."""
    mean_return: float
    """The last it told of."""
    seconds: float
    """CPU seconds of the training's process, which does nothing else."""
    ended: str
    """Empty, or what the training died of: a NaN may end it, and what was measured till then is
    judged."""


def kept_record(folder: Path, training: ClinicTraining | Patient) -> TrainingRecord | None:
    """The record of a training with just these settings; None if there is none."""
    try:
        kept = TrainingRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return kept if kept.overrides == training.overrides else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTask:
    """A task for an engine: train into the training's folder, unless that was done."""

    training: ClinicTraining
    out: str

    def __call__(self, subject: Any = None) -> str:
        """The folder of its run."""
        folder = Path(self.out) / self.training.name
        if kept_record(folder, self.training) is None:
            shutil.rmtree(folder, ignore_errors=True)
            made = _train(self.training, folder / "run", _start_of(self.training, Path(self.out)))
            (folder / RECORD).write_text(json.dumps(asdict(made)), encoding="utf-8")
        return str(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsTask:
    """A task for an engine: train what some trainings start from, unless that was done."""

    setup: str
    which: str
    """base: where all start; trained: where the converged ones do."""
    out: str

    def __call__(self, subject: Any = None) -> str:
        """The file."""
        from gradiometer_labs.weights import save_weights

        place = _weights_file(Path(self.out), self.setup, self.which)
        if not place.exists():
            setup = SETUPS[self.setup]
            own = setup.trained if self.which == "trained" else setup.base or ()
            base = _start_override(setup, Path(self.out)) if self.which == "trained" else []
            lab = labs.find(setup.lab)
            result = lab.train(
                configure(lab.config(), [*setup.overrides, *base, *own, "run=null", "seed=7"]), None
            )
            save_weights(result.model, place)
        return str(place)


def needed_weights(trainings: list[ClinicTraining], out: Path) -> list[list[WeightsTask]]:
    """In two rounds: what all start from, then what is trained on from there."""
    setups = dict.fromkeys(training.setup for training in trainings)
    converged = dict.fromkeys(
        training.setup for training in trainings if training.kind == "converged"
    )
    first = [
        WeightsTask(setup=name, which="base", out=str(out))
        for name in setups
        if SETUPS[name].base is not None
    ]
    return [first, [WeightsTask(setup=name, which="trained", out=str(out)) for name in converged]]


def _weights_file(out: Path, setup: str, which: str) -> Path:
    return out / "weights" / f"{setup}-{which}.pt"


def _start_override(setup: ClinicSetup, out: Path) -> list[str]:
    return [] if setup.base is None else [f"start={_weights_file(out, setup.name, 'base')}"]


def _start_of(training: ClinicTraining, out: Path) -> list[str]:
    if training.kind == "converged":
        return [f"start={_weights_file(out, training.setup, 'trained')}"]
    return _start_override(training.clinic_setup, out)


def _train(training: ClinicTraining, run: Path, start: list[str]) -> TrainingRecord:
    returns: list[float] = []

    def progress(now: TrainingProgress) -> None:
        if now.unit == "steps" and math.isfinite(now.mean_return):
            returns.append(now.mean_return)

    lab, began, ended = labs.find(training.clinic_setup.lab), time.process_time(), ""
    try:
        lab.train(configure(lab.config(), [*training.overrides, *start, f"run={run}"]), progress)
    except (RuntimeError, ValueError, ArithmeticError) as problem:  # as torch's samplers on a NaN
        if not (run / "run.db").exists():
            raise
        ended = (
            f"{type(problem).__name__}:"
            f" {str(problem).splitlines()[0][:200] if str(problem) else ''}"
        )
    return TrainingRecord(
        overrides=training.overrides,
        first_return=returns[0] if returns else math.nan,
        mean_return=returns[-1] if returns else math.nan,
        seconds=time.process_time() - began,
        ended=ended,
    )
