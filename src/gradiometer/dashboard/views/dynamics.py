"""The tab Dynamics: do the experts learn different things? Source 002's chart and questions, and what makes them sound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gradiometer.dashboard.desk import Desk
from gradiometer.dashboard.shape import Answer, Chart, Control, Option, View
from gradiometer.dashboard.views.dynamics_charts import (
    Drawing,
    divergence_charts,
    layer_charts,
    tier_charts,
)
from gradiometer.dashboard.views.dynamics_maps import histogram_chart, histogram_steps, histograms_of, layer_maps
from gradiometer.dashboard.views.dynamics_routers import router_charts
from gradiometer.dashboard.views.dynamics_runs import Experts, experts_in, in_order
from gradiometer.dashboard.views.dynamics_words import Bench, Judgement, answers_of, header_of, no_experts
from gradiometer.dashboard.views.series import FEW, LEAST_POINTS, called
from gradiometer.errors import UnknownName
from gradiometer.plots.curves import SINGLY
from gradiometer.plots.divergence import NOTHING
from gradiometer.plots.dynamics import WORDS
from gradiometer.plots.expertdata import DIVERGENCE, LOG_RATIO_ROUTED, RECENT, TIERS, rms_of

__all__ = ["dynamics"]

MOST_JUDGED = 4
"""Runs whose three questions are answered."""
SIDE_BY_SIDE = 8
"""Runs with charts of their own."""
ALL_SHOWN = 6
"""Up to so many experts have lines without being chosen."""
MOST_STEPS = 64
"""Places of a slider."""
END = "end"
"""The slider's last place: the median of the last ten measured steps."""

bench = Bench()


