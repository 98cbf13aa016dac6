"""The charts of experts and routers: norms by tier, the same with routing divided out, divergence,
layers, loads and sizes; and what they say in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from gradiometer.charts.model import Axis, Bars, Chart, Level, Line, Matrix, info_of
from gradiometer.doctor.experts.answers import Answers, Verdict
from gradiometer.doctor.experts.series import (
    BALANCE,
    COSINE,
    DEAD,
    DIVERGENCE,
    GRAD_AUX,
    GRAD_TASK,
    LAYER_NORM,
    LAYER_WEIGHT,
    LOAD,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    NORM,
    RECENT,
    ROUTER_GRAD,
    TIERS,
    WEIGHT,
    Bools,
    ExpertRun,
    Field,
    layer_norm_of,
    norm_of,
    rms_of,
)
from gradiometer.store.strictjson import plain
from gradiometer.store.thinning import Floats, Ints
from gradiometer.words import typeset

__all__ = [
    "BIN_EDGES",
    "ExpertLines",
    "bare_layers",
    "bin_name",
    "divergence_charts",
    "divergence_words",
    "evenness_chart",
    "fair_share",
    "histogram_chart",
    "layer_cells",
    "layer_charts",
    "layer_map",
    "layer_maps",
    "load_chart",
    "norms_chart",
    "router_gradient_chart",
    "routing_points",
    "shares",
    "sound_chart",
    "verdict",
]

MEANINGFUL, CONVERGED = 0.05, 0.01
"""How the Prismatic dynamics log reads its divergence."""
LEFT = 0.05
"""|log ratio| under which two tiers are of one size: five per cent."""
NOTHING = 0.001
"""A ratio below it is rounding."""
ALIKE = 0.99
"""A cosine above it is one direction."""
WORDS = {"top": "top 5 %", "bottom": "bottom 5 %", "middle": "middle 90 %"}
NAMED = 3
"""So many experts have their divergence in the header one by one."""
SINGLY = 3
"""As many experts beside expert 0 have lines of their own, where nobody chose some."""
SHADES = (
    "Expert 0 in blues, the others in reds and oranges; light: top 5 % of the weights, medium:"
    " bottom 5 %, dark: the rest."
)
ONE_CURVE = "where experts differ only in routing, their curves are one."
WRITTEN = 60
"""Up to so many cells have their number written into them."""
BEYOND = ("zero", "NaN", "Inf")
BIN_EDGES: Floats = np.arange(-12.5, 5.0, 0.5)
"""log10 of |g|: a bin for what is below 1e-12, 32 half decades, and a bin for what is above 1e4."""
ZERO, FIRST, LAST, NAN, INF = 0, 1, 34, 35, 36
"""Places in the counts: exact zeros, the first and last bin of sizes, NaN, Inf."""
ROLES = {
    GRAD_TASK: "term:task",
    GRAD_AUX: "term:aux",
    ROUTER_GRAD: "raw",
    BALANCE: "term:balance",
    DEAD: "term:dead",
}
"""Of the lines of a router."""
STEP = Axis(title="step")
Found = TypeVar("Found", bound=ExpertRun, contravariant=True)
Run = TypeVar("Run", bound=ExpertRun)


class ExpertLines(Protocol[Found]):
    """Where lines come from: the page's are thinned and live, those of a figure are whole."""

    def singles(
        self, found: Found, template: str, *, tier: str = "bottom", ending: str = ""
    ) -> list[Line]:
        """Lines by expert, in the shade of a tier."""
        ...

    def tiers(
        self,
        found: Found,
        templates: Iterable[str],
        *,
        layer: str | None = None,
        routed: bool = False,
    ) -> list[Line]:
        """Lines by expert and tier, in a layer or over all; `routed`: over the routing weight."""
        ...

    def of_router(self, found: Found, router: str, wanted: dict[str, str]) -> list[Line]:
        """A line for each of the quantities of a router, with what to call it."""
        ...


def norms_chart(lines: ExpertLines[Run], found: Run) -> Chart:
    """Norms of the tiers of weights."""
    return Chart(
        id="tiers",
        kind="lines",
        title="Gradient norm by expert and tier of weights",
        section="Tiers",
        subtitle=SHADES,
        x=STEP,
        y=Axis(title="gradient norm", scale="log"),
        lines=lines.tiers(found, map(norm_of, TIERS)),
        info=info_of(*map(norm_of, TIERS)),
        wide=True,
    )


