"""The figures of the wards in one plain document: each trainer by itself, and the mean over the
trainers that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradiometer_labs.clinic import scoring
from gradiometer_labs.clinic.judging import JudgedTraining
from gradiometer_labs.clinic.summary import (
    VIEWS,
    accuracy,
    by_fault,
    detection,
    healthy_runs,
    precision,
)
from gradiometer_labs.wards.ward import Patient

__all__ = ["mean_over_wards", "ward_summary"]

DRAWS = 2000


def ward_summary(
    all_judged: Sequence[JudgedTraining], outside: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """The document; `all_judged` are patients, `outside` what another tool said of each."""
    without_harm = scoring.harmless(all_judged)
    by_ward: dict[str, list[JudgedTraining]] = {}
    for each in all_judged:
        by_ward.setdefault(_patient(each).ward, []).append(each)
    harmful = {
        ward: [
            each
            for each in judged
            if not each.training.healthy
            and (each.training.setup, each.training.fault) not in without_harm
        ]
        for ward, judged in by_ward.items()
    }
    views: dict[str, scoring.Names] = dict(VIEWS)
    if outside:
        theirs = {id(each): said for each, said in zip(all_judged, outside, strict=True)}
        views["judged"] = lambda each: theirs[id(each)]
    left_out = [ward for ward, judged in by_ward.items() if judged[0].training.held_out]
    broken = [each for each in all_judged if not each.training.healthy]
    controls = [each for each in all_judged if each.training.healthy]
    return {
        "patients": len(all_judged),
        "faulty": len(broken),
        "faults": len({each.training.cluster for each in broken}),
        "cpu_seconds": round(sum(each.record.seconds for each in all_judged), 1),
        "left_out": left_out,
        "accuracy": mean_over_wards({ward: harmful[ward] for ward in left_out}, views),
        "wards": {
            ward: _ward(judged, harmful[ward], without_harm) for ward, judged in by_ward.items()
        },
        "healthy": healthy_runs(controls),
        "detection": detection([each for judged in harmful.values() for each in judged]),
        "precision": precision(all_judged),
        "confusion": {
            row: dict(counts) for row, counts in sorted(scoring.confusion(all_judged).items())
        },
        "by_fault": by_fault(broken, without_harm),
    }


def _patient(judged: JudgedTraining) -> Patient:
    assert isinstance(judged.training, Patient)
    return judged.training


def _ward(
    judged: Sequence[JudgedTraining],
    harmful: Sequence[JudgedTraining],
    without_harm: set[tuple[str, str]],
) -> dict[str, Any]:
    controls = [each for each in judged if each.training.healthy]
    broken = [each for each in judged if not each.training.healthy]
    harmless = [
        each for each in broken if (each.training.setup, each.training.fault) in without_harm
    ]
    return {
        "faulty": len(broken),
        "faults": len({each.training.fault for each in broken}),
        "costly": len(harmful),
        "accuracy": accuracy(harmful),
        "accuracy_of_harmless": accuracy(harmless),
        "healthy": healthy_runs(controls),
        "learned": sum(each.record.mean_return > each.record.first_return for each in controls),
        "detection": detection(harmful),
        "cpu_seconds": round(sum(each.record.seconds for each in judged), 1),
    }


def mean_over_wards(
    harmful: Mapping[str, Sequence[JudgedTraining]], views: Mapping[str, scoring.Names]
) -> dict[str, Any]:
    """Every ward weighs the same, and in it every fault; the bootstrap draws faults within
    wards."""
    return {
        view: {
            f"top{within}": _mean(
                [
                    _means(
                        (each.training.cluster, scoring.named(each, names(each), within=within))
                        for each in judged
                    )
                    for judged in harmful.values()
                    if judged
                ]
            )
            for within in (1, 3)
        }
        for view, names in views.items()
    }


def _means(cases: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    by_cluster: dict[str, list[bool]] = {}
    for cluster, holds in cases:
        by_cluster.setdefault(cluster, []).append(holds)
    return np.array([np.mean(found) for found in by_cluster.values()])


def _mean(wards: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> dict[str, Any] | None:
    if not wards:
        return None
    rng = np.random.default_rng(0)
    draws = np.mean([rng.choice(ward, (DRAWS, len(ward))).mean(1) for ward in wards], 0)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {
        "share": round(float(np.mean([ward.mean() for ward in wards])), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "wards": len(wards),
        "clusters": sum(map(len, wards)),
    }
