"""The figures of a gradient analysis: each is a layout of the charts that the page shows of it.

Markers with intervals stand where the page has bars: a figure is printed, and may be grey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.charts.analysis import ALL, SAMPLES, TOTAL, USUAL_TERMS, AnalysisStep
from gradiometer.charts.model import Bars, Chart
from gradiometer.charts.terms import (
    BETWEEN,
    COSINE,
    COSINE_SIGNAL,
    GROUPS,
    PER_COUNT,
    SHARE,
    SIGNAL,
    SNR,
    analysis_cosines,
    bucket_name,
    cosines_by_bucket,
    step_charts,
)
from gradiometer.plots.panels import (
    AXIS,
    MANY,
    absent,
    bucket_axis,
    bucket_places,
    cells,
    compact,
    draw_bars,
    floats,
    not_measured,
    nothing,
    readings,
    side_by_side,
    thinned,
)
from gradiometer.plots.scales import set_scale
from gradiometer.plots.style import (
    GREY,
    INK,
    WIDTH,
    colour,
    headline,
    legend_key,
    marker,
    sheet,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw_comparison",
    "draw_losses",
    "draw_normed",
    "draw_norms",
    "draw_reward_std",
    "draw_summary",
]

LOSS_DECADES = 3.0
"""Losses and rewards add up: they stay on a linear axis for longer."""
NORM_UNIT = "gradient norm (loss/weight)"
READABLE = 9
"""More columns than this, and numbers in cells cannot be read at column width."""
OPEN: dict[str, Any] = {"markerfacecolor": "white"}
SHUFFLED: dict[str, Any] = {"color": GREY, "marker": "d", "markersize": 3.4}


class _Analysis:
    """An analysis with its charts, by their ids."""

    def __init__(self, step: AnalysisStep) -> None:
        self.step = step
        term = step.terms[0] if step.terms else ""
        charts = (*step_charts(step, ""), *analysis_cosines(step, ALL, term, ""))
        self.charts: dict[str, Chart] = {chart.id: chart for chart in charts}
        self.names = [bucket_name(bucket) for bucket in step.buckets]
        self.norms = {term: self._norms(term) for term in (*step.terms, TOTAL)}
        """By term and role: what the page shows of a term's norm, its signal and its nulls."""

    def _norms(self, term: str) -> dict[str, Bars]:
        chart = self.charts.get(f"signal-{term}")
        found = {bars.role: bars for bars in chart.bars} if chart else {}
        for bars in self.charts["norm"].bars if "norm" in self.charts else ():
            if bars.role == f"term:{term}":
                found["kind:norm"] = bars
        return found if "kind:norm" in found else {}

    def plain_norms(self, term: str) -> list[float]:
        """A term's norms as measured: whose range decides about the axis."""
        bars = self.norms.get(term, {}).get("kind:norm")
        return [] if bars is None else [value for value in floats(bars.values) if value is not None]

    def incomplete(self, terms: Iterable[str]) -> bool:
        """Whether a norm of one of the terms is missing somewhere."""
        return any(len(self.plain_norms(term)) < len(self.names) for term in terms)

    def look(self, term: str, **more: Any) -> dict[str, Any]:
        """The colour and marker of a term."""
        terms = self.step.terms
        return {"color": colour(term, terms), "marker": marker(term, terms), **more}

    def axis(self, ax: Axes, *, counted: str = "samples", label: str = AXIS) -> None:
        """The buckets, and below each how many samples or groups it holds."""
        template = {"samples": SAMPLES, "groups": GROUPS}.get(counted)
        buckets = self.step.buckets
        counts = [compact(self.step.value(template, bucket=b)) for b in buckets] if template else []
        below = f" (below: {counted})" if counts and len(counts) <= MANY else ""
        bucket_axis(ax, self.names, counts=counts, label=f"{label}{below}" if label else "")


