"""What the doctor says, in the shapes of the page: a run in a sentence, and a finding as a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Literal

from gradiometer.dashboard.desk import Desk, Open
from gradiometer.dashboard.shape import FindingCard, Verdict
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.records import Finding

__all__ = ["card_of", "verdict_of"]

SEVERITIES = ("critical", "warn", "info")


def verdict_of(desk: Desk, run: Open) -> Verdict:
    """The doctor's sentence on a run, with the finding to act on first."""
    opinion = desk.opinion(run)
    diagnosis = opinion.diagnosis
    counted: Counter[str] = Counter(finding.severity for finding in diagnosis.findings)
    first = diagnosis.findings[0] if diagnosis.findings else None
    return Verdict(
        run=run.id,
        text=diagnosis.verdict,
        severity=_severity(diagnosis),
        finding=None if first is None else card_of(first, run.id, folded=diagnosis.folded),
        counts={severity: counted[severity] for severity in SEVERITIES},
        step=opinion.step,
    )


def card_of(finding: Finding, run_id: str, folded: Iterable[Finding] = (), charts: Sequence[str] = ()) -> FindingCard:
    """A finding as the page shows it. `folded` are the diagnosis's consequences: those that this one explains are told."""
    told = {each.id: each for each in folded}
    return FindingCard(
        run=run_id,
        id=finding.id,
        title=finding.title,
        severity=finding.severity,
        basis=finding.basis,
        since_step=finding.since_step,
        block=finding.block,
        evidence=[asdict(evidence) for evidence in finding.evidence],
        cause=finding.cause,
        fix=list(finding.fix),
        confirm=finding.confirm,
        references=list(finding.references),
        folded=[f"{id}: {told[id].title}" if id in told else id for id in finding.suppressed],
        charts=list(charts),
    )


def _severity(diagnosis: Diagnosis) -> Literal["fine", "info", "warn", "critical", "unknown"]:
    """The worst finding's; without any it is fine only if some rule had what it needs."""
    if diagnosis.findings:
        return diagnosis.findings[0].severity
    return "fine" if diagnosis.looked else "unknown"
