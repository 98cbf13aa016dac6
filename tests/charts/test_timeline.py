"""The time line of a diagnosis: the outcome's curve, its best, and a lane for each sign in order."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

from gradiometer.charts.page import as_page
from gradiometer.charts.svg import as_svg
from gradiometer.charts.timeline import line_of, series_of, timeline
from gradiometer.doctor.diagnosis import Diagnosis, OutcomeRecord
from gradiometer.doctor.timeline import MOST_SIGNS
from gradiometer.records import Evidence, Finding
from gradiometer.store.thinning import whole

CURVE = whole(np.arange(0, 1000, 10), np.minimum(np.arange(100.0), 120.0 - np.arange(100.0)))


def sign(id: str, since: int | None, severity: str = "warn", block: str | None = None) -> Finding:
    return Finding(
        id=id,
        title=f"{id} <began>",
        severity=severity,  # type: ignore[arg-type]
        basis="heuristic",
        since_step=since,
        block=block,
        evidence=(Evidence(series="entropy", reading="fell"),),
    )


def diagnosis(*findings: Finding, folded: tuple[Finding, ...] = ()) -> Diagnosis:
    return Diagnosis(
        run=Path("run"),
        state="concern",
        verdict="concern: it fell.",
        outcome=OutcomeRecord(
            series="reward", course="fell", start=0.0, best=60.0, best_step=600, end=21.0, lost=0.65
        ),
        findings=findings,
        folded=folded,
        skipped=(),
        unknown_keys=(),
        looked=(),
        curves={"reward": CURVE, "entropy": CURVE},
    )


def test_signs_lie_in_the_order_in_which_they_began_consequences_too() -> None:
    known = diagnosis(
        sign("late", 700), sign("at-all", None), sign("early", 100, block="actor"),
        folded=(sign("between", 300, "info"),),
    )  # fmt: skip
    chart = timeline(known, line_of(CURVE, "reward"))
    assert [(each.step, each.label, each.severity) for each in chart.onsets] == [
        (100, "early (actor)", "warn"),
        (300, "between", "info"),
        (700, "late", "warn"),
    ]
    assert [(span.first, span.last, span.severity) for span in chart.spans] == [(600, 600, "fine")]
    assert chart.spans[0].label == "best: 60 at step 600"
    assert "3 signs" in chart.subtitle


def test_one_sign_in_many_blocks_is_one_lane_and_the_mildest_are_left_out() -> None:
    many = [sign(f"mild-{n}", n, "info") for n in range(20)]
    known = diagnosis(sign("worst", 900, "critical"), sign("worst", 800, "critical"), *many)
    onsets = timeline(known, line_of(CURVE, "reward")).onsets
    assert len(onsets) == MOST_SIGNS
    assert (onsets[-1].label, onsets[-1].step) == ("worst", 800)


def test_what_is_drawn_is_the_outcome_else_what_the_first_sign_was_read_from() -> None:
    known = diagnosis(sign("late", 700))
    assert series_of(known) == "reward"
    assert series_of(dataclasses.replace(known, outcome=None)) == "entropy"
    assert series_of(diagnosis(sign("at-all", None))) is None


def test_the_drawing_marks_onsets_and_best_at_their_steps() -> None:
    chart = timeline(diagnosis(sign("early", 0), sign("late", 990)), line_of(CURVE, "reward"))
    drawn = as_svg(chart, width=900, height=200)
    (curve,) = re.findall(r'<polyline class="curve" points="([^"]+)"', drawn)
    xs = [float(point.split(",")[0]) for point in curve.split()]
    marks = [float(x) for x in re.findall(r'class="onset" x1="([\d.]+)"', drawn)]
    assert marks == [xs[0], xs[-1]]
    (best,) = re.findall(r'class="since fine" x1="([\d.]+)"', drawn)
    assert abs(float(best) - xs[60]) < 0.2
    assert "1  step 0 · early &lt;began&gt;" in drawn  # there is room for words
    assert "2  late · step 990" in drawn
    assert "early &lt;began&gt;" in drawn  # what hovering says
    inside = [float(x) for x in re.findall(r' x1?="(-?[\d.]+)"', drawn)]
    assert min(inside) >= 0.0
    assert max(inside) <= 900.0


def test_the_page_shows_it_above_the_findings_and_nothing_where_no_sign_began() -> None:
    page = as_page(diagnosis(sign("early", 100)))
    assert page.index("What happened, in order") < page.index("early &lt;began&gt;</h2>")
    assert "What happened" not in as_page(diagnosis(sign("at-all", None)))