def dynamics(desk: Desk) -> View:
    """Experts of the runs on the desk; pictures of a single run show the first that has any."""
    runs = [found for run in desk.runs if (found := experts_in(run)) is not None]
    ids = [run.id for run in desk.runs]
    if not runs:
        return View(view="dynamics", title="Dynamics", runs=ids, empty=no_experts(desk.focus))
    focus, beside = runs[0], runs[:SIDE_BY_SIDE]
    every = in_order({expert for found in runs for expert in found.experts})
    many = len(every) > ALL_SHOWN
    drawing = Drawing(
        desk=desk,
        shown=_shown(desk, focus, every, many=many),
        most=None if len(runs) <= FEW else max(LEAST_POINTS, FEW * desk.ask.most // len(runs)),
        several=len(runs) > 1,
    )
    judged = {found.run.id: bench.judge(found) for found in runs[:MOST_JUDGED]}
    charts = [*tier_charts(drawing, beside), *divergence_charts(drawing, runs)]
    controls = _experts_control(desk, every, drawing.shown) if many or desk.ask.every("experts") else []
    parts = {
        "Layers": _layers(drawing, focus),
        "Routers": _routers(drawing, focus, judged[focus.run.id]),
        "Histograms": _sizes(drawing, focus),
    }
    whose = f" of {called(desk, focus.run)}" if drawing.several else ""
    for name, (made, control) in parts.items():
        charts += [replace(chart, section=name + whose) for chart in made]
        controls += control
    answers: list[Answer] = [
        answer for found in beside[:MOST_JUDGED] for answer in answers_of(found.run, judged[found.run.id])
    ]
    header = _header(desk, runs, judged)
    return View(
        view="dynamics", title="Dynamics", runs=ids, header=header, answers=answers, controls=controls, charts=charts
    )


def _header(desk: Desk, runs: Sequence[Experts], judged: dict[str, Judgement]) -> list[str]:
    several = len(desk.runs) > 1
    lines = [
        f"{called(desk, found.run)}: {line}" if several else line
        for found in runs[:SIDE_BY_SIDE]
        for line in header_of(found, judged.get(found.run.id))
    ]
    without = [called(desk, run) for run in desk.runs if run.id not in {found.run.id for found in runs}]
    if without:
        lines.append(f"No expert gradients in {_some(without)}.")
    if len(runs) > MOST_JUDGED:
        own = f"; the first {SIDE_BY_SIDE} have charts of their own" if len(runs) > SIDE_BY_SIDE else ""
        lines.append(f"The questions are answered for the first {MOST_JUDGED} of {len(runs)} runs with experts{own}.")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shown(desk: Desk, focus: Experts, every: Sequence[str], *, many: bool) -> tuple[str, ...]:
    """The experts that have lines: those asked for, else all of a few, else expert 0 and the furthest from it."""
    given = desk.ask.every("experts")
    if given:
        asked = [part.strip() for text in given for part in ([text] if text in every else text.split(","))]
        for expert in filter(None, asked):
            _known("expert", expert, every)
        return in_order(set(filter(None, asked)))
    return _furthest(focus) if many else tuple(every)


def _furthest(found: Experts) -> tuple[str, ...]:
    """Expert 0 and the three whose distance from it was the largest, in the median over the run: that seldom changes."""
    routed = _distances(found, LOG_RATIO_ROUTED)
    distance = routed if max(routed.values(), default=0.0) >= NOTHING else _distances(found, DIVERGENCE)
    others = sorted((e for e in found.experts if e != "0"), key=lambda expert: -distance.get(expert, 0.0))
    return in_order({*others[:SINGLY], *(e for e in found.experts if e == "0")})


def _distances(found: Experts, template: str) -> dict[str, float]:
    series = {expert: found.run.log.series(name)[1] for expert, name in found.names.get(template, {}).items()}
    finite = {expert: values[np.isfinite(values)] for expert, values in series.items()}
    return {expert: float(np.median(values)) for expert, values in finite.items() if len(values)}


def _experts_control(desk: Desk, every: Sequence[str], shown: Sequence[str]) -> list[Control]:
    hint = "" if desk.ask.every("experts") else f"Expert 0 and the {SINGLY} furthest from it over the run"
    options = [Option(value=expert, label=f"expert {expert}") for expert in every]
    return [Control(kind="many", name="experts", label="Experts", value=",".join(shown), options=options, hint=hint)]


def _layers(drawing: Drawing, found: Experts) -> tuple[list[Chart], list[Control]]:
    """Maps of layer × expert for a tier at a step, and the curves of one layer."""
    if not found.layers:
        return [], []
    ask = drawing.desk.ask
    layer, tier, at = ask.option("layer") or found.layers[0], ask.option("tier") or "bottom", ask.option("at") or END
    _known("layer", layer, found.layers)
    _known("tier", tier, TIERS)
    steps = found.steps.tolist()
    step = None if at == END else _step(at, steps)
    charts = [*layer_maps(found, tier, step), *layer_charts(drawing, found, layer)]
    last = Option(value=END, label=f"median of the last {min(len(steps), RECENT)}")
    controls = [
        Control(
            kind="choice", name="tier", label="Tier of weights", value=tier,
            options=[Option(value=each, label=WORDS[each]) for each in TIERS],
        ),
        Control(kind="slider", name="at", label="Step of the maps", value=at, options=[*_places(steps, step), last]),
        Control(
            kind="choice", name="layer", label="Layer", value=layer,
            options=[Option(value=each, label=each.removeprefix("layer.")) for each in found.layers],
        ),
    ]  # fmt: skip
    return charts, controls if found.has(rms_of(tier, layered=True)) else controls[2:]


def _routers(drawing: Drawing, found: Experts, judgement: Judgement) -> tuple[list[Chart], list[Control]]:
    """The load, balance and gradient of a router."""
    if not found.routers:
        return [], []
    router = drawing.desk.ask.option("router") or found.routers[0]
    _known("router", router, found.routers)
    health = judgement.answers.health if judgement.answers else ()
    charts = router_charts(drawing, found, router, health, many=len(found.experts) > ALL_SHOWN)
    options = [Option(value=each, label="all together" if each == "all" else each) for each in found.routers]
    return charts, [Control(kind="choice", name="router", label="Router", value=router, options=options)]


def _sizes(drawing: Drawing, found: Experts) -> tuple[list[Chart], list[Control]]:
    """How large the elements of the gradients are, at a step of which that is kept."""
    names = histograms_of(found.run)
    steps = histogram_steps(found.run, names)
    asked = drawing.desk.ask.option("histogram")
    step = _step(asked, steps) if asked and steps else steps[-1] if steps else None
    chart = histogram_chart(found, names, step, drawing.shown, many=len(found.experts) > ALL_SHOWN)
    control = Control(
        kind="slider", name="histogram", label="Step of the histograms", value=str(step), options=_places(steps, step)
    )
    return [chart], [control] if steps else []


def _places(steps: Sequence[int], chosen: int | None) -> list[Option]:
    """Steps for a slider, at most 64 of them and the one that is chosen. They go up in powers of two, so they seldom change."""
    apart = 1
    while len(steps) > apart * (MOST_STEPS - 2):
        apart *= 2
    kept = sorted({*steps[::apart], *steps[-1:], *([] if chosen is None else [chosen])})
    return [Option(value=str(step), label=f"step {step}") for step in kept]


def _step(text: str, steps: Sequence[int]) -> int:
    number = int(text) if re.fullmatch(r"-?\d{1,19}", text) else None
    if number is not None and number in steps:
        return number
    near = steps[-3:] if number is None else sorted(steps, key=lambda step: abs(step - number))[:3]
    raise UnknownName(
        "measured step", text, (), hint=f"(there are {len(steps)}; close: {', '.join(map(str, sorted(near)))})"
    )


def _known(kind: str, name: str, there: Iterable[str]) -> None:
    there = list(there)
    if name not in there:
        raise UnknownName(kind, name, there, hint=f"(there are {_some(there)})")