def sound_chart(lines: ExpertLines[Run], found: Run, *, routed: bool) -> Chart:
    """RMS / routing weight, or the bare RMS without weights."""
    templates = [rms_of(tier) for tier in TIERS]
    bare = "RMS of the gradient (not divided: no routing weights in this run)"
    inside = found.has(LAYER_WEIGHT)
    where = "in each layer, then the mean over layers" if inside else "over all layers"
    return Chart(
        id="sound",
        kind="lines",
        title="RMS per routing weight" if routed else bare,
        section="Tiers",
        subtitle=f"RMS / routing weight {where}: {ONE_CURVE}" if routed else "",
        x=STEP,
        y=Axis(title="RMS / routing weight" if routed else "RMS", scale="log"),
        lines=lines.tiers(found, templates, routed=routed),
        info=info_of(*templates, WEIGHT),
        wide=True,
    )


def divergence_charts(lines: ExpertLines[Run], runs: Sequence[Run]) -> list[Chart]:
    """The score by tier norms, ratios, cosines and routing weights; those that have lines."""

    def overlaid(*templates: str, **decided: Any) -> Chart:
        drawn = [
            line
            for found in runs
            for template in templates
            for line in lines.singles(found, template, **PALE.get(template, {}))
        ]
        info = info_of(*templates)
        return Chart(kind="lines", section="Divergence", x=STEP, lines=drawn, info=info, **decided)

    each = [
        overlaid(
            DIVERGENCE,
            id="divergence",
            title="Divergence from expert 0, by tier norms",
            y=Axis(title="mean |norm − norm of expert 0|", scale="log"),
            levels=[
                Level(value=MEANINGFUL, label=f"{MEANINGFUL}: meaningful above"),
                Level(value=CONVERGED, label=f"{CONVERGED}: converging below"),
            ],
        ),
        overlaid(
            LOG_RATIO,
            LOG_RATIO_ROUTED,
            id="log-ratio",
            title="|log ratio| to expert 0",
            subtitle=(
                "Pale: of the tiers' RMS as they are. Strong: after dividing by routing weights."
            ),
            y=Axis(title="nats"),
            levels=[Level(value=LEFT, label=f"{LEFT}: one size below")],
        ),
        overlaid(
            COSINE,
            id="cosine",
            title="Cosine to expert 0's gradient",
            y=Axis(title="cosine"),
            levels=[Level(value=ALIKE, label=f"{ALIKE}: one direction above")],
        ),
        overlaid(
            WEIGHT,
            id="routing-weight",
            title="Routing weight",
            y=Axis(title="mean weight"),
            levels=[] if len(runs) > 1 else fair_share(runs[0]),
        ),
    ]
    return [chart for chart in each if chart.lines]


PALE: dict[str, dict[str, str]] = {
    LOG_RATIO: {"tier": "top", "ending": ", with routing"},
    LOG_RATIO_ROUTED: {"ending": ", routing divided out"},
}


def fair_share(found: ExpertRun) -> list[Level]:
    """Where every expert is asked alike."""
    return [Level(value=1 / len(found.experts), label=f"1/{len(found.experts)}: asked alike")]


def layer_charts(lines: ExpertLines[Run], found: Run, layer: str) -> list[Chart]:
    """Norms of the tiers in one layer, and what routing leaves of them there."""
    norms = [layer_norm_of(tier) for tier in TIERS]
    rms = [rms_of(tier, layered=True) for tier in TIERS]
    name = layer.removeprefix("layer.")
    charts = [
        Chart(
            id="layer-tiers",
            kind="lines",
            title=f"{name}: gradient norm by expert and tier",
            subtitle=SHADES,
            x=STEP,
            y=Axis(title="gradient norm", scale="log"),
            lines=lines.tiers(found, norms, layer=layer),
            info=info_of(*norms),
        ),
        Chart(
            id="layer-sound",
            kind="lines",
            title=f"{name}: RMS per routing weight",
            x=STEP,
            y=Axis(title="RMS / routing weight", scale="log"),
            lines=lines.tiers(found, rms, layer=layer, routed=True),
            info=info_of(*rms, LAYER_WEIGHT),
        ),
    ]
    return [chart for chart in charts if chart.lines]