def _header(figure: Figure, step: AnalysisStep, title: str, *, note: str = "") -> None:
    """What is shown, of which run and step, and how it was measured."""
    about = step.circumstances
    parts = [
        f"unit: {about['unit']}" if "unit" in about else "",
        str(about.get("aggregation", "")),
        f"{about['bucket_mode']} buckets" if "bucket_mode" in about else "",
        _vectors(about),
        f"no gradient path: {', '.join(step.dead)}" if step.dead else "",
        note,
    ]
    whose = f"{shortened(step.run)}, " if step.run else ""
    small = " · ".join(part for part in parts if part)
    headline(figure, f"{title} · {whose}step {step.step}", small)


def _vectors(about: Mapping[str, Any]) -> str:
    if about.get("vectors") == "sketch" and about.get("cosine_error") is not None:
        return f"sketched gradients, cosines ±{about['cosine_error']:.2g}"
    return f"{about['vectors']} gradients" if "vectors" in about else ""


def draw_norms(step: AnalysisStep) -> Figure:
    """Each term's norm by bucket: plain, with the noise taken off, and shuffled."""
    found = _Analysis(step)
    terms = (*step.terms, *([TOTAL] if found.norms[TOTAL] else [])) or USUAL_TERMS[:1]
    columns = min(2, len(terms))
    rows = -(-len(terms) // columns)
    figure = sheet(WIDTH, 0.75 + 2.25 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(terms) :]:
        ax.set_visible(False)
    for number, (ax, term) in enumerate(zip(axes, terms, strict=False)):
        drawn = _norm_panel(ax, found, term)
        set_scale(ax, drawn, judged=found.plain_norms(term))
        ax.set_title(term)
        if number % columns == 0 and drawn:
            ax.set_ylabel(NORM_UNIT)
    _header(figure, step, "Gradient norm by bucket")
    _norm_legend(figure, [found], terms)
    return figure


def _norm_panel(ax: Axes, found: _Analysis, term: str, *, label: str = AXIS) -> list[float]:
    """One term: open the plain norm, filled its signal, grey both under shuffled rewards."""
    kinds = found.norms.get(term, {})
    if not kinds:
        nothing(ax, f"{term}: {found.step.absence(term)}\nin this analysis")
        return []
    found.axis(ax, label=label)
    norms = kinds["kind:norm"]
    present = [value is not None for value in norms.values]
    for place, there in zip(bucket_places(found.names), present, strict=True):
        if not there:
            absent(ax, place, upright=True, width=0.9)
    with_null = "kind:null_signal" in kinds
    shift = 0.27 if with_null else 0.14 if "kind:signal" in kinds else 0.0
    marks: list[tuple[str, dict[str, Any]]] = [
        ("kind:norm", {"shift": -shift, **found.look(term), **OPEN}),
        ("kind:signal", {"shift": -0.09 if with_null else 0.14, "sure": True, **found.look(term)}),
        ("kind:null", {"shift": 0.09, **SHUFFLED, **OPEN}),
        ("kind:null_signal", {"shift": 0.27, **SHUFFLED}),
    ]
    drawn: list[float] = []
    for kind, look in marks:
        if kind in kinds:
            only = present if kind == "kind:signal" else None
            drawn += draw_bars(ax, kinds[kind], hatched=False, only=only, **look)
    return drawn


def _norm_legend(figure: Figure, found: Sequence[_Analysis], terms: Sequence[str]) -> None:
    """Says what the marks mean, and only those that occur."""
    kinds = [
        (kind, bars) for each in found for of in each.norms.values() for kind, bars in of.items()
    ]
    signals = [pair for kind, bars in kinds if kind == "kind:signal" for pair in readings(bars)]
    marks: list[Any] = [legend_key("norm as measured", **OPEN)]
    if any(each.step.has(SIGNAL) for each in found):
        line = {"linestyle": "-"} if any(low is not None for _, low, _ in signals) else {}
        words = "noise-corrected, 95 % interval; below 0: less than noise"
        marks.append(legend_key(words, **line))
    if any(value is not None and low is None for value, low, _ in signals):
        half = {"fillstyle": "left", "markerfacecoloralt": "white"}
        marks.append(legend_key("no interval: fewer than 4 units", **half))
    if any(kind in ("kind:null", "kind:null_signal") for kind, _ in kinds):
        marks.append(legend_key("the same, rewards shuffled", marker="d", color=GREY))
    if any(each.incomplete(terms) for each in found):
        marks.append(not_measured())
    columns = 3 if len(marks) > 3 else len(marks)
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, columnspacing=1.4)


