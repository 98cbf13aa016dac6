"""The figures of a replicate study, an estimator a row: layouts of the charts that the page shows
of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.charts.estimators import (
    curve_charts,
    measured_on,
    replicate_charts,
    study_charts,
    trace_chart,
)
from gradiometer.charts.model import Bars, Chart, Dots
from gradiometer.charts.studies import ESS, SNR, TOP_SHARE, TRACE, Studies, bias_notes, unit_of
from gradiometer.plots.panels import (
    Estimated,
    absent,
    floats,
    label_numbers,
    mark,
    readings,
    row_axis,
    row_grid,
    unity,
    whisker,
)
from gradiometer.plots.scales import around_one, log_scale, row_scale, set_scale, signed_scale
from gradiometer.plots.style import (
    GREY,
    INK,
    OTHER_COLOURS,
    TERM_COLOURS,
    WIDTH,
    headline,
    legend_key,
    sheet,
    shortened,
    under,
)
from gradiometer.words import typeset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curve", "draw_ratio", "draw_replicates", "draw_variance", "look_of"]

COLOURS = (*(TERM_COLOURS[term] for term in ("task", "entropy", "kl")), *OTHER_COLOURS[:3])
MARKERS = ("o", "s", "^", "v", "P", "h", "D")
"""One more than colours, so that the seventh estimator looks like none before it."""
CONTROLS: dict[str, dict[str, Any]] = {
    "shuffled_rewards": {"marker": "d", "color": GREY, "markersize": 3.6},
    "random_policy": {"marker": "s", "color": GREY, "markersize": 3.2, "markerfacecolor": "white"},
}
OPEN: dict[str, Any] = {"markerfacecolor": "white"}


def charts_of(found: Studies) -> dict[str, Chart]:
    """The page's charts of a study, by their ids."""
    curves = curve_charts([("", "", found)]) if found.curve is not None else ()
    made = (*study_charts(found), *trace_chart(found), *replicate_charts(found), *curves)
    return {chart.id: chart for chart in made}


def _framed(width: float, rows: float) -> Figure:
    """Room for the rows, their axis and the header; `under` adds what it needs."""
    figure = sheet(width, 1.1 + max(rows, 0.5))
    engine: Any = figure.get_layout_engine()
    engine.set(wspace=0.06)
    return figure


def _header(figure: Figure, found: Studies, title: str, *, intervals: bool = True) -> None:
    """What is shown, of which run, and what it was measured on."""
    words = f"{title} · {shortened(found.run)}"
    headline(figure, words, measured_on(found, intervals=intervals))


def _shaded(scale: str) -> str:
    return ", shaded: linear" if scale in ("function", "symlog") else ""


def look_of(found: Studies, row: int) -> dict[str, Any]:
    """An estimator's colour and marker, the same in every figure; a sweep is of one estimator."""
    place = 0 if found.curve is not None else row
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def _lacks_interval(reading: Estimated) -> bool:
    value, low, _ = reading
    return value is not None and math.isfinite(value) and low is None


def _no_interval_key() -> Any:
    half = {"fillstyle": "left", "markerfacecoloralt": "white"}
    return legend_key("no interval: fewer than 4 units", **half)


def draw_variance(found: Studies) -> Figure:
    """A row an estimator: variance, SNR beside the controls, how few rollouts carry it."""
    charts = charts_of(found)
    with_controls = any(study.controls for study in found.studies)
    figure = _framed(WIDTH, len(found.studies) * (0.5 if with_controls else 0.34))
    axes = figure.subplots(1, 4, sharey=True, width_ratios=(1.25, 1.5, 1.0, 1.0))
    row_axis(axes[0], [study.name for study in found.studies])
    for ax, draw in zip(axes, (_trace_panel, _snr_panel, _ess_panel, _share_panel), strict=True):
        row_grid(ax, len(found.studies))
        draw(ax, found, charts)
    under(figure, _summary_marks(found, charts), bias_notes(found))
    _header(figure, found, "Variance of the gradient")
    return figure


