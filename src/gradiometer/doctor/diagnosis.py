"""`diagnose`: every rule over one run or log, causes first."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradiometer import metrics
from gradiometer.doctor.arbitration import arbitrate
from gradiometer.doctor.outcome import Course
from gradiometer.doctor.rule import Rule, Skipped, rules
from gradiometer.doctor.rundata import Named, RunData
from gradiometer.doctor.state import State, outcome_or_loss, state_of
from gradiometer.errors import UsageError
from gradiometer.records import Finding
from gradiometer.store.importers import load
from gradiometer.store.logs import Log
from gradiometer.store.provenance import place_of
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Thinned

__all__ = ["Diagnosis", "OutcomeRecord", "diagnose", "judged"]

MOST_POINTS = 200
"""Of a curve in a report: more than a screen can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """Which series says how well the policy does, and what became of it."""

    series: str
    course: Course
    start: float
    best: float
    best_step: int
    end: float
    lost: float
    """Of what was gained up to the best, the share that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor says about one run."""

    run: Path
    state: State
    """What became of the run."""
    verdict: str
    """One line, which begins with the state."""
    outcome: OutcomeRecord | None = None
    """Which series says how well it does, where it started, its best and where it ended."""
    findings: tuple[Finding, ...]
    """The first is the one to act on."""
    folded: tuple[Finding, ...]
    """Consequences of those."""
    skipped: tuple[Skipped, ...]
    unknown_keys: tuple[str, ...]
    looked: tuple[str, ...]
    """The rules that had what they need and found nothing."""
    curves: Mapping[str, Thinned] = field(compare=False)
    """The outcome and the series the evidence points at, thinned for drawing."""
    named: tuple[Named, ...] = ()
    """Columns whose meaning was guessed, told or chosen among several; outcomes first."""
    log_of: str | None = None
    """Whose log this is: SB3, TRL, ...; empty if that cannot be told, None of a run of ours."""

    @property
    def worst(self) -> str | None:
        """The severity of the worst finding."""
        return self.findings[0].severity if self.findings else None

    def _repr_html_(self) -> str:
        """What a notebook shows: the report as the terminal has it."""
        from gradiometer.doctor.report import as_text

        return f"<pre>{html.escape(as_text(self))}</pre>"


def diagnose(
    run: Run | Log | str | os.PathLike[str],
    *,
    since: int | None = None,
    only: Iterable[Rule] | None = None,
    max_points: int | None = None,
    names: Mapping[str, str] | None = None,
) -> Diagnosis:
    """What is wrong with a run or a log, open or by its path: every rule looks at it, causes first.

    `since` leaves out the steps before it; a negative one counts from the end, -500 for the last
    500 steps. `only` names the rules, `max_points` thins longer series, and `names` says what
    columns mean: `{"mean_r": "reward"}`.
    """
    if not isinstance(run, Run | Log):
        with load(run) as opened:
            return diagnose(opened, since=since, only=only, max_points=max_points, names=names)
    newest = run.newest_step
    if since is not None and newest is not None and since > newest:
        raise UsageError(f"since={since} lies beyond the end of {run.path}: it ends at {newest}")
    data = RunData(run, since=since, max_points=max_points, told=names)
    return judged(data, rules() if only is None else tuple(only))


def _outcome_record(run: RunData) -> OutcomeRecord | None:
    found = outcome_or_loss(run)
    if found is None:
        return None
    return OutcomeRecord(
        series=found.series.name,
        course=found.course,
        start=found.start,
        best=found.top,
        best_step=found.top_step,
        end=found.end,
        lost=found.lost,
    )


def judged(run: RunData, chosen: Iterable[Rule]) -> Diagnosis:
    """The same for a run whose data are read already."""
    found: list[Finding] = []
    skipped: list[Skipped] = []
    looked: list[str] = []
    for each in chosen:
        result = each(run)
        if isinstance(result, Skipped):
            skipped.append(result)
        elif result:
            found += result
        else:
            looked.append(each.id)
    sorted_out = arbitrate(found, first_step=run.first_step)
    found_state = state_of(run, sorted_out.findings, len(looked) + len(sorted_out.findings))
    outcome = _outcome_record(run)
    facts = run.source.facts  # each time it is asked for it is read from the file
    return Diagnosis(
        run=place_of(run.source.path),
        state=found_state.state,
        verdict=found_state.verdict,
        outcome=outcome,
        findings=sorted_out.findings,
        folded=sorted_out.folded,
        skipped=tuple(_advised(each, facts) for each in skipped),
        unknown_keys=tuple(run.unknown),
        named=run.named,
        looked=tuple(looked),
        curves=_curves(run, found, () if outcome is None else (outcome.series,)),
        log_of=(
            facts.get("imported", {}).get("library", "") if isinstance(run.source, Log) else None
        ),
    )


def _advised(skipped: Skipped, facts: Mapping[str, Any]) -> Skipped:
    """Without advice that was followed: who has watched the training is not told to watch it."""
    metric, told = metrics.CATALOGUE.get(skipped.metric), facts.get("meter")
    tier = told.get("tier") if isinstance(told, Mapping) else None
    missing = skipped.why.startswith(f"no {skipped.metric} ")
    if metric is None or not missing or tier not in metrics.TIERS:
        return skipped
    if metric.origin in metrics.TIERS and not metric.name.startswith("grad/pair/"):
        enough = metrics.TIERS.index(tier) >= metrics.TIERS.index(metric.origin)
        how = "this training has none" if enough else f"watch it with tier={metric.origin!r}"
        return replace(skipped, why=f"no {metric.name} in this run: {how}")
    if metric.origin == "experts":
        return replace(skipped, why=f"no {metric.name} in this run: no experts were found")
    return skipped


def _curves(
    run: RunData, findings: Iterable[Finding], besides: Iterable[str]
) -> dict[str, Thinned]:
    known = set(run.source.names())
    read = (evidence.series for finding in findings for evidence in finding.evidence)
    wanted = dict.fromkeys([*besides, *read])
    return {name: run.source.thinned(name, MOST_POINTS) for name in wanted if name in known}
