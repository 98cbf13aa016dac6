"""The tab Dynamics: do the experts learn different things? Norms by tier, and sound ones."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradiometer.charts.experts import (
    CONVERGED,
    MEANINGFUL,
    NAMED,
    NOTHING,
    ROLES,
    SINGLY,
    WORDS,
    divergence_charts,
    evenness_chart,
    histogram_chart,
    layer_charts,
    layer_map,
    layer_maps,
    load_chart,
    norms_chart,
    router_gradient_chart,
    sound_chart,
    verdict,
)
from gradiometer.charts.model import Chart, Empty, Line
from gradiometer.dashboard.diagnoses import REST_PER_SECOND
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Control, ExpertAnswer, Option, View
from gradiometer.dashboard.views.series import FEW, LEAST_POINTS, called
from gradiometer.doctor.experts.answers import SENTENCES, Answers
from gradiometer.doctor.experts.judge import judge
from gradiometer.doctor.experts.questions import listed
from gradiometer.doctor.experts.series import (
    COSINE,
    DIVERGENCE,
    EVERY_ROUTER,
    IN_A_LAYER,
    LAYER_NORMS,
    LOAD,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    MISSING_EVENT,
    NORM,
    OF_ROUTERS,
    OVER_LAYERS,
    RECENT,
    TIERS,
    ExpertRun,
    in_order,
    mean_over_layers,
    names_of,
    norm_of,
    quotient,
    rms_of,
)
from gradiometer.errors import UnknownName, UsageError
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats, Ints
from gradiometer.words import fmt, some

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
MOST_KEPT = 128
MISSING_SAID = 2
"""So many of a run's own remarks on missing gradients are repeated."""
CODE = """\
experts = {"moe": ([first, second], router)}
with gm.watch(model, optimizer, run="runs/moe", experts=experts) as meter:
    meter.watch_experts(10)  # every tenth step, automatically
    for batch in data:
        loss_of(model, batch).backward()
        meter.log_gradient_dynamics()  # or by hand: after backward(), before step() and zero_grad()
        optimizer.step()
        optimizer.zero_grad()
"""
FIX = (
    "gm.watch hooks experts next to a router in a module automatically. Name all others with"
    " experts=: experts you don't name are not plotted. They must be measured"
    " after backward() and before optimizer.step() and zero_grad(), while there is a gradient."
    " For the dynamics.db of another tool, run `gradiometer serve dynamics.db`; nothing else is"
    " needed."
)


ROWS_POINTS = 200
"""Points of a row of a map."""
LEAST, MOST = -323, 308
"""Powers of ten that are floats."""
DIVIDED = (-1, -1)
"""No file has this size."""
NOT_CHOSEN = Empty(
    title="No expert is chosen", cause="The list of experts is empty.", fix="Choose some above."
)
NO_TIERS = Empty(
    title="No norms of tiers",
    cause="The run has no grad/expert/0/top_norm, bottom_norm and middle_norm over all layers.",
    fix="Measure with gm.watch, or choose a layer below.",
)
NO_RMS = Empty(
    title="Routing cannot be divided out",
    cause="top_rms, bottom_rms, middle_rms and routing_weight were not measured: the chart above"
    " mostly shows how often the router uses each expert.",
    fix="Measure with gm.watch: it records them beside the norms. A dynamics.db has no column for"
    " them.",
)


