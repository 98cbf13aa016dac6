"""`diagnose`: every rule over one run or log, causes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradiometer.doctor.arbitration import arbitrate
from gradiometer.doctor.chart import Chart
from gradiometer.doctor.rule import Rule, Skipped, rules
from gradiometer.records import Finding
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.logs import Log
from gradiometer.store.readable import Floats, Ints
from gradiometer.store.reader import Run

__all__ = ["Curve", "Diagnosis", "diagnose", "judged"]

MOST_POINTS = 400
"""Of a curve in a report: more than a screen can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A series as it was logged, thinned evenly with its extremes kept."""

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor says about one run."""

    run: Path
    verdict: str
    """One sentence."""
    findings: tuple[Finding, ...]
    """The first is the one to act on."""
    folded: tuple[Finding, ...]
    """Consequences of those."""
    skipped: tuple[Skipped, ...]
    unknown_keys: tuple[str, ...]
    looked: tuple[str, ...]
    """The rules that had what they need and found nothing."""
    curves: Mapping[str, Curve]
    """The series the evidence points at, thinned for drawing."""

    @property
    def worst(self) -> str | None:
        """The severity of the worst finding."""
        return self.findings[0].severity if self.findings else None


def diagnose(
    run: Run | Log, *, since: int | None = None, only: Iterable[Rule] | None = None, max_points: int | None = None
) -> Diagnosis:
    """Let every rule look at the run from step `since` on; `max_points` thins longer series, for who cannot wait."""
    chart = Chart(run, since=since, max_points=max_points)
    return judged(chart, rules() if only is None else tuple(only))


def judged(chart: Chart, chosen: Iterable[Rule]) -> Diagnosis:
    """The same for a chart that is there already."""
    found: list[Finding] = []
    skipped: list[Skipped] = []
    looked: list[str] = []
    for each in chosen:
        result = each(chart)
        if isinstance(result, Skipped):
            skipped.append(result)
        elif result:
            found += result
        else:
            looked.append(each.id)
    sorted_out = arbitrate(found, first_step=chart.first_step)
    return Diagnosis(
        run=chart.run.path.parent if chart.run.path.name == DATABASE_NAME else chart.run.path,
        verdict=_verdict(sorted_out.findings, len(looked), chart),
        findings=sorted_out.findings,
        folded=sorted_out.folded,
        skipped=tuple(skipped),
        unknown_keys=tuple(chart.unknown),
        looked=tuple(looked),
        curves=_curves(chart, found),
    )


def _curves(chart: Chart, findings: Iterable[Finding]) -> dict[str, Curve]:
    known = set(chart.run.names())
    wanted = dict.fromkeys(evidence.series for finding in findings for evidence in finding.evidence)
    return {name: _thinned(*chart.run.series(name)) for name in wanted if name in known}


def _thinned(steps: Ints, values: Floats) -> Curve:
    if len(steps) > MOST_POINTS:
        groups = np.array_split(np.arange(len(steps)), MOST_POINTS // 2)
        ends = ((group[np.argmin(_low(values[group]))], group[np.argmax(_high(values[group]))]) for group in groups)
        kept = np.unique([place for pair in ends for place in pair])
        steps, values = steps[kept], values[kept]
    return Curve(steps=tuple(steps.tolist()), values=tuple(values.tolist()))


def _low(values: Floats) -> Floats:
    return np.where(np.isnan(values), -np.inf, values)  # a NaN is what one wants to see


def _high(values: Floats) -> Floats:
    return np.where(np.isnan(values), np.inf, values)


def _verdict(findings: tuple[Finding, ...], looked: int, chart: Chart) -> str:
    serious = [finding for finding in findings if finding.severity != "info"]
    if serious:
        first = serious[0]
        others = len(serious) - 1
        more = f", and {others} more cause{'s' if others > 1 else ''}" if others else ""
        return f"{first.title}{more}."
    if chart.last_step is None:
        return "Nothing was recorded yet."
    if not looked and not findings:
        return "Nothing can be said: no rule found the metrics it needs."
    return f"Nothing wrong was found: {looked + len(findings)} rules had what they need."
