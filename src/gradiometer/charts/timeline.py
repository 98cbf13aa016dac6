"""The outcome of a run, with the onset of each sign the doctor saw on one time line below it."""

from __future__ import annotations

import math

from gradiometer.charts.model import Axis, Chart, Line, Onset, Points, Span, axis_of, info_of
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.timeline import moments, signs_since
from gradiometer.store.thinning import Thinned
from gradiometer.words import counted, fmt

__all__ = ["line_of", "series_of", "timeline"]


def series_of(diagnosis: Diagnosis) -> str | None:
    """Which series is drawn: the outcome, else what the earliest sign was read from.

    None where no sign has a beginning: then there is no order to show.
    """
    begun = signs_since(diagnosis)
    if not begun:
        return None
    read = [evidence.series for finding in begun for evidence in finding.evidence]
    wanted = [diagnosis.outcome.series] if diagnosis.outcome is not None else read
    return next((name for name in wanted if name in diagnosis.curves), None)


def timeline(diagnosis: Diagnosis, line: Line, *, id: str = "timeline", section: str = "") -> Chart:
    """The chart; `line` is the series of `series_of`, as far as it is to be drawn."""
    onsets = [
        Onset(
            step=each.step,
            label=each.id if each.block in (None, "all") else f"{each.id} ({each.block})",
            note=each.words,
            severity=each.severity,
        )
        for each in moments(diagnosis)
        if each.severity is not None
    ]
    return Chart(
        id=id,
        kind="lines",
        title="What happened, in order",
        section=section,
        subtitle=f"{line.name}, and when each of {counted(len(onsets), 'sign')} began"
        if len(onsets) > 1
        else f"{line.name}, and when the sign began",
        x=Axis(title="step"),
        y=axis_of(line.name),
        lines=[line],
        spans=_best(diagnosis, line),
        onsets=onsets,
        info=info_of(line.name),
        wide=True,
    )


def _best(diagnosis: Diagnosis, line: Line) -> list[Span]:
    outcome = diagnosis.outcome
    if outcome is None or outcome.series != line.name or not math.isfinite(outcome.best):
        return []
    label = f"best: {fmt(outcome.best)} at step {outcome.best_step}"
    return [Span(first=outcome.best_step, last=outcome.best_step, label=label, severity="fine")]


def line_of(curve: Thinned, name: str) -> Line:
    """A thinned series as a line of a chart."""
    bounds = {} if curve.whole else {"low": curve.low.tolist(), "high": curve.high.tolist()}
    points = Points(
        steps=curve.steps.tolist(),
        values=curve.mean.tolist(),
        **bounds,
        nans=curve.steps[curve.broken].tolist(),
    )
    return Line(run="", name=name, label=name, points=points)