def draw_comparison(steps: Sequence[AnalysisStep], *, mode: str = "") -> Figure:
    """Norms at several steps: a row a term, a column a step; a row shares its axis."""
    terms = tuple(dict.fromkeys(term for step in steps for term in step.terms)) or USUAL_TERMS[:1]
    found = [_Analysis(step) for step in steps]
    figure = sheet(max(WIDTH, 0.6 + 2.1 * len(steps)), 0.9 + 1.75 * len(terms))
    axes = figure.subplots(len(terms), len(steps), squeeze=False, sharey="row")
    for row, term in zip(axes, terms, strict=True):
        label = "reward-std bucket" if term == terms[-1] else ""
        pairs = list(zip(row, found, strict=True))
        judged = [norm for each in found for norm in each.plain_norms(term)]
        drawn = [n for ax, each in pairs for n in _norm_panel(ax, each, term, label=label)]
        for ax, each in pairs:
            if term in each.step.measured_terms:
                set_scale(ax, drawn, judged=judged)
        row[0].tick_params(left=True, labelleft=True)
        row[0].set_ylabel(f"{term}\n{NORM_UNIT}")
    for ax, step in zip(axes[0], steps, strict=True):
        ax.set_title(f"step {step.step}")
    by = f" ({mode.upper()})" if mode else ""
    headline(figure, f"Gradient norm by reward-variance bucket{by}", "")
    _norm_legend(figure, found, terms)
    return figure