def _rows(found: Studies, charts: dict[str, Chart], id: str, role: str = "") -> list[Estimated]:
    """A reading for each estimator, from the bars or dots of a role of a chart."""
    chart = charts.get(id)
    items: tuple[Bars | Dots, ...] = (*chart.marks, *chart.bars) if chart is not None else ()
    own = next((item for item in items if item.role == role), None)
    return [(None, None, None)] * len(found.studies) if own is None else readings(own)


def _row_marks(
    ax: Axes,
    found: Studies,
    rows: Sequence[Estimated],
    template: str,
    *,
    shift: float = 0.0,
    sure: bool = True,
) -> list[float]:
    drawn: list[float] = []
    for row, (study, reading) in enumerate(zip(found.studies, rows, strict=True)):
        if reading[0] is None:
            absent(ax, row, study.absence(template))
        else:
            drawn += mark(ax, row + shift, reading, sure=sure, **look_of(found, row))
    return drawn


def _trace_panel(ax: Axes, found: Studies, charts: dict[str, Chart]) -> None:
    ax.set_title("Variance, tr Cov")
    drawn = _row_marks(ax, found, _rows(found, charts, "trace"), TRACE)
    label_numbers(ax, unit_of(TRACE) + _shaded(log_scale(ax, drawn)), drawn)


def _controls(found: Studies, charts: dict[str, Chart]) -> dict[str, list[Estimated]]:
    bars = charts["snr"].bars if "snr" in charts else ()
    roles = [each.role for each in bars if each.role.startswith("control:")]
    return {role.removeprefix("control:"): _rows(found, charts, "snr", role) for role in roles}


def _snr_panel(ax: Axes, found: Studies, charts: dict[str, Chart]) -> None:
    ax.set_title("Signal-to-noise")
    rows, controls = _rows(found, charts, "snr"), _controls(found, charts)
    beside = {
        row
        for row, study in enumerate(found.studies)
        if rows[row][0] is not None and study.controls
    }
    drawn = _row_marks(ax, found, rows, SNR, shift=-0.22 if beside else 0.0)
    for row in sorted(beside):
        for place, name in enumerate(found.studies[row].controls):
            reading = controls.get(name, rows)[row]
            if name in controls and reading[0] is not None:
                drawn += mark(ax, row + 0.06 + 0.22 * place, reading, **_control_look(name))
    scale = ""
    if drawn:
        scale = row_scale(ax, [*drawn, 1.0], **around_one(drawn))
        unity(ax)
    label_numbers(ax, f"‖E g‖² / tr Cov ({unit_of(SNR)})" + _shaded(scale), drawn)


def _ess_panel(ax: Axes, found: Studies, charts: dict[str, Chart]) -> None:
    ax.set_title("|ESS|")
    rows = _rows(found, charts, "ess", "kind:ess_abs")
    drawn = _row_marks(ax, found, rows, ESS, sure=False)
    for row, (study, reading) in enumerate(zip(found.studies, rows, strict=True)):
        if drawn and study.rollouts is not None and reading[0] is not None:
            look: dict[str, Any] = {
                "marker": "|",
                "color": GREY,
                "markersize": 9,
                "markeredgewidth": 1.2,
            }
            ax.plot([study.rollouts], [row], zorder=2, **look)
            drawn.append(float(study.rollouts))
    row_scale(ax, drawn)
    label_numbers(ax, unit_of(ESS), drawn)


def _share_panel(ax: Axes, found: Studies, charts: dict[str, Chart]) -> None:
    ax.set_title("Top-1 share")
    drawn = _row_marks(ax, found, _rows(found, charts, "top-share"), TOP_SHARE, sure=False)
    row_scale(ax, drawn, decades=math.inf)
    label_numbers(ax, f"of Σ|w| ({unit_of(TOP_SHARE)})", drawn)


def _control_look(name: str) -> dict[str, Any]:
    return dict(CONTROLS.get(name, {"marker": "x", "color": GREY, "markersize": 3.4}))


