"""The tab Estimators: replicates of a policy gradient side by side, and what it takes to see a
signal in them."""

from __future__ import annotations

from collections.abc import Mapping

from gradiometer.charts.estimators import (
    AXES,
    curve_charts,
    measured_on,
    replicate_charts,
    study_charts,
)
from gradiometer.charts.model import Chart, Empty
from gradiometer.charts.studies import Studies, bias_notes, studies_of
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Control, Option, View
from gradiometer.errors import UnknownName

__all__ = ["estimators"]

NO_STUDY = Empty(
    title="No replicates in this run",
    cause="Replicates estimate the gradient of one policy repeatedly on fresh samples; a "
    "training does not do that.",
    fix="Measure a checkpoint: it becomes a run of its own. Look at that run here, alone or beside"
    " others.",
    code="gradiometer variance --ckpt_path runs/tsp/last.ckpt --compare none sample_loo_scaled"
    " subloo --run runs/variance\ngradiometer variance --ckpt_path runs/tsp/last.ckpt --curve"
    " rollouts --values 5 10 20 --run runs/curve",
)


def estimators(request: ViewRequest) -> View:
    """The study of the chosen run; curves of the other runs beside its own."""
    ids = [run.id for run in request.runs]
    held = {
        run.id: (run, found) for run in request.runs if (found := studies_of(run.log)) is not None
    }
    if not held:
        return View(view="estimators", title="Estimators", runs=ids, empty=NO_STUDY)
    chosen = request.query.option("study", next(iter(held)))
    if chosen not in held:
        raise UnknownName("study", chosen, held, hint=f"(replicates are in {', '.join(held)})")
    run, found = held[chosen]
    charts: list[Chart] = []
    if found.curve is not None:
        charts += curve_charts(
            [(run.id, run.label, found), *_others(held, chosen, found.curve.axis)]
        )
    charts += [*study_charts(found), *replicate_charts(found)]
    return View(
        view="estimators",
        title="Estimators",
        runs=ids,
        header=_header(found),
        controls=[_control(held, chosen)] if len(held) > 1 else [],
        charts=charts,
    )


def _others(
    held: Mapping[str, tuple[OpenRun, Studies]], chosen: str, axis: str
) -> list[tuple[str, str, Studies]]:
    return [
        (id, run.label, found)
        for id, (run, found) in held.items()
        if id != chosen and found.curve is not None and found.curve.axis == axis
    ]


def _control(held: Mapping[str, tuple[OpenRun, Studies]], chosen: str) -> Control:
    options = [Option(value=id, label=f"{id}: {_what(found)}") for id, (_, found) in held.items()]
    return Control(kind="choice", name="study", label="Study", value=chosen, options=options)


def _what(found: Studies) -> str:
    if found.curve is not None:
        return f"against {AXES.get(found.curve.axis, found.curve.axis)}"
    return " / ".join(study.name for study in found.studies)


def _header(found: Studies) -> list[str]:
    """The verdicts, then what they rest on, then what keeps the estimators from their objective."""
    verdicts = list(found.comparison.sentences) if found.comparison is not None else []
    verdicts += [found.curve.answer] if found.curve is not None else []
    return [*verdicts, *filter(None, [measured_on(found)]), *bias_notes(found)]
