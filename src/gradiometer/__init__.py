"""Gradiometer: an instrument for the gradients of reinforcement-learning training in PyTorch.

    import gradiometer as gm

    with gm.watch(model, optimizer, run="runs/ppo-7") as meter:
        ...
    run = gm.load("runs/ppo-7")

The names load on first use, so reading a run never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradiometer.version import __version__

if TYPE_CHECKING:
    from gradiometer.capture.meter import Meter
    from gradiometer.capture.watch import watch
    from gradiometer.doctor.diagnosis import Diagnosis, diagnose
    from gradiometer.doctor.several import RunsDiagnosis, diagnose_runs
    from gradiometer.errors import (
        GradiometerError,
        GradiometerWarning,
        NonFiniteGradient,
        StopTraining,
        UsageError,
    )
    from gradiometer.maths.groups import RolloutFilter
    from gradiometer.probes.anatomy import Anatomy, anatomy
    from gradiometer.probes.audit import Audit, audit
    from gradiometer.probes.confirm import Experiment
    from gradiometer.probes.helped import StepCheck, helped
    from gradiometer.probes.replicates import Replicates, replicates
    from gradiometer.store import sinks
    from gradiometer.store.importers import load
    from gradiometer.store.logs import Log
    from gradiometer.store.reader import Run

__all__ = [
    "Anatomy",
    "Audit",
    "Diagnosis",
    "Experiment",
    "GradiometerError",
    "GradiometerWarning",
    "Log",
    "Meter",
    "NonFiniteGradient",
    "Replicates",
    "RolloutFilter",
    "Run",
    "RunsDiagnosis",
    "StepCheck",
    "StopTraining",
    "UsageError",
    "__version__",
    "anatomy",
    "audit",
    "diagnose",
    "diagnose_runs",
    "helped",
    "load",
    "replicates",
    "sinks",
    "watch",
]

_HOME = {
    "Anatomy": "probes.anatomy",
    "Audit": "probes.audit",
    "Diagnosis": "doctor.diagnosis",
    "Experiment": "probes.confirm",
    "GradiometerError": "errors",
    "GradiometerWarning": "errors",
    "Log": "store.logs",
    "Meter": "capture.meter",
    "NonFiniteGradient": "errors",
    "Replicates": "probes.replicates",
    "RolloutFilter": "maths.groups",
    "Run": "store.reader",
    "RunsDiagnosis": "doctor.several",
    "StepCheck": "probes.helped",
    "StopTraining": "errors",
    "UsageError": "errors",
    "anatomy": "probes.anatomy",
    "audit": "probes.audit",
    "diagnose": "doctor.diagnosis",
    "diagnose_runs": "doctor.several",
    "helped": "probes.helped",
    "load": "store.importers",
    "replicates": "probes.replicates",
    "sinks": "store.sinks",
    "watch": "capture.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradiometer' has no attribute {name!r}")
    try:
        module = import_module(f"gradiometer.{_HOME[name]}")
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        from gradiometer.errors import MissingExtra

        raise MissingExtra("torch", "torch", f"gradiometer.{name}") from problem
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
