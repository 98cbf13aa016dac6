"""`diagnose`: every rule over one run or log, causes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gradiometer.doctor.arbitration import arbitrate
from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.progress import MIN_REWARDS, progress_of
from gradiometer.doctor.rule import Rule, Skipped, rules
from gradiometer.doctor.signs import level
from gradiometer.records import Finding
from gradiometer.store.logs import Log
from gradiometer.store.origins import place_of
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Thinned
from gradiometer.words import fmt

__all__ = ["Diagnosis", "diagnose", "judged"]

MOST_POINTS = 200
"""Of a curve in a report: more than a screen can show."""
SHOWN = 6


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
    curves: Mapping[str, Thinned] = field(compare=False)
    """The series the evidence points at, thinned for drawing."""
    log_of: str | None = None
    """Whose log this is: SB3, TRL, ...; empty if that cannot be told, None of a run of ours."""

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
        run=place_of(chart.run.path),
        verdict=_verdict(sorted_out.findings, len(looked), chart),
        findings=sorted_out.findings,
        folded=sorted_out.folded,
        skipped=tuple(skipped),
        unknown_keys=tuple(chart.unknown),
        looked=tuple(looked),
        curves=_curves(chart, found),
        log_of=chart.run.facts.get("imported", {}).get("library", "") if isinstance(chart.run, Log) else None,
    )


def _curves(chart: Chart, findings: Iterable[Finding]) -> dict[str, Thinned]:
    known = set(chart.run.names())
    wanted = dict.fromkeys(evidence.series for finding in findings for evidence in finding.evidence)
    return {name: chart.run.thinned(name, MOST_POINTS) for name in wanted if name in known}


def _verdict(findings: tuple[Finding, ...], looked: int, chart: Chart) -> str:
    serious = [finding for finding in findings if finding.severity != "info"]
    if serious:
        first = serious[0]
        others = len(serious) - 1
        more = f", and {others} more cause{'s' if others > 1 else ''}" if others else ""
        return f"{first.title}{more}."
    if chart.last_step is None:
        return "Nothing was recorded yet."
    count = looked + len(findings)
    if not count:
        return f"Nothing can be said: {_unknown(chart)}."
    rules = f"{count} rules had what they need" if count > 1 else "one rule had what it needs"
    if chart.longest < MIN_REWARDS:
        points = f"{chart.longest} points" if chart.longest > 1 else "one point"
        return f"Too early to say: no series has more than {points}; {rules}, and found nothing wrong."
    return f"Nothing wrong was found: {rules}{_outcome(chart)}."


def _unknown(chart: Chart) -> str:
    if len(chart.unknown) < len(chart.run.names()):
        return f"no rule found enough of the metrics it needs{_outcome(chart)}"
    shown = ", ".join(chart.unknown[:SHOWN]) + (", ..." if len(chart.unknown) > SHOWN else "")
    return f"none of its series is called by a name that is known ({shown})"


def _outcome(chart: Chart) -> str:
    """What became of the reward, or else of the loss: nothing wrong may have been found in what does not learn."""
    progress, loss = progress_of(chart), chart.get("loss")
    if progress is None:
        return "" if loss is None else _of_loss(loss)
    ends = f"{fmt(progress.start)} to {fmt(progress.end)}"
    if progress.state == "best":
        return f", and the reward is at its maximum, {fmt(progress.end)}"
    return f", and the reward rose: {ends}" if progress.state == "gained" else f", but the reward {progress.then}"


def _of_loss(loss: Series) -> str:
    broken = loss.steps[~np.isfinite(loss.values)]
    if len(broken):
        return f", but the loss is not finite at {len(broken)} of {len(loss)} steps, first at step {int(broken[0])}"
    return f", and the loss went from {fmt(level(loss.first(0.1)))} to {fmt(level(loss.last(0.2)))}"
