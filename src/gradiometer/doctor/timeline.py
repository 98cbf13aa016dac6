"""What happened in a run, in order: when each sign began, and when the outcome was at its best."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.records import Finding, Severity
from gradiometer.words import fmt

__all__ = ["Moment", "moments", "signs_since"]

MOST_SIGNS = 8
"""On one time line; the most severe are kept."""
SEVERITIES: tuple[Severity, ...] = ("critical", "warn", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that began at a step, or the best of the outcome."""

    step: int
    id: str
    """Of the finding; `best` for the outcome's best."""
    words: str
    severity: Severity | None
    """None of the best, which is no sign."""
    block: str | None = None


def signs_since(diagnosis: Diagnosis) -> list[Finding]:
    """The findings that have a beginning, consequences too, the earliest first.

    Of one id that holds in several blocks the first to begin speaks; of very many the most severe.
    """
    begun = [
        each for each in (*diagnosis.findings, *diagnosis.folded) if each.since_step is not None
    ]
    begun.sort(key=lambda each: each.since_step or 0)
    once = list({each.id: each for each in reversed(begun)}.values())[::-1]
    kept = sorted(once, key=lambda each: SEVERITIES.index(each.severity))[:MOST_SIGNS]
    return [each for each in once if each in kept]


def moments(diagnosis: Diagnosis) -> list[Moment]:
    """The signs and the outcome's best, in the order in which they came."""
    found = [
        Moment(
            step=each.since_step or 0,
            id=each.id,
            words=each.title,
            severity=each.severity,
            block=each.block,
        )
        for each in signs_since(diagnosis)
    ]
    outcome = diagnosis.outcome
    if outcome is not None:
        words = f"best of {outcome.series}: {fmt(outcome.best)}; {fmt(outcome.end)} at the end"
        found.append(Moment(step=outcome.best_step, id="best", words=words, severity=None))
    return sorted(found, key=lambda each: each.step)