def dynamics(request: ViewRequest) -> View:
    """Experts of the runs of the request; pictures of a single run show the first that has any."""
    runs = [found for run in request.runs if (found := experts_in(run)) is not None]
    ids = [run.id for run in request.runs]
    if not runs:
        return View(view="dynamics", title="Dynamics", runs=ids, empty=no_experts(request.focus))
    focus, beside = runs[0], runs[:SIDE_BY_SIDE]
    every = in_order({expert for found in runs for expert in found.experts})
    many = len(every) > ALL_SHOWN
    drawing = ShownExperts(
        request=request,
        shown=_shown(request, focus, every, many=many),
        most=None if len(runs) <= FEW else max(LEAST_POINTS, FEW * request.query.most // len(runs)),
        several=len(runs) > 1,
    )
    judged = {found.open.id: JUDGEMENTS.judge(found) for found in runs[:MOST_JUDGED]}
    charts = [*_tier_charts(drawing, beside), *divergence_charts(drawing, runs)]
    controls = (
        _experts_control(request, every, drawing.shown)
        if many or request.query.every("experts")
        else []
    )
    parts = {
        "Layers": _layers(drawing, focus),
        "Routers": _routers(drawing, focus, judged[focus.open.id]),
        "Histograms": _sizes(drawing, focus),
    }
    whose = f" of {called(request, focus.open)}" if drawing.several else ""
    for name, (made, control) in parts.items():
        charts += [replace(chart, section=name + whose) for chart in made]
        controls += control
    answers: list[ExpertAnswer] = [
        answer
        for found in beside[:MOST_JUDGED]
        for answer in answers_of(found.open, judged[found.open.id])
    ]
    header = _header(request, runs, judged)
    return View(
        view="dynamics",
        title="Dynamics",
        runs=ids,
        header=header,
        answers=answers,
        controls=controls,
        charts=charts,
    )


def _header(
    request: ViewRequest, runs: Sequence[OpenExperts], judged: dict[str, Judgement]
) -> list[str]:
    several = len(request.runs) > 1
    lines = [
        f"{called(request, found.open)}: {line}" if several else line
        for found in runs[:SIDE_BY_SIDE]
        for line in header_of(found, judged.get(found.open.id))
    ]
    without = [
        called(request, run)
        for run in request.runs
        if run.id not in {found.open.id for found in runs}
    ]
    if without:
        lines.append(f"No expert gradients in {some(without, 3)}.")
    if len(runs) > MOST_JUDGED:
        own = (
            f"; the first {SIDE_BY_SIDE} have charts of their own"
            if len(runs) > SIDE_BY_SIDE
            else ""
        )
        lines.append(
            f"The questions are answered for the first {MOST_JUDGED} of {len(runs)} runs with"
            f" experts{own}."
        )
    return lines


def _shown(
    request: ViewRequest, focus: OpenExperts, every: Sequence[str], *, many: bool
) -> tuple[str, ...]:
    """The experts that have lines: those asked for, all of a few, or 0 and the furthest."""
    given = request.query.every("experts")
    if given:
        asked = [
            part.strip()
            for text in given
            for part in ([text] if text in every else text.split(","))
        ]
        for expert in filter(None, asked):
            _known("expert", expert, every)
        return in_order(set(filter(None, asked)))
    return _furthest(focus) if many else tuple(every)


def _furthest(found: OpenExperts) -> tuple[str, ...]:
    """Expert 0 and the three furthest from it in the median: that seldom changes."""
    routed = _distances(found, LOG_RATIO_ROUTED)
    distance = (
        routed if max(routed.values(), default=0.0) >= NOTHING else _distances(found, DIVERGENCE)
    )
    others = sorted(
        (e for e in found.experts if e != "0"), key=lambda expert: -distance.get(expert, 0.0)
    )
    return in_order({*others[:SINGLY], *(e for e in found.experts if e == "0")})


def _distances(found: OpenExperts, template: str) -> dict[str, float]:
    series = {
        expert: found.series(name)[1] for expert, name in found.names.get(template, {}).items()
    }
    finite = {expert: values[np.isfinite(values)] for expert, values in series.items()}
    return {expert: float(np.median(values)) for expert, values in finite.items() if len(values)}


def _experts_control(
    request: ViewRequest, every: Sequence[str], shown: Sequence[str]
) -> list[Control]:
    hint = (
        ""
        if request.query.every("experts")
        else f"Expert 0 and the {SINGLY} furthest from it over the run"
    )
    options = [Option(value=expert, label=f"expert {expert}") for expert in every]
    return [
        Control(
            kind="many",
            name="experts",
            label="Experts",
            value=",".join(shown),
            options=options,
            hint=hint,
        )
    ]


def _layers(drawing: ShownExperts, found: OpenExperts) -> tuple[list[Chart], list[Control]]:
    """Maps of layer × expert for a tier at a step, and the curves of one layer."""
    if not found.layers:
        return [], []
    query = drawing.request.query
    layer, tier, at = (
        query.option("layer") or found.layers[0],
        query.option("tier") or "bottom",
        query.option("at") or END,
    )
    _known("layer", layer, found.layers)
    _known("tier", tier, TIERS)
    steps = found.looked_at.tolist()
    step = None if at == END else _step(at, steps)
    charts = [*layer_maps(found, tier, step), *_other_tiers(found, tier, step)]
    charts += layer_charts(drawing, found, layer)
    last = Option(value=END, label=f"median of the last {min(len(steps), RECENT)}")
    controls = [
        Control(
            kind="choice",
            name="tier",
            label="Tier of weights",
            value=tier,
            options=[Option(value=each, label=WORDS[each]) for each in TIERS],
        ),
        Control(
            kind="slider",
            name="at",
            label="Step of the maps",
            value=at,
            options=[*_places(steps, step), last],
        ),
        Control(
            kind="choice",
            name="layer",
            label="Layer",
            value=layer,
            options=[
                Option(value=each, label=each.removeprefix("layer.")) for each in found.layers
            ],
        ),
    ]
    return charts, controls if found.has(rms_of(tier, layered=True)) else controls[2:]


def _other_tiers(found: OpenExperts, chosen: str, step: int | None) -> list[Chart]:
    """The map of every other tier beside that of the chosen one, as `plot` draws them all."""
    maps = []
    for tier in (each for each in TIERS if each != chosen):
        template = rms_of(tier, layered=True)
        read = found.lately(template, step=step)
        if read.has(template):
            chart = layer_map(found, read.field(template), tier, step)
            maps.append(replace(chart, id=f"layers-rms-{tier}"))
    return maps


def _routers(
    drawing: ShownExperts, found: OpenExperts, judgement: Judgement
) -> tuple[list[Chart], list[Control]]:
    """The load, balance and gradient of a router."""
    if not found.router_choices:
        return [], []
    router = drawing.request.query.option("router") or found.router_choices[0]
    _known("router", router, found.router_choices)
    health = judgement.answers.health if judgement.answers else ()
    words = "all routers together" if router == EVERY_ROUTER else router
    many = len(found.experts) > ALL_SHOWN
    even = evenness_chart(drawing, found, router, words)
    charts = [
        load_chart(found, drawing.loads(found, router, many=many), words, many=many),
        replace(even, subtitle="; ".join(health[:2]) if router == EVERY_ROUTER else ""),
        router_gradient_chart(drawing, found, router, words),
    ]
    options = [
        Option(value=each, label="all together" if each == "all" else each)
        for each in found.router_choices
    ]
    return [chart for chart in charts if chart.lines], [
        Control(kind="choice", name="router", label="Router", value=router, options=options)
    ]


def _sizes(drawing: ShownExperts, found: OpenExperts) -> tuple[list[Chart], list[Control]]:
    """How large the elements of the gradients are, at a step of which that is kept."""
    steps = _histogram_steps(found)
    asked = drawing.request.query.option("histogram")
    step = _step(asked, steps) if asked and steps else steps[-1] if steps else None
    if step is None:
        title = "Sizes of the gradient's elements"
        return [Chart(id="histograms", kind="bars", title=title, empty=_none_kept(found.open))], []
    log, many = found.open.log, len(found.experts) > ALL_SHOWN
    names = found.histogram_names
    counts = {
        expert: log.vector(names[expert], step).values.astype(np.int64)
        for expert in (names if many else drawing.shown)
        if expert in names and step in log.vector_steps(names[expert])
    }
    chart = histogram_chart(counts, step, many=many)
    control = Control(
        kind="slider",
        name="histogram",
        label="Step of the histograms",
        value=str(step),
        options=_places(steps, step),
    )
    return [chart], [control]


def _places(steps: Sequence[int], chosen: int | None) -> list[Option]:
    """At most 64 steps for a slider, by powers of two, so that they seldom change."""
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
        "measured step",
        text,
        (),
        hint=f"(there are {len(steps)}; close: {', '.join(map(str, sorted(near)))})",
    )