def draw_losses(step: AnalysisStep) -> Figure:
    """Each loss by bucket; the line joins the buckets, the dashed one is the whole batch."""
    found, names, columns = _Analysis(step), step.losses, 2
    rows = max(-(-len(names) // columns), 1)
    figure = sheet(WIDTH, 0.5 + 1.95 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[max(len(names), 1) :]:
        ax.set_visible(False)
    if not names:
        nothing(axes[0], "no losses in this log")
    for number, (ax, name) in enumerate(zip(axes, names, strict=False)):
        if _loss_panel(ax, found, name) and number % columns == 0:
            ax.set_ylabel("loss (as optimised)")
    _header(figure, step, "Loss by bucket")
    return figure


def _loss_panel(ax: Axes, found: _Analysis, name: str) -> list[float]:
    ax.set_title(name)
    chart = found.charts.get(f"loss-{name}")
    if chart is None:
        nothing(ax, f"no {name} loss\nin this analysis")
        return []
    (bars,) = chart.bars
    losses = found.step.losses
    own = colour(name, losses)
    found.axis(ax)
    drawn = draw_bars(ax, bars, color=own, marker=marker(name, losses), markersize=4.5)
    values = [np.nan if value is None else value for value in floats(bars.values)]
    by_name = dict(zip(bars.categories, values, strict=True))
    whole = by_name.pop(ALL, np.nan)
    ax.plot(range(len(by_name)), list(by_name.values()), color=own, linewidth=0.8, alpha=0.6)
    if np.isfinite(whole):
        ax.axhline(whole, color=own, linewidth=0.7, linestyle=(0, (4, 2)), alpha=0.6, zorder=1)
    set_scale(ax, drawn, decades=LOSS_DECADES, from_zero=False)
    return drawn


def draw_reward_std(step: AnalysisStep) -> Figure:
    """How much rewards differ inside groups: mean, range, and every group."""
    found = _Analysis(step)
    figure = sheet(WIDTH * 0.72, 2.9)
    ax = figure.subplots()
    found.axis(ax, counted="groups")
    groups = found.charts.get("group-scatter")
    drawn = [] if groups is None else _group_dots(ax, found, groups)
    bare = Bars(label="", categories=found.names, values=[None] * len(found.names))
    spread = found.charts["reward-std"].bars[0] if "reward-std" in found.charts else bare
    shift = 0.0 if groups is None else -0.3
    drawn += draw_bars(ax, spread, shift=shift, width=0.3, color="#000000", marker="D")
    set_scale(ax, drawn, decades=LOSS_DECADES)
    ax.set_ylabel("reward std in a group (reward)")
    _header(figure, step, "Reward spread")
    line = {"color": "#000000", "marker": "D", "linestyle": "-"}
    one = {"color": "#56B4E9", "markersize": 3}
    marks = [
        legend_key("mean, with smallest and largest group", **line),
        legend_key("(no group table in this log)", marker="")
        if groups is None
        else legend_key("one group", **one),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2)
    return figure


def _group_dots(ax: Axes, found: _Analysis, chart: Chart) -> list[float]:
    """Every group beside its bucket's mark, side by side where points would hide each other."""
    drawn: list[float] = []
    for name, place in zip(found.names, bucket_places(found.names), strict=True):
        pairs = [pair for dots in chart.marks for pair in zip(dots.x, floats(dots.y), strict=True)]
        spreads = sorted(y for x, y in pairs if x == name and y is not None)
        beside = 0.08 + 0.28 * np.modf(np.arange(len(spreads)) * 0.618034)[0]
        look: dict[str, Any] = {
            "marker": "o",
            "markersize": 2.4,
            "color": "#56B4E9",
            "markeredgewidth": 0,
        }
        ax.plot(place + beside, spreads, linestyle="", alpha=0.75, zorder=2, **look)
        drawn += spreads
    return drawn


def draw_normed(step: AnalysisStep) -> Figure:
    """Norms per sample and per token: divided, and of the summed loss's gradient."""
    found = _Analysis(step)
    figure = sheet(WIDTH, 4.9)
    for ax, (template, title) in zip(figure.subplots(2, 2).ravel(), PER_COUNT, strict=True):
        ax.set_title(title)
        chart = found.charts.get(template.split("/")[2])
        if chart is None:
            nothing(ax, "not in this log")
            continue
        found.axis(ax)
        set_scale(ax, _by_term(ax, found, chart.bars, room=0.72))
        ax.set_ylabel(f"{chart.y.title} per {'sample' if 'sample' in chart.id else 'token'}")
    note = "norm ÷ count ranks buckets by 1/size, the lower row does not"
    _header(figure, step, "Gradient norm per sample and per token", note=note)
    _term_legend(figure, found)
    return figure


def _by_term(
    ax: Axes, found: _Analysis, bars: Iterable[Bars], *, room: float = 0.75, **more: Any
) -> list[float]:
    """Terms side by side in each bucket; one that was measured nowhere takes no place."""
    terms = found.step.terms
    own = {each.role.removeprefix("term:"): each for each in bars}
    return [
        number
        for place, term in enumerate(terms)
        if term in own
        for number in draw_bars(
            ax, own[term], **side_by_side(place, len(terms), room), **found.look(term, **more)
        )
    ]


def _term_legend(figure: Figure, found: _Analysis) -> None:
    """Which colour and marker is which term, and why one is not there."""
    step = found.step
    marks: list[Any] = [
        legend_key(
            term if term in step.measured_terms else f"{term}: {step.absence(term)}",
            **found.look(term),
        )
        for term in step.terms
    ]
    if found.incomplete(step.measured_terms):
        marks.append(not_measured())
    columns = min(len(marks), 5)
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, columnspacing=1.4)


def draw_summary(step: AnalysisStep) -> Figure:
    """The page to read first: signal, SNR, shares, cosines and counts."""
    found = _Analysis(step)
    sure, related = step.has(SNR) or step.has(SHARE), step.has(COSINE) or step.has(BETWEEN)
    rows: list[tuple[list[str], float]] = [(["signal", "signal"], 2.45)]
    rows += [(["snr", "share"], 1.95)] if sure else []
    rows += [(["cosines", "between"], 2.2)] if related else []
    rows += [(["counts", "counts"], 1.25)]
    heights = [height for _, height in rows]
    figure = sheet(WIDTH, sum(heights) + 0.25)
    layout: list[Any] = [names for names, _ in rows]
    for name, ax in figure.subplot_mosaic(layout, height_ratios=heights).items():
        SUMMARY[name](ax, found)
    missing = [
        words for words, there in (("SNR and shares", sure), ("cosines", related)) if not there
    ]
    note = f"not in this log: {', '.join(missing)}" if missing else ""
    _header(figure, step, "Gradient analysis", note=note)
    _term_legend(figure, found)
    return figure


def _signal_panel(ax: Axes, found: _Analysis) -> None:
    terms, sound = found.step.terms, found.step.has(SIGNAL)
    found.axis(ax)
    norms, signals = (
        [replace(of[kind], role=f"term:{t}") for t in terms if kind in (of := found.norms[t])]
        for kind in ("kind:norm", "kind:signal")
    )
    if sound:
        drawn = _by_term(ax, found, norms, hatched=False, alpha=0.55, markersize=3.6, **OPEN)
        drawn += _by_term(ax, found, signals, sure=True)
    else:
        drawn = _by_term(ax, found, norms, **OPEN)
    if not drawn:
        nothing(ax, "no gradient norms in this analysis")
        return
    judged = [norm for term in terms for norm in found.plain_norms(term)]
    broken = set_scale(ax, drawn, judged=judged) == "function"
    ax.set_ylabel(NORM_UNIT + ("\nshaded: linear" if broken else ""))
    what = "Noise-corrected norm, 95 % interval (open: plain norm)"
    ax.set_title(what if sound else "Norm as measured: noise not taken off")


def _snr_panel(ax: Axes, found: _Analysis) -> None:
    ax.set_title("Signal-to-noise (filled: p < 0.05, sign flips)")
    chart = found.charts.get("snr")
    if chart is None:
        nothing(ax, "not in this log")
        return
    found.axis(ax, counted="")
    terms, drawn = found.step.terms, list[float]()
    for bars in chart.bars:
        term = bars.role.removeprefix("term:")
        where = side_by_side(terms.index(term), len(terms), 0.75)
        known = bars.significant or [False] * len(bars.values)
        for wanted, look in ((True, found.look(term)), (False, found.look(term, **OPEN))):
            only = [each == wanted for each in known]
            drawn += draw_bars(ax, bars, only=only, **where, **look)
    set_scale(ax, [*drawn, 1.0], judged=[max(value, 0.5) for value in drawn])
    ax.axhline(1.0, color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
    ax.set_ylabel(f"{chart.y.title} (1)")


def _share_panel(ax: Axes, found: _Analysis) -> None:
    ax.set_title("Share of the total gradient")
    chart = found.charts.get("share")
    if chart is None:
        nothing(ax, "not in this log")
        return
    found.axis(ax, counted="")
    drawn = _by_term(ax, found, chart.bars)
    ax.axhline(0.0, color=INK, linewidth=0.6, zorder=1)
    ax.set_ylim(min([0.0, *drawn]) - 0.08, max([1.0, *drawn]) + 0.08)
    ax.set_ylabel(f"{chart.y.title} (1)")


def _cosine_panel(ax: Axes, found: _Analysis) -> None:
    step = found.step
    sound = step.has(COSINE_SIGNAL)
    ax.set_title("Cosine of terms" + (" (in brackets: noise-corrected)" if sound else ""))
    plain = _table(cosines_by_bucket(step, COSINE))
    corrected = _table(cosines_by_bucket(step, COSINE_SIGNAL))
    shown = {pair: row for pair, row in plain.items() if any(value is not None for value in row)}
    if not shown:
        nothing(ax, "not in this log" if not step.has(COSINE) else "fewer than two terms")
        return
    texts = []
    for pair, row in shown.items():
        beside = corrected.get(pair, [None] * len(row))
        texts.append([_cosine(*both, sound=sound) for both in zip(row, beside, strict=True)])
    rows = [pair.replace(" ~ ", "\n~ ") for pair in shown]
    cells(ax, rows, _bare(found.names), _legible(texts), values=list(shown.values()))
    ax.set_xlabel("bucket")


def _table(charts: Iterable[Chart]) -> dict[str, list[float | None]]:
    return {
        str(row): floats(line)
        for chart in charts
        if (matrix := chart.matrix) is not None
        for row, line in zip(matrix.rows, matrix.cells, strict=True)
    }


def _cosine(plain: float | None, corrected: float | None, *, sound: bool) -> str | None:
    if plain is None or not sound:
        return _signed(plain)
    return f"{_signed(plain)}\n({'–' if corrected is None else _signed(corrected)})"


def _between_panel(ax: Axes, found: _Analysis) -> None:
    term = found.step.terms[0] if found.step.terms else ""
    ax.set_title(f"Cosine of buckets, {term} (purple −, orange +)")
    table = _table([found.charts["between"]] if "between" in found.charts else [])
    if not table:
        nothing(ax, "not in this log")
        return
    # The diagonal is 1 by definition and the upper half repeats the lower: neither says anything.
    lower = [
        [value if along < down else None for along, value in enumerate(line[:-1])]
        for down, line in enumerate(table.values())
    ][1:]
    texts = [
        [_signed(value) if along <= down else "" for along, value in enumerate(line)]
        for down, line in enumerate(lower)
    ]
    names = _bare(table)
    cells(ax, names[1:], names[:-1], _legible(texts), values=lower)
    ax.set_xlabel("bucket")
    ax.set_ylabel("bucket")


def _legible(texts: list[list[str | None]]) -> list[list[str | None]]:
    """Without numbers where they could not be read; colours and hatches stay."""
    if not texts or len(texts[0]) <= READABLE:
        return texts
    return [[None if text is None else "" for text in line] for line in texts]


def _count_panel(ax: Axes, found: _Analysis) -> None:
    some = "" if len(found.names) <= MANY else ", some of the buckets"
    ax.set_title("Counts and reward spread" + some)
    rows: dict[str, Callable[[float], str]] = {
        "samples": compact,
        "of all": lambda value: f"{value:.0%}",
        "groups": compact,
        "tokens": compact,
        "reward std": lambda value: f"{value:.2g}",
    }
    chart = found.charts.get("counts")
    columns: dict[str, list[float | None]] = {}
    if chart is not None and chart.table is not None:
        lines = [floats(line[1:]) for line in chart.table.cells]
        columns = dict(
            zip(chart.table.columns[1:], map(list, zip(*lines, strict=True)), strict=True)
        )
    shown = thinned(found.names)
    texts = [
        [None if (value := of[place]) is None else say(value) for place in shown]
        for words, say in rows.items()
        for of in [columns.get(words, [None] * len(found.names))]
    ]
    cells(ax, list(rows), _bare(found.names[place] for place in shown), texts)
    ax.tick_params(axis="x", labeltop=True, labelbottom=False)


def _signed(value: float | None) -> str | None:
    if value is None:
        return None
    words = f"{value:+.2f}".replace("-", "−")
    return "0.00" if words in ("+0.00", "−0.00") else words


def _bare(names: Iterable[str]) -> list[str]:
    return [name.removeprefix("bucket ") for name in names]


SUMMARY: dict[str, Callable[[Axes, _Analysis], None]] = {
    "signal": _signal_panel,
    "snr": _snr_panel,
    "share": _share_panel,
    "cosines": _cosine_panel,
    "between": _between_panel,
    "counts": _count_panel,
}