def load_chart(found: ExpertRun, lines: Sequence[Line], words: str, *, many: bool) -> Chart:
    """Lines of the few; of many experts a row each, for the idle one among them matters."""
    return Chart(
        id="load",
        kind="map" if many else "lines",
        title=f"Load: share of the routed tokens, {words}",
        x=STEP,
        y=Axis(title="expert" if many else "share", low=None if many else 0.0),
        lines=lines,
        levels=[] if many else fair_share(found),
        reduce="mean",
        info=info_of(LOAD),
    )


def evenness_chart(lines: ExpertLines[Run], found: Run, router: str, words: str) -> Chart:
    """How evenly a router asks the experts."""
    wanted = {BALANCE: "balance", DEAD: "dead share"}
    return Chart(
        id="evenness",
        kind="lines",
        title=f"Balance and dead share, {words}",
        x=STEP,
        y=Axis(low=0.0, high=1.05),
        lines=lines.of_router(found, router, wanted),
        levels=[Level(value=1.0, label="1: every expert has its share")],
        info=info_of(BALANCE, DEAD),
    )


def router_gradient_chart(lines: ExpertLines[Run], found: Run, router: str, words: str) -> Chart:
    """Whether the task trains the router at all."""
    wanted = {
        GRAD_TASK: "from the task",
        GRAD_AUX: "from auxiliary losses",
        ROUTER_GRAD: "whole gradient",
    }
    split = any(found.name(template, router) for template in (GRAD_TASK, GRAD_AUX))
    unsplit = "What the task and what auxiliary losses contribute is known with meter.terms."
    return Chart(
        id="router-gradient",
        kind="lines",
        title=f"Gradient of the router, {words}",
        subtitle="" if split else unsplit,
        x=STEP,
        y=Axis(title="norm", scale="log"),
        lines=lines.of_router(found, router, wanted),
        info=info_of(GRAD_TASK, GRAD_AUX, ROUTER_GRAD),
    )


def layer_maps(found: ExpertRun, tier: str, step: int | None) -> list[Chart]:
    """RMS of a tier, its ratio to expert 0, and the same after routing."""
    template = rms_of(tier, layered=True)
    read = found.lately(template, LAYER_WEIGHT, step=step)
    if not read.has(template):
        return []
    rms = read.field(template)
    ratio = _ratio(rms)
    charts = [layer_map(found, rms, tier, step), _ratio_map(found, ratio, tier, step)]
    if read.has(LAYER_WEIGHT):
        routed = _ratio(rms.over(read.field(LAYER_WEIGHT)))
        charts.append(_ratio_map(found, routed, tier, step, routed=True))
    return charts


def layer_map(found: ExpertRun, rms: Field, tier: str, step: int | None) -> Chart:
    """Layer × expert of the RMS of a tier."""
    names, common = bare_layers(found.layers)
    values, there = layer_cells(found, rms, step)
    last = f"median of the last {min(len(rms.steps), RECENT)} measured steps"
    matrix = Matrix(
        rows=names,
        columns=list(found.experts),
        cells=[
            [plain(value) if known else None for value, known in zip(*row, strict=True)]
            for row in zip(values.tolist(), there.tolist(), strict=True)
        ],
        scale="log",
        written=len(rms.rows) <= WRITTEN,
    )
    return Chart(
        id="layers-rms",
        kind="matrix",
        title=f"RMS of the gradient, {WORDS[tier]} of the weights",
        subtitle=last if step is None else f"step {step}",
        x=Axis(title="expert"),
        y=Axis(title=f"layer {common}" if common else "layer"),
        matrix=matrix,
        info=info_of(rms_of(tier, layered=True)),
    )