def _known(kind: str, name: str, there: Iterable[str]) -> None:
    there = list(there)
    if name not in there:
        raise UnknownName(kind, name, there, hint=f"(there are {some(there, 3)})")


def _histogram_steps(found: OpenExperts) -> list[int]:
    """The steps of which histograms are kept: the same for all experts with a gradient."""
    steps = {
        step
        for name in list(found.histogram_names.values())[:4]
        for step in found.open.log.vector_steps(name).tolist()
    }
    return sorted(steps)


def _none_kept(run: OpenRun) -> Empty:
    if isinstance(run.log, Log):
        return Empty(
            title="No histograms",
            cause="A log of numbers has none.",
            fix="Measure with gm.watch in tier deep.",
        )
    return Empty(
        title="No histograms of experts",
        cause="They are stored only in tier deep; this run used another tier.",
        fix='Measure with tier="deep"; keep= sets how many steps of histograms stay on disk.',
        code='gm.watch(model, optimizer, run="runs/moe", tier="deep")',
    )


def _tier_charts(drawing: ShownExperts, runs: Sequence[OpenExperts]) -> list[Chart]:
    """Norms by tier and the sound companion, for each run; several runs share the axes' ends."""
    norms = [_of_run(drawing, found, norms_chart(drawing, found), NO_TIERS) for found in runs]
    sound = [
        _of_run(drawing, found, sound_chart(drawing, found, routed=routed), NO_RMS)
        for found in runs
        for routed in [bool(found.divided().divisible())]
    ]
    if len(runs) > 1:
        norms, sound = _same_axis(drawing, runs, norms), _same_axis(drawing, runs, sound)
    return [chart for pair in zip(norms, sound, strict=True) for chart in pair]


