"""The curves of the tab Dynamics: source 002's chart, the same with routing divided out, divergence, and routers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradiometer.dashboard.desk import Desk, info_of
from gradiometer.dashboard.shape import Axis, Chart, Empty, Level, Line
from gradiometer.dashboard.views.dynamics_runs import Divided, Experts, layer_norm_of
from gradiometer.dashboard.views.series import called
from gradiometer.plots.divergence import ALIKE, LEFT
from gradiometer.plots.dynamics import CONVERGED, MEANINGFUL, WORDS
from gradiometer.plots.expertdata import (
    COSINE,
    DIVERGENCE,
    LAYER_WEIGHT,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    TIERS,
    WEIGHT,
    norm_of,
    rms_of,
)

__all__ = ["Drawing", "divergence_charts", "fair_share", "layer_charts", "tier_charts"]

SHADES = "Expert 0 in blues, the others in reds and oranges; light: top 5 % of the weights, medium: bottom 5 %, dark: the rest."
ONE_CURVE = "where experts differ only in routing, their curves are one."
LEAST, MOST = -323, 308
"""Powers of ten that are floats."""
DIVIDED = (-1, -1)
"""No file has this size."""
NOT_CHOSEN = Empty(title="No expert is chosen", cause="The list of experts is empty.", fix="Choose some above.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The desk with the experts that are to be seen."""

    desk: Desk
    shown: tuple[str, ...]
    most: int | None
    """Points of a line; None: as asked."""
    several: bool
    """Whether more than one run has experts."""

    def label(self, found: Experts, words: str) -> str:
        """What a line is called: with its run where there are several in a chart."""
        return f"{called(self.desk, found.run)} · {words}" if self.several else words

    def singles(self, found: Experts, template: str, *, tier: str = "bottom", ending: str = "") -> list[Line]:
        """One line an expert, in the medium shade unless told."""
        names = [(expert, found.name(template, expert)) for expert in self.shown]
        return [
            self.desk.line(
                found.run, name, self.label(found, f"expert {expert}{ending}"), role=f"expert:{expert}:{tier}",
                most=self.most,
            )
            for expert, name in names
            if name is not None
        ]  # fmt: skip

    def tiers(
        self, found: Experts, templates: Iterable[str], layer: str | None = None, of: Divided | None = None
    ) -> list[Line]:
        """Three lines an expert; `of` is where their numbers come from if not from the run itself."""
        # Points are kept by the state of a file: those that are divided must not be taken for the file's own.
        run = found.run if of is None else replace(found.run, log=of, signature=(*found.run.signature, DIVIDED))
        there = None if of is None else of.divisible()
        rows = [(expert, expert if layer is None else (layer, expert)) for expert in self.shown]
        wanted = list(zip(TIERS, templates, strict=True))
        return [
            self.desk.line(
                run, name, f"expert {expert}, {WORDS[tier]}", role=f"expert:{expert}:{tier}", most=self.most
            )
            for expert, row in rows
            for tier, template in wanted
            if (name := found.name(template, row)) is not None and (there is None or name in there)
        ]  # fmt: skip


def tier_charts(drawing: Drawing, runs: Sequence[Experts]) -> list[Chart]:
    """For each run source 002's chart and its sound companion; several runs share the ends of the axes."""
    norms = [_norms(drawing, found) for found in runs]
    sound = [_sound(drawing, found) for found in runs]
    if len(runs) > 1:
        norms, sound = _same_axis(drawing, runs, norms), _same_axis(drawing, runs, sound)
    return [chart for pair in zip(norms, sound, strict=True) for chart in pair]


def _norms(drawing: Drawing, found: Experts) -> Chart:
    lines = drawing.tiers(found, map(norm_of, TIERS))
    empty = Empty(
        title="No norms of tiers", cause="The run has no grad/expert/0/top_norm, bottom_norm and middle_norm over all layers.",
        fix="Measure with gm.watch, or choose a layer below.",
    )  # fmt: skip
    return Chart(
        id=_id(drawing, "tiers", found), kind="lines", title="Gradient norm by expert and tier of weights",
        section=_section(drawing, found, "Tiers"), subtitle=SHADES, x=Axis(title="step"),
        y=Axis(title="gradient norm", scale="log"), lines=lines, info=info_of(*map(norm_of, TIERS)),
        empty=None if lines else empty if drawing.shown else NOT_CHOSEN, wide=not drawing.several,
    )  # fmt: skip


def _sound(drawing: Drawing, found: Experts) -> Chart:
    """RMS / routing weight, the bare RMS without weights, or why there is neither."""
    templates = [rms_of(tier) for tier in TIERS]
    divided = found.divided()
    routed = bool(divided.divisible())
    lines = drawing.tiers(found, templates, of=divided if routed else None)
    title = "RMS per routing weight" if routed else "RMS of the gradient (not divided: no routing weights in this run)"
    empty = Empty(
        title="Routing cannot be divided out",
        cause="top_rms, bottom_rms, middle_rms and routing_weight were not measured: the chart above mostly shows how often "
        "the router asks each expert.",
        fix="Measure with gm.watch: it records them beside the norms. A dynamics.db has no column for them.",
    )  # fmt: skip
    return Chart(
        id=_id(drawing, "sound", found), kind="lines", title=title, section=_section(drawing, found, "Tiers"),
        subtitle=_division(found) if routed else "", x=Axis(title="step"),
        y=Axis(title="RMS / routing weight" if routed else "RMS", scale="log"), lines=lines,
        info=info_of(*templates, WEIGHT), empty=None if lines else empty if drawing.shown else NOT_CHOSEN,
        wide=not drawing.several,
    )  # fmt: skip


