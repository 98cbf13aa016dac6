"""A diagnosis as plain values: what `--json` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.precision import track_record
from gradiometer.records import Finding

__all__ = ["plain", "plain_of_several", "shared_causes"]


def plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """`run`, `verdict`, `findings`, `folded`, `skipped`, `unknown_keys`, `looked`; a stable shape for scripts."""
    return {
        "run": str(diagnosis.run),
        "verdict": diagnosis.verdict,
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "folded": [_finding(finding) for finding in diagnosis.folded],
        "skipped": [dataclasses.asdict(skipped) for skipped in diagnosis.skipped],
        "unknown_keys": list(diagnosis.unknown_keys),
        "looked": list(diagnosis.looked),
    }


def plain_of_several(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Several runs: each as above, and how many runs share a cause."""
    return {"runs": [plain(diagnosis) for diagnosis in diagnoses], "shared": shared_causes(diagnoses)}


def shared_causes(diagnoses: Sequence[Diagnosis]) -> dict[str, int]:
    """How many runs have each finding that is worth acting on, the most common first."""
    counts: dict[str, int] = {}
    for diagnosis in diagnoses:
        for id in dict.fromkeys(finding.id for finding in diagnosis.findings if finding.severity != "info"):
            counts[id] = counts.get(id, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _finding(finding: Finding) -> dict[str, Any]:
    return {**dataclasses.asdict(finding), "clinic": track_record(finding)}