def _of_run(drawing: ShownExperts, found: OpenExperts, chart: Chart, empty: Empty) -> Chart:
    """A chart under its run's name where there are several; why it is empty where it is."""
    why = None if chart.lines else empty if drawing.shown else NOT_CHOSEN
    if not drawing.several:
        return replace(chart, empty=why)
    return replace(
        chart,
        id=f"{chart.id}-{found.open.id}",
        section=called(drawing.request, found.open),
        wide=False,
        empty=why,
    )


def _same_axis(
    drawing: ShownExperts, runs: Sequence[OpenExperts], charts: Sequence[Chart]
) -> list[Chart]:
    """Side by side, equal heights are equal numbers; ends on half decades seldom move."""
    ends = [
        pair
        for found, chart in zip(runs, charts, strict=True)
        for pair in _extremes(drawing, found, chart)
    ]
    if not ends:
        return list(charts)
    low, high = (
        round_(2 * math.log10(end)) / 2
        for round_, end in zip(
            (math.floor, math.ceil),
            (min(low for low, _ in ends), max(high for _, high in ends)),
            strict=True,
        )
    )
    axis = {"low": 10.0 ** max(low, LEAST), "high": 10.0 ** min(max(high, low + 0.5), MOST)}
    titles = {chart.y.title for chart in charts if chart.lines}
    if len(titles) > 1:  # a bare RMS beside one that is divided does not compare
        return list(charts)
    return [replace(chart, y=replace(chart.y, **axis)) for chart in charts]


def _extremes(
    drawing: ShownExperts, found: OpenExperts, chart: Chart
) -> Iterable[tuple[float, float]]:
    query = drawing.request.query
    log = found.divided() if chart.y.title == "RMS / routing weight" else found.open.log
    for line in chart.lines:
        _, values = log.part(line.name, query.first, query.last)
        shown = values[np.isfinite(values) & (values > 0)]
        if len(shown):
            yield float(shown.min()), float(shown.max())


class OpenExperts(ExpertRun):
    """The experts of a run that is being looked at."""

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run.log, names_of(run.names))
        self.open = run

    @property
    def router_choices(self) -> tuple[str, ...]:
        """All routers together first, then each, as far as the run has them."""
        rows = [self.names.get(template, ()) for template in OF_ROUTERS]
        loads = [router for router, _ in self.names.get(LOAD, ())]
        together = any(EVERY_ROUTER in routers for routers in (*rows, loads))
        return (*([EVERY_ROUTER] if together else []), *self.routers)

    def divided(self, layer: str | None = None) -> Divided:
        """The run with every tier's RMS over the routing weight, by layer or averaged."""
        return Divided(
            self.open.log, {name: tuple(pairs) for name, pairs in self.quotients(layer) if pairs}
        )