def _division(found: Experts) -> str:
    where = "in each layer, then the mean over layers" if found.has(LAYER_WEIGHT) else "over all layers"
    return f"RMS / routing weight {where}: {ONE_CURVE}"


def _same_axis(drawing: Drawing, runs: Sequence[Experts], charts: Sequence[Chart]) -> list[Chart]:
    """Side by side, the same height is the same number. Ends are on half decades, so that they seldom move."""
    ends = [pair for found, chart in zip(runs, charts, strict=True) for pair in _extremes(drawing, found, chart)]
    if not ends:
        return list(charts)
    low, high = (round_(2 * math.log10(end)) / 2 for round_, end in zip(
        (math.floor, math.ceil), (min(low for low, _ in ends), max(high for _, high in ends)), strict=True
    ))  # fmt: skip
    axis = {"low": 10.0 ** max(low, LEAST), "high": 10.0 ** min(max(high, low + 0.5), MOST)}
    titles = {chart.y.title for chart in charts if chart.lines}
    if len(titles) > 1:  # a bare RMS beside one that is divided does not compare
        return list(charts)
    return [replace(chart, y=replace(chart.y, **axis)) for chart in charts]


def _extremes(drawing: Drawing, found: Experts, chart: Chart) -> Iterable[tuple[float, float]]:
    ask = drawing.desk.ask
    log = found.divided() if chart.y.title == "RMS / routing weight" else found.run.log
    for line in chart.lines:
        _, values = log.part(line.name, ask.first, ask.last)
        shown = values[np.isfinite(values) & (values > 0)]
        if len(shown):
            yield float(shown.min()), float(shown.max())


def divergence_charts(drawing: Drawing, runs: Sequence[Experts]) -> list[Chart]:
    """The source's score, the ratios and cosines it should be read with, and the routing weights."""
    each = [
        _overlaid(
            drawing, runs, (DIVERGENCE,), id="divergence", title="Divergence from expert 0 (source 002)",
            y=Axis(title="mean |norm − norm of expert 0|", scale="log"),
            levels=[
                Level(value=MEANINGFUL, label=f"{MEANINGFUL}: meaningful above"),
                Level(value=CONVERGED, label=f"{CONVERGED}: converging below"),
            ],
        ),
        _overlaid(
            drawing, runs, (LOG_RATIO, LOG_RATIO_ROUTED), id="log-ratio", title="|log ratio| to expert 0",
            subtitle="Pale: of the tiers' RMS as they are. Strong: after dividing by routing weights.", y=Axis(title="nats"),
            levels=[Level(value=LEFT, label=f"{LEFT}: one size below")],
        ),
        _overlaid(
            drawing, runs, (COSINE,), id="cosine", title="Cosine to expert 0's gradient", y=Axis(title="cosine"),
            levels=[Level(value=ALIKE, label=f"{ALIKE}: one direction above")],
        ),
        _overlaid(
            drawing, runs, (WEIGHT,), id="routing-weight", title="Routing weight", y=Axis(title="mean weight"),
            levels=[] if drawing.several else fair_share(runs[0]),
        ),
    ]  # fmt: skip
    return [chart for chart in each if chart.lines]


def fair_share(found: Experts) -> list[Level]:
    """Where every expert is asked alike."""
    return [Level(value=1 / len(found.experts), label=f"1/{len(found.experts)}: asked alike")]


def _overlaid(
    drawing: Drawing, runs: Sequence[Experts], templates: Sequence[str], *, id: str, title: str, y: Axis,
    levels: Sequence[Level] = (), subtitle: str = "",
) -> Chart:  # fmt: skip
    pale = {
        LOG_RATIO: {"tier": "top", "ending": ", with routing"},
        LOG_RATIO_ROUTED: {"ending": ", routing divided out"},
    }
    lines = [
        line for found in runs for template in templates
        for line in drawing.singles(found, template, **pale.get(template, {}))
    ]  # fmt: skip
    return Chart(
        id=id, kind="lines", title=title, section="Divergence", subtitle=subtitle, x=Axis(title="step"), y=y, lines=lines,
        levels=levels, info=info_of(*templates),
    )  # fmt: skip


def layer_charts(drawing: Drawing, found: Experts, layer: str) -> list[Chart]:
    """Norms of the tiers in one layer, and what routing leaves of them there."""
    norms, rms = [layer_norm_of(tier) for tier in TIERS], [rms_of(tier, layered=True) for tier in TIERS]
    divided = found.divided(layer)
    name = layer.removeprefix("layer.")
    charts = [
        Chart(
            id="layer-tiers", kind="lines", title=f"{name}: gradient norm by expert and tier",
            subtitle=SHADES, x=Axis(title="step"), y=Axis(title="gradient norm", scale="log"),
            lines=drawing.tiers(found, norms, layer), info=info_of(*norms),
        ),
        Chart(
            id="layer-sound", kind="lines", title=f"{name}: RMS per routing weight", x=Axis(title="step"),
            y=Axis(title="RMS / routing weight", scale="log"), lines=drawing.tiers(found, rms, layer, divided),
            info=info_of(*rms, LAYER_WEIGHT),
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart.lines]


def _id(drawing: Drawing, kind: str, found: Experts) -> str:
    return f"{kind}-{found.run.id}" if drawing.several else kind


def _section(drawing: Drawing, found: Experts, usual: str) -> str:
    return called(drawing.desk, found.run) if drawing.several else usual