def _ratio_map(
    found: ExpertRun, ratio: Field, tier: str, step: int | None, *, routed: bool = False
) -> Chart:
    """The same of log ratios to expert 0: signed, in nats."""
    made = layer_map(found, ratio, tier, step)
    assert made.matrix is not None
    values, known = ratio.at(step)
    sizes = np.abs(values[known & np.isfinite(values)])
    end = max(float(sizes.max()), LEFT) if len(sizes) else LEFT
    ends: dict[str, Any] = {"low": -end, "high": end, "scale": "linear", "colours": "diverging"}
    divided = ", routing divided out" if routed else ""
    templates = (rms_of(tier, layered=True), *((LAYER_WEIGHT,) if routed else ()))
    return replace(
        made,
        id="layers-routed" if routed else "layers-ratio",
        title=f"log RMS ratio to expert 0{divided}, {WORDS[tier]} of the weights",
        subtitle=f"{made.subtitle}, in nats",
        matrix=replace(made.matrix, **ends),
        info=info_of(*templates),
    )


def _ratio(field: Field) -> Field:
    """log of each row over expert 0 of its layer, where that is more than zero."""
    base, known = field.like((layer, "0") for layer, _ in field.rows)
    there = field.there & known & (base != 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(there, np.log(field.values) - np.log(base), np.nan)
    return Field(rows=field.rows, steps=field.steps, values=ratios, there=there)


def layer_cells(found: ExpertRun, field: Field, step: int | None) -> tuple[Floats, Bools]:
    """[layers, experts] of a quantity in layers, and where there is one."""
    values = np.full((len(found.layers), len(found.experts)), np.nan)
    there = np.zeros(values.shape, dtype=np.bool_)
    rows = {name: place for place, name in enumerate(found.layers)}
    columns = {name: place for place, name in enumerate(found.experts)}
    for (layer, expert), value, known in zip(field.rows, *field.at(step), strict=True):
        values[rows[layer], columns[expert]] = value
        there[rows[layer], columns[expert]] = known
    return values, there


def bare_layers(layers: Sequence[str]) -> tuple[list[str], str]:
    """Layers by the part of the path in which they differ, and the path with a star there."""
    paths = [layer.removeprefix("layer.").split(".") for layer in layers]
    if len(paths) < 2:
        return [".".join(path) for path in paths], ""
    shortest = min(map(len, paths)) - 1  # one part is left for the name
    before = next((n for n in range(shortest) if len({path[n] for path in paths}) > 1), shortest)
    after = next(
        (n for n in range(shortest - before) if len({path[-1 - n] for path in paths}) > 1),
        shortest - before,
    )
    first = paths[0]
    names = [".".join(path[before : len(path) - after]) for path in paths]
    return names, (
        ".".join([*first[:before], "*", *first[len(first) - after :]]) if before or after else ""
    )


def shares(counts: Ints) -> Floats:
    """The 34 bins as shares of all elements, zeros and non-finite ones among them."""
    total = int(counts.sum())
    return counts[FIRST : LAST + 1] / total if total else np.zeros(LAST - FIRST + 1)


def histogram_chart(counts: dict[str, Ints], step: int, *, many: bool) -> Chart:
    """Counts by size of the element: bars of the chosen few, or a row for every expert."""
    there = list(counts)
    places = _filled(list(counts.values()))
    bins = [bin_name(place) for place in places]
    title = f"Sizes of the gradient's elements at step {step}"
    subtitle = "Elements of each expert's gradient by |g|, two bins for each power of ten."
    if many:
        cells = [[int(counts[expert][place]) for place in places] for expert in there]
        matrix = Matrix(rows=there, columns=bins, cells=cells, scale="log")
        return Chart(
            id="histograms",
            kind="matrix",
            title=title,
            subtitle=subtitle,
            wide=True,
            x=Axis(title="log10 |g|"),
            y=Axis(title="expert"),
            matrix=matrix,
        )
    bars = [
        Bars(
            label=f"expert {expert}",
            role=f"expert:{expert}:bottom",
            categories=bins,
            values=[int(counts[expert][place]) for place in places],
            notes=[
                f"{counts[expert][place] / max(int(counts[expert].sum()), 1):.3%}"
                for place in places
            ],
        )
        for expert in there
    ]
    return Chart(
        id="histograms",
        kind="bars",
        title=title,
        subtitle=subtitle,
        wide=True,
        x=Axis(title="log10 |g|"),
        y=Axis(title="elements", low=0.0),
        bars=bars,
    )


def _filled(counts: Sequence[np.ndarray]) -> list[int]:
    """The bins from the first filled one to the last; zero, NaN and Inf where there are any."""
    total = np.sum(counts, axis=0) if counts else np.zeros(INF + 1, dtype=np.int64)
    filled = (FIRST + np.flatnonzero(total[FIRST : LAST + 1])).tolist()
    inside = list(range(filled[0], filled[-1] + 1)) if filled else []
    return [
        *(place for place in (ZERO,) if total[place]),
        *inside,
        *(place for place in (NAN, INF) if total[place]),
    ]


def bin_name(place: int) -> str:
    """What a count is of, in log10 |g|."""
    if place in (ZERO, NAN, INF):
        return BEYOND[(ZERO, NAN, INF).index(place)]
    low, high = BIN_EDGES[place - FIRST], BIN_EDGES[place - FIRST + 1]
    return (
        f"below {high:g}"
        if place == FIRST
        else f"above {low:g}"
        if place == LAST
        else f"{low:g} to {high:g}"
    )


def divergence_words(found: ExpertRun) -> str:
    """Prismatic's score at the end of the run, with its readings."""
    known = found.field(DIVERGENCE).at_the_end()
    if not known:
        return "divergence: not measured"
    if len(known) <= NAMED:
        score = ", ".join(f"expert {expert}: {typeset(value)}" for expert, value in known.items())
    else:
        least, most = (pick(known, key=lambda expert: known[expert]) for pick in (min, max))
        ends = f"{typeset(known[least])} (expert {least}) to {typeset(known[most])} (expert {most})"
        score = (
            f"{typeset(float(np.median(list(known.values()))))} over {len(known)} experts, from"
            f" {ends}"
        )
    over = f"median of the last {min(len(found.steps), RECENT)} measured steps"
    bounds = f"Prismatic: > {MEANINGFUL} meaningful, < {CONVERGED} converged"
    return f"divergence {score} · {over} · {bounds}"


def routing_points(found: ExpertRun) -> tuple[list[tuple[str, float, float]], int]:
    """(expert, weight over expert 0's, norm over expert 0's) at the end of the run, for each layer
    where the layers have both; and how many experts are left out because a number is zero or
    missing."""
    inside = found.has(LAYER_NORM, LAYER_WEIGHT)
    norms = found.field(LAYER_NORM if inside else NORM).at_the_end()
    weights = found.field(LAYER_WEIGHT if inside else WEIGHT).at_the_end()
    layers: tuple[str | None, ...] = found.layers if inside else (None,)
    points, absent = [], 0
    if not norms or not weights:
        return [], 0
    for layer in layers:
        for expert in found.experts:
            row, first = (expert, "0") if layer is None else ((layer, expert), (layer, "0"))
            numbers = [of.get(place, 0.0) for of in (weights, norms) for place in (row, first)]
            if expert == "0":
                continue
            if min(numbers) > 0:
                points.append((expert, numbers[0] / numbers[1], numbers[2] / numbers[3]))
            else:
                absent += 1
    return points, absent


EXPLAINED: dict[Verdict, str] = {
    "explained by routing": "Routing explains the divergence: experts differ in how often they are"
    " used, not in what they learn",
    "genuine": "Routing does not explain the divergence",
    "undecided": "Whether routing explains the divergence is undecided",
    "dead": "No expert beside expert 0 has a gradient that could diverge",
}
"""The second question's answer, as a sentence."""


def verdict(found: ExpertRun, answers: Answers | None) -> str:
    """Whether routing explains the divergence, as the second question is answered, with the
    numbers at the end of the run."""
    before, after, cosine = (
        _middle(found, template) for template in (LOG_RATIO, LOG_RATIO_ROUTED, COSINE)
    )
    numbers = [
        *([] if before is None else [f"|log ratio| {_size(before)} with routing in it"]),
        "log_ratio_routed was not measured"
        if after is None
        else f"{_size(after)} after dividing by routing weights",
        *([] if cosine is None else [f"cosine to expert 0 {typeset(cosine)}"]),
    ]
    words = (
        "Whether routing explains the divergence cannot be said"
        if answers is None
        else EXPLAINED[answers.divergence.verdict]
    )
    return f"{words} ({', '.join(numbers)}; median over experts at the end)."


def _size(ratio: float) -> str:
    return typeset(ratio) if ratio >= NOTHING else f"under {NOTHING}"


def _middle(found: ExpertRun, template: str) -> float | None:
    known = list(found.field(template).at_the_end().values())
    return float(np.median(known)) if known else None
