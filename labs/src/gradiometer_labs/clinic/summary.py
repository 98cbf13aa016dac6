"""All figures of a clinic in one plain document: what --json prints and the report is written
from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from gradiometer.doctor.faultmap import FAULT_IDS
from gradiometer.doctor.rule import rules
from gradiometer_labs.clinic import scoring
from gradiometer_labs.clinic.grid import ClinicTraining
from gradiometer_labs.clinic.judging import EARLY, MEASURED, JudgedTraining

__all__ = [
    "VIEWS",
    "accuracy",
    "by_fault",
    "detection",
    "healthy_runs",
    "precision",
    "summary",
]

VIEWS: dict[str, scoring.Names] = {
    "full": scoring.full,
    "scalars": scoring.scalars,
    "public": scoring.public,
}
"""What was looked at: our store, a scalar log, and a scalar log with public thresholds."""
PARTS: dict[str, Callable[[JudgedTraining], bool]] = {
    "all": lambda each: True,
    "tuned": lambda each: not each.training.held_out,
    "held_out": lambda each: each.training.held_out,
}
CONFUSABLE = (
    ("F1", "F2"),
    ("F3", "healthy"),
    ("F15", "F33"),
    ("F15", "F25"),
    ("F33", "F25"),
    ("F16", "F1"),
    ("F16", "healthy"),
    ("F17", "healthy"),
    ("F19", "F18"),
    ("F36", "F8"),
    ("F45", "F46"),
)
"""Pairs of the failure catalogue that are easily taken for each other."""


def summary(all_judged: Sequence[JudgedTraining]) -> dict[str, Any]:
    """The document."""
    broken = [each for each in all_judged if not each.training.healthy]
    without_harm = scoring.harmless(all_judged)
    usual = [each for each in broken if _of_lab(each).usual]
    harmful = [
        each for each in usual if (each.training.setup, each.training.fault) not in without_harm
    ]
    harmless = [
        each for each in usual if (each.training.setup, each.training.fault) in without_harm
    ]
    return {
        "patients": len(all_judged),
        "faults": len(
            {(_of_lab(each).clinic_setup.lab, _of_lab(each).faults[0][0].name) for each in usual}
        ),
        "cpu_seconds": round(sum(each.record.seconds for each in all_judged), 1),
        "accuracy": {part: accuracy(filter(chosen, harmful)) for part, chosen in PARTS.items()},
        "harmless": {
            "faults": sorted({_label(each) for each in harmless}),
            "accuracy": accuracy(harmless),
        },
        "doses": {
            dose: accuracy(each for each in broken if _of_lab(each).dose == dose)
            for dose in ("mild", "usual", "severe")
        },
        "doubles": accuracy(each for each in broken if len(_of_lab(each).faults) > 1),
        "healthy": healthy_runs([each for each in all_judged if each.training.healthy]),
        "detection": detection(harmful),
        "precision": precision(all_judged),
        "confusion": {
            row: dict(counts) for row, counts in sorted(scoring.confusion(all_judged).items())
        },
        "confusable": [_confused(one, other, all_judged) for one, other in CONFUSABLE],
        "by_fault": by_fault(broken, without_harm),
    }


def _of_lab(judged: JudgedTraining) -> ClinicTraining:
    assert isinstance(judged.training, ClinicTraining)
    return judged.training


def _label(judged: JudgedTraining) -> str:
    return f"{judged.training.setup}/{judged.training.fault}"


def accuracy(cases: Iterable[JudgedTraining]) -> dict[str, Any]:
    """Top 1 and top 3 by what was looked at."""
    chosen = list(cases)
    return {
        view: {
            f"top{within}": _plain(
                scoring.cluster_rate(
                    (each.training.cluster, scoring.named(each, names(each), within=within))
                    for each in chosen
                )
            )
            for within in (1, 3)
        }
        for view, names in VIEWS.items()
    }


def _plain(rate: scoring.Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {name: _rounded(value) for name, value in asdict(rate).items()}


def _rounded(value: float) -> float:
    return round(value, 4) if isinstance(value, float) else value


def healthy_runs(controls: Sequence[JudgedTraining]) -> dict[str, Any]:
    """False alarms: how many there were, and how many there may be at most."""
    warned = [each for each in controls if scoring.alarms(each)]
    alarms, steps = sum(map(scoring.alarms, controls)), sum(each.measured for each in controls)
    return {
        "runs": len(controls),
        "with_warning": len(warned),
        "with_critical": sum(scoring.alarms(each, at_least="critical") > 0 for each in controls),
        "upper_bound": (
            _rounded(scoring.upper_bound(len(warned), len(controls))) if controls else None
        ),
        "alarms_per_1000_steps": _rounded(1000 * alarms / steps) if steps else None,
        "alarms_per_run": _rounded(alarms / len(controls)) if controls else None,
        "measured_steps": steps,
        "warned": [
            {
                "run": each.training.name,
                "said": [said.id for said in each.full if said.severity != "info"],
            }
            for each in warned
        ],
    }


def detection(cases: Sequence[JudgedTraining]) -> dict[str, Any]:
    """Wiring faults by measured steps, the others by shares of the run; only where the whole run
    named them."""
    wiring = {rule.id for rule in rules() if rule.family == "wiring"}
    found = [each for each in cases if scoring.named(each, scoring.full(each), within=3)]

    def rate(chosen: Sequence[JudgedTraining], when: str) -> dict[str, Any] | None:
        return _plain(
            scoring.cluster_rate(
                (each.training.cluster, scoring.detected(each)[when]) for each in chosen
            )
        )

    of_wiring = [each for each in found if each.training.expected[0][0] in wiring]
    others = [each for each in found if each.training.expected[0][0] not in wiring]
    return {
        "wiring": {when: rate(of_wiring, when) for when in (str(MEASURED), *map(str, EARLY))},
        "dynamic": {when: rate(others, when) for when in map(str, EARLY)},
    }


def precision(all_judged: Sequence[JudgedTraining]) -> dict[str, Any]:
    """Of each finding, how often it was right when it came first."""
    whole = scoring.precision(all_judged)
    apart = scoring.precision(each for each in all_judged if each.training.held_out)
    return {
        id: {"right": right, "shown": shown, "held_out": list(apart.get(id, (0, 0)))}
        for id, (right, shown) in whole.items()
    }


def _confused(one: str, other: str, all_judged: Sequence[JudgedTraining]) -> dict[str, Any]:
    """How many runs of either were called the other."""
    return {
        "pair": [one, other],
        "one_as_other": _taken(one, other, all_judged),
        "other_as_one": _taken(other, one, all_judged),
    }


def _taken(true: str, called: str, all_judged: Sequence[JudgedTraining]) -> list[int]:
    """[how many were, of how many]."""
    runs = [
        each
        for each in all_judged
        if true in (each.training.catalogue.split("+") if each.training.catalogue else ["healthy"])
    ]
    own = set(FAULT_IDS.get(true, ()))
    hits = 0
    for each in runs:
        serious = [said.id for said in each.full if said.severity != "info"]
        hits += (
            not serious
            if called == "healthy"
            else bool(set(serious[:1]) & (set(FAULT_IDS[called]) - own))
        )
    return [hits, len(runs)]


def by_fault(
    broken: Sequence[JudgedTraining], without_harm: set[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Each fault of each setup, with what was said of it."""
    rows: dict[tuple[str, str], list[JudgedTraining]] = {}
    for each in broken:
        rows.setdefault((each.training.setup, each.training.fault), []).append(each)
    return [
        _row(setup, fault, runs, harmless=(setup, fault) in without_harm)
        for (setup, fault), runs in rows.items()
    ]


def _row(
    setup: str, fault: str, runs: Sequence[JudgedTraining], *, harmless: bool
) -> dict[str, Any]:
    first = runs[0].training
    returns = [each.record.mean_return for each in runs]
    return {
        "ward": setup,
        "fault": fault,
        "catalogue": first.catalogue,
        "summary": first.summary,
        "expected": [list(ids) for ids in first.expected],
        "held_out": first.held_out,
        "harmless": harmless,
        "mean_return": (
            _rounded(sum(returns) / len(returns)) if all(map(math.isfinite, returns)) else None
        ),
        "top1": [scoring.named(each, scoring.full(each), within=1) for each in runs],
        "top3": [scoring.named(each, scoring.full(each), within=3) for each in runs],
        "scalars_top1": [scoring.named(each, scoring.scalars(each), within=1) for each in runs],
        "said": [scoring.full(each)[:3] for each in runs],
        "ended": [each.record.ended for each in runs],
    }
