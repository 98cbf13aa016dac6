"""Are the experts still several? The judge of source 002's questions, and the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.experts.answers import Answers
from gradiometer.doctor.experts.judge import judge
from gradiometer.doctor.lacking import unlogged
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import since
from gradiometer.errors import UsageError
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["experts_converged"]

DISTANCE, LAYER_DISTANCE = "grad/expert/<expert>/weight_distance", "grad/<layer>/expert/<expert>/weight_distance"

ONE_EXPERT = 0.1
"""Of the distance they began with. Training alone lets it shrink, for weights grow (to 0.40 in 1,500 steps of the healthy
prismatic lab); averaging them left 0.001 to 0.06 of it."""
STILL_APART = 0.3
"""Above it the weights contradict a collapse that the gradients seem to show."""
THE_SAME = 0.01
"""‖W_e − W_0‖/‖W_0‖ of experts that were never apart: a copy, up to one per cent."""
MIN_COPIES = 3
"""Readings of that: experts may begin as copies (upcycling), and should not stay so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Distance:
    """How far the weights of one expert are from those of expert 0."""

    series: Series
    first: float
    last: float

    @property
    def left(self) -> float:
        """The share that is left of where it began."""
        return self.last / self.first if self.first > 0 else 1.0

    @property
    def gone(self) -> bool:
        """Whether they have become one, or always were."""
        if self.first > THE_SAME:
            return self.left < ONE_EXPERT
        return len(self.series) >= MIN_COPIES and bool((self.series.values < THE_SAME).all())


@rule("experts-converged")
def experts_converged(chart: Chart) -> Verdict:
    """The experts have become one: their weights have met, or what set their gradients apart has collapsed.

    Gradients that are alike by construction are no finding: a merge of the whole batch gives every expert the same direction.
    """
    distances = _distances(chart)
    gone = [distance for distance in distances if distance.gone]
    if gone:
        return _met(gone, len(distances))
    answers = _answers(chart)
    if answers is None and not distances:
        return unlogged("experts-converged", DISTANCE)
    apart = any(distance.left > STILL_APART for distance in distances)
    if answers is None or apart:
        return None
    collapsed = answers.lasting.verdict == "collapses"
    alike = answers.lasting.verdict == "converged" and answers.routing == "top-k"
    return _collapsed(answers) if collapsed or alike else None


def _distances(chart: Chart) -> list[_Distance]:
    found = [series.finite for series in chart.every(LAYER_DISTANCE) or chart.every(DISTANCE)]
    return [
        _Distance(series=series, first=float(series.values[0]), last=float(series.values[-1]))
        for series in found
        if len(series) > 1
    ]


def _answers(chart: Chart) -> Answers | None:
    """What the judge says from the first step of the chart on; None where it has nothing to compare."""
    norms = [series for series in chart.every("grad/expert/<expert>/middle_norm") if len(series)]
    try:
        return judge(chart.run, min(int(series.steps[0]) for series in norms)) if norms else None
    except UsageError:
        return None


def _met(gone: list[_Distance], looked: int) -> Finding:
    worst = min(gone, key=lambda distance: distance.last)
    series = worst.series
    bound = max(THE_SAME, ONE_EXPERT * worst.first)
    expert = series.parts.get("expert", "?")
    where = series.parts.get("layer", "").removeprefix("layer.")
    return Finding(
        id="experts-converged",
        title=f"The experts have become one: the weights of expert {expert}{f' of {where}' if where else ''} are "
        f"{worst.last:.1%} of their size from expert 0's ({len(gone)} of {looked} so close)",
        severity="warn",
        basis="heuristic",
        since_step=since(series, lambda x: x < bound) if len(series) > 4 else int(series.steps[-1]),
        block=series.parts.get("layer") if len({each.series.parts.get("layer") for each in gone}) == 1 else None,
        evidence=tuple(
            Evidence(
                series=each.series.name,
                reading=f"{fmt(each.first)} at first, {fmt(each.last)} now",
                first_step=int(each.series.steps[0]),
                last_step=int(each.series.steps[-1]),
            )
            for each in gone[:4]
        ),
        cause="Something pulls the experts' weights together: an average over processes that should leave them apart, weight "
        "decay towards a shared start, or one merged gradient for all of them.",
        fix=_FIX,
        confirm="Compare the experts' outputs on one batch: where they agree, replacing each by expert 0 changes no loss.",
        references=_REFERENCES,
    )


def _collapsed(answers: Answers) -> Finding:
    lasting = answers.lasting
    return Finding(
        id="experts-converged",
        title="The experts are becoming one: what sets their gradients apart beyond routing is "
        + ("collapsing" if lasting.verdict == "collapses" else "gone"),
        severity="warn",
        basis="statistical",
        since_step=answers.first_step,
        evidence=(
            Evidence(
                series="grad/expert/<expert>/log_ratio_routed",
                reading=lasting.sound_reading,
                first_step=answers.first_step,
                last_step=answers.last_step,
            ),
        ),
        cause="Routing no longer sends them different tokens, or their weights approach each other: they learn the same thing.",
        fix=(*answers.next, *_FIX) if answers.next else _FIX,
        confirm="gradiometer experts RUN shows the three questions; compare the experts' outputs on one batch.",
        references=_REFERENCES,
    )


_FIX = (
    "Leave the experts' parameters out of any averaging over processes (expert parallel groups), and of an EMA towards a mean",
    "Route so that they see different tokens (top-k instead of a merge, per sample instead of per batch), and lower their "
    "weight decay",
    "Perturb all but one of them again (prismatic: perturbation_scale=2.0)",
)
_REFERENCES = ("source 002: divergence below 0.01 is converged", "failure catalogue F45")