class Divided(Log):
    """A run in which the RMS of a tier is divided by the routing weight, so that lines of it are
    thinned and live like any.

    Division is done in each layer and the quotients averaged: every layer has routing weights of
    its own, and in what is pooled over layers they do not divide out.
    """

    def __init__(self, run: Run | Log, quotients: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        super().__init__(run.path, name=run.name, run_id="", rows=())
        self._run, self._quotients = run, quotients
        self._weights: dict[tuple[str, int | None, int | None], tuple[Ints, Floats]] = {}

    @property
    def first_step(self) -> int | None:
        """As the run's."""
        return self._run.first_step

    def names(self) -> list[str]:
        """As the run's: any of them may be the x axis."""
        return self._run.names()

    def divisible(self) -> frozenset[str]:
        """The series that have something to be divided by."""
        return frozenset(self._quotients)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """All of it."""
        return self.part(name)

    def part(
        self, name: str, first: int | None = None, last: int | None = None
    ) -> tuple[Ints, Floats]:
        """RMS / routing weight where both are and the weight is not 0; the mean over layers."""
        pairs = self._quotients[name]
        return mean_over_layers([self._quotient(*pair, first, last) for pair in pairs])

    def latest(self, name: str, steps: Ints) -> Floats:
        """As the run's, for the x axis."""
        return self._run.latest(name, steps)

    def where(self, column: str, steps: Ints) -> Floats:
        """As the run's, for the x axis."""
        return self._run.where(column, steps)

    def _quotient(
        self, rms: str, weight: str, first: int | None, last: int | None
    ) -> tuple[Ints, Floats]:
        asked = (weight, first, last)
        if asked not in self._weights:  # the tiers of an expert share it
            self._weights[asked] = self._run.part(*asked)
        return quotient(self._run.part(rms, first, last), self._weights[asked])


def experts_in(run: OpenRun) -> OpenExperts | None:
    """The experts of a run; None when nothing of one was measured."""
    found = OpenExperts(run)
    return found if any(map(found.has, (*OVER_LAYERS, *LAYER_NORMS, *IN_A_LAYER))) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExperts:
    """The request with the experts that are to be seen."""

    request: ViewRequest
    shown: tuple[str, ...]
    most: int | None
    """Points of a line; None: as asked."""
    several: bool
    """Whether more than one run has experts."""

    def label(self, found: OpenExperts, words: str) -> str:
        """What a line is called: with its run where there are several in a chart."""
        return f"{called(self.request, found.open)} · {words}" if self.several else words

    def singles(
        self, found: OpenExperts, template: str, *, tier: str = "bottom", ending: str = ""
    ) -> list[Line]:
        """One line an expert, in the medium shade unless told."""
        names = [(expert, found.name(template, expert)) for expert in self.shown]
        return [
            self.request.line(
                found.open,
                name,
                self.label(found, f"expert {expert}{ending}"),
                role=f"expert:{expert}:{tier}",
                most=self.most,
            )
            for expert, name in names
            if name is not None
        ]

    def tiers(
        self,
        found: OpenExperts,
        templates: Iterable[str],
        *,
        layer: str | None = None,
        routed: bool = False,
    ) -> list[Line]:
        """Three lines an expert."""
        run, there = found.open, None
        if routed:
            # Points are kept by the state of a file: those that are divided must not be taken for
            # the file's own.
            divided = found.divided(layer)
            run = replace(run, log=divided, signature=(*run.signature, DIVIDED))
            there = divided.divisible()
        rows = [(expert, expert if layer is None else (layer, expert)) for expert in self.shown]
        wanted = list(zip(TIERS, templates, strict=True))
        return [
            self.request.line(
                run,
                name,
                f"expert {expert}, {WORDS[tier]}",
                role=f"expert:{expert}:{tier}",
                most=self.most,
            )
            for expert, row in rows
            for tier, template in wanted
            if (name := found.name(template, row)) is not None and (there is None or name in there)
        ]

    def of_router(self, found: OpenExperts, router: str, wanted: dict[str, str]) -> list[Line]:
        """A line for each of the quantities that the run has."""
        return [
            self.request.line(found.open, name, words, role=ROLES[template], most=self.most)
            for template, words in wanted.items()
            if (name := found.name(template, router)) is not None
        ]

    def loads(self, found: OpenExperts, router: str, *, many: bool) -> list[Line]:
        """The share of each expert, of many experts in fewer points."""
        return [
            self.request.line(
                found.open,
                name,
                f"expert {expert}",
                role=f"expert:{expert}:bottom",
                key=expert,
                most=ROWS_POINTS if many else self.most,
            )
            for expert in (found.experts if many else self.shown)
            if (name := found.name(LOAD, (router, expert))) is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The three questions of a run, answered, or why they cannot be."""

    answers: Answers | None = None
    problem: str = ""
    fresh: bool = True
    """Made of all that is measured by now."""


@dataclass(slots=True)
class _Kept:
    pulse: Any
    judgement: Judgement
    until: float
    """When it may be made anew, on the monotonic clock."""


@dataclass(slots=True)
class Judgements:
    """Judgements by run. One takes seconds: while a run goes on, it rests in between."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[str, _Kept] = field(default_factory=dict)

    def judge(self, found: OpenExperts) -> Judgement:
        """The answers on a run, at most some seconds old."""
        where, pulse = str(found.open.log.path), _pulse(found)
        with self.guard:  # whoever asks meanwhile would only compute the same
            known = self.kept.pop(where, None)
            if known is None or (known.pulse != pulse and time.monotonic() >= known.until):
                began = time.monotonic()
                judgement, ended = _judge(found), time.monotonic()
                known = _Kept(
                    pulse=pulse,
                    judgement=judgement,
                    until=ended + REST_PER_SECOND * (ended - began),
                )
            self.kept[where] = known
            while len(self.kept) > MOST_KEPT:
                self.kept.pop(next(iter(self.kept)))
        if known.pulse == pulse:
            return known.judgement
        return Judgement(
            answers=known.judgement.answers, problem=known.judgement.problem, fresh=False
        )


def _pulse(found: OpenExperts) -> Any:
    """Another one when experts were measured again, or the run began anew."""
    log, steps = found.open.log, found.looked_at
    ends = (int(steps[0]), int(steps[-1])) if len(steps) else ()
    return (
        log.facts.get("started"),
        len(log.events("resumed")),
        len(found.open.names),
        len(steps),
        ends,
    )


def _judge(found: OpenExperts) -> Judgement:
    try:
        return Judgement(answers=judge(found.open.log))
    except UsageError as problem:
        return Judgement(problem=str(problem))


def answers_of(run: OpenRun, judgement: Judgement) -> list[ExpertAnswer]:
    """The three questions about experts as the page shows them."""
    if judgement.answers is None:
        return []
    return [
        ExpertAnswer(
            run=run.id,
            question=answer.question,
            verdict=SENTENCES[answer.verdict],
            tone=answer.tone,
            source_reading=answer.source_reading,
            sound_reading=answer.sound_reading,
            missing=list(answer.missing),
        )
        for answer in judgement.answers.answers
    ]


def header_of(found: OpenExperts, judgement: Judgement | None) -> list[str]:
    """Divergence, what is left of it after routing, what is wrong, and what to try."""
    score, companion = _divergence(found, judgement)
    lines = [score, *companion, *_absent(found), *_said(found.open)]
    if judgement is None:
        return lines
    if judgement.problem:
        lines.append(f"The three questions cannot be answered: {judgement.problem}.")
    if judgement.answers is not None:
        old = "" if judgement.fresh else f" (as of step {judgement.answers.last_step})"
        lines += [f"Compared{old}: {judgement.answers.reference.removeprefix('compared ')}."]
        lines += [f"{note[:1].upper()}{note[1:]}." for note in judgement.answers.notes]
        lines += [f"Try next: {advice}" for advice in judgement.answers.next]
    return lines


def _divergence(found: OpenExperts, judgement: Judgement | None) -> tuple[str, list[str]]:
    """Prismatic's latest score and its reading; then whether routing explains it, as question 2
    is answered."""
    recent = found.lately(DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED, COSINE)
    field = recent.field(DIVERGENCE)
    rows = [
        (row, np.flatnonzero(there)) for row, there in zip(field.rows, field.there, strict=True)
    ]
    latest = {row: float(field.row(row)[0][places[-1]]) for row, places in rows if len(places)}
    score = "Divergence score: not measured."
    if latest:
        step = max(int(field.steps[places[-1]]) for _, places in rows if len(places))
        score = (
            f"Divergence score at step {step}: {_score(latest)}: {_reading(list(latest.values()))}."
        )
    if judgement is None or not recent.names:
        return score, []
    return score, [
        f"With the routing weight taken out: {_without_markup(verdict(recent, judgement.answers))}"
    ]


def _score(latest: dict[str, float]) -> str:
    known = {expert: value for expert, value in latest.items() if np.isfinite(value)}
    if len(latest) <= NAMED or not known:
        return ", ".join(
            f"{fmt(value)} (expert {expert})" for expert, value in list(latest.items())[:NAMED]
        )
    least, most = (pick(known, key=lambda expert: known[expert]) for pick in (min, max))
    middle = fmt(float(np.median(list(known.values()))))
    return (
        f"{middle} in the median of {len(known)} experts, from {fmt(known[least])} (expert {least})"
        f" to {fmt(known[most])} (expert {most})"
    )


def _reading(values: Sequence[float]) -> str:
    """As the Prismatic dynamics tab reads it."""
    rule = f"above {MEANINGFUL} is meaningful, below {CONVERGED} converging"
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return f"no finite number ({rule})"
    if min(known) > MEANINGFUL:
        return f"meaningful ({rule})"
    if max(known) < CONVERGED:
        return f"converging ({rule})"
    return (
        f"meaningful in some experts ({rule})"
        if max(known) > MEANINGFUL
        else f"in between ({rule})"
    )


def _without_markup(text: str) -> str:
    """The figures' words without their mathematics markup."""
    return re.sub(r"\$(.+?)\\times10\^\{(-?\d+)\}\$", r"\1e\2", text)


def _absent(found: OpenExperts) -> Iterator[str]:
    """Experts that a router knows, or that are counted past, without recorded gradients."""
    measured = {
        e
        for template in (NORM, *map(norm_of, ("top", "bottom", "middle")))
        for e in found.names.get(template, ())
    }
    numbers = [int(expert) for expert in measured if expert.isdecimal()]
    expected = {str(number) for number in range(max(numbers, default=-1) + 1)} | set(found.experts)
    if missing := in_order(expected - measured):
        yield (
            f"No gradient norms of {listed(missing)}: the router never asked them, or they were not"
            " among those logged. In a loop of your own go through every expert."
        )


def _said(run: OpenRun) -> Iterator[str]:
    """What the run itself remarked when experts had no gradient."""
    for event in [] if isinstance(run.log, Log) else run.log.events(MISSING_EVENT)[:MISSING_SAID]:
        yield f"Step {event.step}: {event.message}."


def no_experts(run: OpenRun) -> Empty:
    """Nothing to draw: why, as far as the run says it, and how there would be something."""
    return Empty(title=f"No expert gradients in {run.label}", cause=_cause(run), fix=FIX, code=CODE)


def _cause(run: OpenRun) -> str:
    log = run.log
    if isinstance(log, Log):
        kind = log.facts.get("imported", {}).get("format", "another tool")
        return (
            f"This is a log of {kind} with {len(run.names)} series, and none is an expert's"
            " gradient (grad/expert/0/top_norm, or expert_0_top_norm as a Prismatic log has it)."
        )
    said = list(_said(run))
    if said:
        return f"The run says why. {' '.join(said)}"
    if "experts_every" in (meter := log.facts.get("meter", {})) and meter["experts_every"] is None:
        return "The meter was set not to measure experts (experts_every=None)."
    return (
        "The meter found no experts beside a router in this model, or was told to leave them out"
        " (experts=False)."
    )


JUDGEMENTS = Judgements()
