"""Which finding to act on: causes first, and what follows from them folded under them.

A cause folds a consequence only if it began no later and touches the same block; a critical finding is never folded away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gradiometer.records import Finding

__all__ = ["CONSEQUENCES", "Arbitrated", "arbitrate", "follows"]

SEVERITY = {"critical": 0, "warn": 1, "info": 2}
BASIS = {"proved": 0, "statistical": 1, "heuristic": 2}

CONSEQUENCES: dict[str, tuple[str, ...]] = {}
"""From a cause to what it brings about, directly. What follows from those follows from it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrated:
    """Findings to act on, the first one first, and those that hang on them."""

    findings: tuple[Finding, ...]
    folded: tuple[Finding, ...]


def follows(cause: str) -> set[str]:
    """Everything a cause brings about, near and far."""
    found: set[str] = set()
    waiting = list(CONSEQUENCES.get(cause, ()))
    while waiting:
        one = waiting.pop()
        if one not in found and one != cause:
            found.add(one)
            waiting += CONSEQUENCES.get(one, ())
    return found


def arbitrate(findings: Iterable[Finding]) -> Arbitrated:
    """Order by what to do first, and fold consequences under the first cause that explains them."""
    ordered = sorted(findings, key=_urgency)
    kept: list[Finding] = []
    folded: list[Finding] = []
    causes: dict[int, list[str]] = {}
    for finding in ordered:
        cause = next((other for other in ordered if _explains(other, finding)), None)
        if cause is None or finding.severity == "critical":
            kept.append(finding)
        else:
            folded.append(finding)
    for finding in folded:
        root = _root(finding, ordered)
        causes.setdefault(ordered.index(root), []).append(finding.id)
    shown = [replace(f, suppressed=(*f.suppressed, *dict.fromkeys(causes.get(ordered.index(f), ())))) for f in kept]
    return Arbitrated(findings=tuple(shown), folded=tuple(folded))


def _root(finding: Finding, ordered: list[Finding]) -> Finding:
    """The finding at the top of the chain of causes that is itself shown."""
    seen = {finding.id}
    while True:
        cause = next((other for other in ordered if other.id not in seen and _explains(other, finding)), None)
        if cause is None:
            return finding
        seen.add(cause.id)
        finding = cause
        if finding.severity == "critical":
            return finding


def _explains(cause: Finding, finding: Finding) -> bool:
    if finding.id not in follows(cause.id) or cause.severity == "info" != finding.severity:
        return False
    if cause.id in follows(finding.id) and _urgency(finding) <= _urgency(cause):
        return False  # each brings about the other: the more urgent one is the cause
    same_block = cause.block in (None, "all", finding.block) or finding.block in (None, "all")
    earlier = cause.since_step is None or finding.since_step is None or cause.since_step <= finding.since_step
    return same_block and earlier


def _urgency(finding: Finding) -> tuple[int, int, int]:
    return SEVERITY[finding.severity], BASIS[finding.basis], -1 if finding.since_step is None else finding.since_step