def _summary_marks(found: Studies, charts: dict[str, Chart]) -> list[Any]:
    rows = [*_rows(found, charts, "trace"), *_rows(found, charts, "snr")]
    sure = any(low is not None for _, low, _ in rows)
    marks = [legend_key("estimate, 95 % interval", linestyle="-")] if sure else []
    marks += [_no_interval_key()] if any(map(_lacks_interval, rows)) else []
    for name in sorted(_controls(found, charts), reverse=True):
        words = f"SNR with {name.replace('_', ' ')}"
        marks.append(legend_key(words, linestyle="-", **_control_look(name)))
    ess = zip(found.studies, _rows(found, charts, "ess", "kind:ess_abs"), strict=True)
    if any(study.rollouts is not None and reading[0] is not None for study, reading in ess):
        look = {"marker": "|", "color": GREY, "markersize": 8, "markeredgewidth": 1.2}
        marks.append(legend_key("rollouts an instance", **look))
    return marks


def draw_replicates(found: Studies) -> Figure:
    """Norm and projection of every replicate, with their mean and standard deviation."""
    charts = charts_of(found)
    figure = _framed(WIDTH, 0.38 * len(found.studies))
    axes = figure.subplots(1, 2, sharey=True)
    row_axis(axes[0], [study.name for study in found.studies])
    panels = (
        ("replicate-norm", "Gradient norm, noise included"),
        ("replicate-projection", "Along one fixed N(0, I) direction"),
    )
    for ax, (id, title) in zip(axes, panels, strict=True):
        row_grid(ax, len(found.studies))
        *each, means = charts[id].marks
        groups = [
            _replicate_row(ax, row, dots, mean, found)
            for row, (dots, mean) in enumerate(zip(each, readings(means), strict=True))
        ]
        drawn = [number for group in groups for number in group]
        scale = row_scale(ax, drawn) if id == "replicate-norm" else signed_scale(ax, groups)
        ax.set_title(title)
        label_numbers(ax, charts[id].y.title + _shaded(scale), drawn)
    several = any(study.num_replicates > 1 for study in found.studies)
    words = "mean ± standard deviation" if several else "mean"
    marks = [
        legend_key("one replicate", color=GREY, markersize=3.4),
        legend_key(words, marker="|", markersize=9, linestyle="-" * several),
    ]
    under(figure, marks, ())
    _header(figure, found, "Every replicate", intervals=False)
    return figure


def _replicate_row(ax: Axes, row: int, dots: Dots, mean: Estimated, found: Studies) -> list[float]:
    finite = [value for value in floats(dots.y) if value is not None and math.isfinite(value)]
    heights = row + 0.12 + 0.22 * np.modf(np.arange(len(finite)) * 0.618034)[0]
    look: dict[str, Any] = {"marker": "o", "markersize": 3.4, "clip_on": False}
    look |= {"color": look_of(found, row)["color"], "markeredgewidth": 0, "alpha": 0.75}
    ax.plot(finite, heights, linestyle="", zorder=3, **look)
    drawn, (middle, low, high) = list(finite), mean
    if middle is None or not math.isfinite(middle):
        mark(ax, row - 0.12, (math.nan if middle is None else middle, None, None))
        return drawn
    if low is not None and high is not None:
        whisker(ax, row - 0.12, low, high, upright=False, color=INK, size=3.4)
        drawn += [low, high]
    look = {"marker": "|", "color": INK, "markersize": 9, "markeredgewidth": 1.4}
    ax.plot([middle], [row - 0.12], zorder=3, **look)
    return drawn


