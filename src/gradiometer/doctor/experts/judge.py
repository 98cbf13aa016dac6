"""Do the experts learn different things? The three questions of source 002, answered in words.

`judge` reads the series of experts in a run or a log and gives each question a verdict over all experts (corrected for
how many there are), one for each expert, the source's own reading, and what is missing where there is no verdict.
"""

from __future__ import annotations

from gradiometer.doctor.experts.advice import advise
from gradiometer.doctor.experts.answers import Answer, Answers, Number, Routing, SeriesSource
from gradiometer.doctor.experts.divergence import judge_divergence, measure
from gradiometer.doctor.experts.lasting import judge_lasting
from gradiometer.doctor.experts.readings import listed
from gradiometer.doctor.experts.routers import look_at_routers
from gradiometer.doctor.experts.series import ExpertSeries
from gradiometer.doctor.experts.waking import judge_waking

__all__ = ["Answer", "Answers", "Number", "SeriesSource", "judge"]

REFERENCES: dict[Routing, str] = {
    "merged": "compared with expert 0, the clean one of a merged-weight router",
    "top-k": "compared with expert 0 as the reference: with top-k routing no expert is the clean one",
    "unknown": "compared with expert 0, taken for the clean one; how the router works is not known",
}


def judge(run: SeriesSource, since: int | None = None) -> Answers:
    """Answer the three questions from step `since` on; a run without experts is a UsageError that says what to do."""
    series = ExpertSeries(run, since)
    apart = measure(series)
    waking, divergence, lasting = judge_waking(series), judge_divergence(series, apart), judge_lasting(series, apart)
    health = look_at_routers(run, series, since)
    return Answers(
        routing=series.routing,
        reference=REFERENCES[series.routing],
        experts=series.experts,
        layers=series.layers,
        points=int(series.steps.size),
        first_step=int(series.steps[0]),
        last_step=int(series.steps[-1]),
        waking=waking,
        divergence=divergence,
        lasting=lasting,
        health=health.lines,
        next=advise(routing=series.routing, answers=(waking, divergence, lasting), health=health, facts=run.facts),
        notes=tuple(_notes(series)),
    )


def _notes(series: ExpertSeries) -> list[str]:
    notes = []
    begin = {e: points.steps[0] for e in series.others if (points := series.pooled("middle_norm", e)).steps.size}
    late = [e for e, step in begin.items() if step > series.steps[0]]
    if late:
        first = min(begin[e] for e in late)
        notes.append(f"{listed(late)} first seen at step {first:.0f} or later, and compared from there on")
    left_out = sum(series.pooled("norm", e).left_out for e in series.experts)
    if left_out:
        notes.append(f"{left_out} norms were NaN or infinite and are left out")
    return notes