def draw_ratio(found: Studies) -> Figure:
    """tr Cov over that of the first estimator, with its interval; the verdicts below."""
    assert found.comparison is not None
    chart = charts_of(found)["ratio"]
    ratios = readings(chart.marks[0])
    figure = _framed(WIDTH * 0.86, 0.34 * len(found.studies))
    ax = figure.subplots()
    row_axis(ax, [study.name for study in found.studies])
    drawn = [1.0]
    for row, (study, ratio) in enumerate(zip(found.studies, ratios, strict=True)):
        value, look = ratio[0], look_of(found, row)
        if value is None or (math.isnan(value) and study.num_replicates == 1):
            absent(ax, row, "undefined: 1 replicate")
        elif row == 0 and math.isfinite(value):
            drawn += mark(ax, row, (value, None, None), sure=False, **look)
            _beside(ax, row, "1 by definition")
        else:
            drawn += mark(ax, row, ratio, **look | (OPEN if _may_be_chance(ratio) else {}))
            _beside(ax, row, _written(ratio))
    log_scale(ax, drawn)
    unity(ax)
    ax.set_xlabel(f"{chart.y.title} (1)")
    sure = any(low is not None for _, low, _ in ratios[1:])
    marks = [legend_key(chart.marks[0].label, linestyle="-")] if sure else []
    if any(map(_may_be_chance, ratios[1:])):
        marks.append(legend_key("interval includes 1", **OPEN))
    if any(map(_lacks_interval, ratios[1:])):
        marks.append(_no_interval_key())
    under(figure, marks, found.comparison.sentences)
    _header(figure, found, chart.title, intervals=sure)
    return figure


def _may_be_chance(ratio: Estimated) -> bool:
    _, low, high = ratio
    return low is not None and high is not None and low <= 1 <= high


def _beside(ax: Axes, row: int, words: str) -> None:
    where = ax.get_yaxis_transform()
    ax.text(1.02, row, words, transform=where, ha="left", va="center", fontsize=6.5, color=INK)


def _written(reading: Estimated) -> str:
    value, low, high = reading
    if value is None or not math.isfinite(value):
        return ""
    ends = "" if low is None or high is None else f" ({typeset(low)} – {typeset(high)})"
    return f"{typeset(value)}{ends}"


def draw_curve(found: Studies) -> Figure:
    """SNR against rollouts or K, with intervals; the answer below."""
    assert found.curve is not None
    chart = charts_of(found).get("curve-snr")
    dots = Dots(label="", x=sorted(found.curve.values), y=[None] * len(found.curve.values))
    dots = chart.marks[0] if chart is not None else dots
    values, rows = [float(value or 0) for value in dots.x], readings(dots)
    figure = _framed(WIDTH * 0.72, 2.0)
    ax = figure.subplots()
    wide = min(values) > 0 and max(values) / min(values) >= 4
    places = [math.log2(value) if wide else value for value in values]
    gaps = np.diff(sorted(set(places)))
    step = float(gaps.min()) if gaps.size else 1.0
    look = look_of(found, 0)
    drawn: list[float] = []
    for place, reading in zip(places, rows, strict=True):
        if reading[0] is None:
            absent(ax, place, "undefined: 1 replicate", upright=True, width=0.5 * step)
        else:
            drawn += mark(ax, place, reading, upright=True, **look)
    line = [math.nan if value is None else value for value, _, _ in rows]
    ax.plot(places, line, color=look["color"], linewidth=0.8, alpha=0.6)
    _curve_axes(ax, found.curve.axis, places, values, step=step, wide=wide)
    if drawn:
        set_scale(ax, [*drawn, 1.0], **around_one(drawn))
        unity(ax, upright=True)
    else:
        ax.tick_params(axis="y", left=False, labelleft=False)
    marks = [legend_key("SNR, 95 % interval", linestyle="-", **look)] if drawn else []
    marks += [_no_interval_key()] if any(map(_lacks_interval, rows)) else []
    under(figure, marks, [found.curve.answer])
    whose = found.common("label") or found.common("algorithm") or "the gradient"
    _header(figure, found, f"SNR of {whose}")
    return figure


def _curve_axes(
    ax: Axes,
    axis: str,
    places: Sequence[float],
    values: Sequence[float],
    *,
    step: float,
    wide: bool,
) -> None:
    ax.set_xticks(places, [f"{value:g}" for value in values])
    room = max(0.5 * step, 0.06 * (max(places) - min(places)))
    ax.set_xlim(min(places) - room, max(places) + room)
    what = "rollouts an instance" if axis == "rollouts" else "K"
    ax.set_xlabel(what + (", log scale" if wide else ""))
    ax.set_ylabel(f"SNR ({unit_of(SNR)})")
    ax.grid(axis="y")
    ax.set_axisbelow(True)
