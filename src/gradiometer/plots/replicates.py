"""The figures of replicates: how much an estimator varies, each replicate, the ratio of two, and SNR against rollouts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.export import write_whole
from gradiometer.plots.figures import WIDTH
from gradiometer.plots.panels import Reading
from gradiometer.plots.rows import absent, cap, log_scale, mark, row_axis, row_scale, signed_scale, spoken, unity
from gradiometer.plots.scales import set_scale
from gradiometer.plots.studies import ESS, NORM, PROJECTION, SNR, TOP_SHARE, TRACE, Studies, Study, unit_of
from gradiometer.plots.style import GREY, INK, OTHER_COLOURS, TERM_COLOURS, render, sheet, styled
from gradiometer.store.strictjson import to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["RECORDS_NAME", "draw_curve", "draw_ratio", "draw_replicates", "draw_variance", "write_replicates"]

RECORDS_NAME = "variance_records.json"
COLOURS = (*(TERM_COLOURS[term] for term in ("task", "entropy", "kl")), *OTHER_COLOURS[:3])
MARKERS = ("o", "s", "^", "v", "P", "h")
CONTROLS: dict[str, dict[str, Any]] = {
    "shuffled_rewards": {"marker": "d", "color": GREY, "markersize": 3.6},
    "random_policy": {"marker": "s", "color": GREY, "markersize": 3.2, "markerfacecolor": "white"},
}
CAPTION_SIZE, CAPTION_LINE, CAPTION_COLUMNS = 6.6, 0.125, 128
"""Points, inches and letters of the text under a figure."""
PAD = 0.04


def write_replicates(found: Studies, folder: Path, *, kind: str = "png") -> list[Path]:
    """The figures that the run has something for, and the records; each file appears whole or not at all."""
    return [write_whole(folder / name, content) for name, content in _files(found, kind)]


def _files(found: Studies, kind: str) -> Iterator[tuple[str, bytes]]:
    figures: dict[str, Callable[[Studies], Figure]] = {
        "variance_summary": draw_variance,
        "variance_replicates": draw_replicates,
    }
    if found.comparison is not None:
        figures["variance_ratio"] = draw_ratio
    if found.curve is not None:
        figures["variance_curve"] = draw_curve
    for name, draw in figures.items():
        with styled():
            content = render(draw(found), kind)
        yield f"{name}.{kind}", content
    yield RECORDS_NAME, (to_json(found.records, indent=2) + "\n").encode()


def draw_variance(found: Studies) -> Figure:
    """One row for each estimator: its variance, its SNR beside the controls', and how few rollouts carry it."""
    with_controls = any(study.controls for study in found.studies)
    notes = _bias_notes(found)
    figure = _sheet(found, WIDTH, 0.5 if with_controls else 0.34, notes)
    axes = figure.subplots(1, 4, sharey=True, width_ratios=(1.25, 1.5, 1.0, 1.0))
    row_axis(axes[0], [study.name for study in found.studies])
    panels = ((_trace_panel, TRACE), (_snr_panel, SNR), (_ess_panel, ESS), (_share_panel, TOP_SHARE))
    for ax, (draw, _) in zip(axes, panels, strict=True):
        _rows_beside(ax, found)
        draw(ax, found)
    _header(figure, found, "Variance of the gradient")
    _legend(figure, _summary_marks(found))
    return figure


def _rows_beside(ax: Axes, found: Studies) -> None:
    """The grid of `row_axis` on a panel that shares its rows."""
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    for line in range(1, len(found.studies)):
        ax.axhline(line - 0.5, color="#E3E3E3", linewidth=0.5, zorder=0)


def _row_marks(ax: Axes, found: Studies, template: str, *, shift: float = 0.0, sure: bool = True) -> list[float]:
    drawn: list[float] = []
    for row, study in enumerate(found.studies):
        reading = study.reading(template)
        if reading.value is None:
            absent(ax, row, study.absence(template))
        else:
            drawn += mark(ax, row + shift, reading, sure=sure, **_look(found, row))
    return drawn


def _trace_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("tr Cov")
    drawn = _row_marks(ax, found, TRACE)
    scale = log_scale(ax, drawn)
    _label(ax, unit_of(TRACE) + (", shaded: linear" if scale == "function" else ""), drawn)


def _snr_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("Signal-to-noise, controls in grey" if any(s.controls for s in found.studies) else "Signal-to-noise")
    beside = {row for row, study in enumerate(found.studies) if study.reading(SNR).value is not None and study.controls}
    drawn = _row_marks(ax, found, SNR, shift=-0.22 if beside else 0.0)
    own = list(drawn)
    for row in sorted(beside):
        for place, (name, reading) in enumerate(found.studies[row].controls.items()):
            if reading.value is not None:
                drawn += mark(ax, row + 0.06 + 0.22 * place, reading, **_control_look(name))
    if drawn:
        row_scale(ax, [*drawn, 1.0], judged=[max(value, 0.5) for value in own])
        unity(ax)
    _label(ax, f"‖E g‖² / tr Cov ({unit_of(SNR)})", drawn)


def _ess_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("|ESS|")
    drawn = _row_marks(ax, found, ESS, sure=False)
    for row, study in enumerate(found.studies):
        if drawn and study.rollouts is not None and study.reading(ESS).value is not None:
            ax.plot([study.rollouts], [row], marker="|", color=GREY, markersize=9, markeredgewidth=1.2, zorder=2)
            drawn.append(float(study.rollouts))
    row_scale(ax, drawn)
    _label(ax, unit_of(ESS), drawn)


def _share_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("Top-1 share")
    drawn = _row_marks(ax, found, TOP_SHARE, sure=False)
    row_scale(ax, drawn, decades=math.inf)
    _label(ax, f"of Σ|w| ({unit_of(TOP_SHARE)})", drawn)


def _label(ax: Axes, words: str, drawn: Sequence[float]) -> None:
    """An axis on which nothing stands has no numbers either."""
    ax.set_xlabel(words)
    if not drawn:
        ax.tick_params(axis="x", bottom=False, labelbottom=False)
        ax.grid(visible=False, axis="x")


def draw_replicates(found: Studies) -> Figure:
    """Norm and projection of every replicate, with their mean and standard deviation."""
    figure = _sheet(found, WIDTH, 0.38, [])
    axes = figure.subplots(1, 2, sharey=True)
    row_axis(axes[0], [study.name for study in found.studies])
    panels = ((NORM, "Gradient norm, noise included"), (PROJECTION, "Along one fixed N(0, I) direction"))
    for ax, (template, title) in zip(axes, panels, strict=True):
        _rows_beside(ax, found)
        groups = [_replicate_row(ax, row, study, template, found) for row, study in enumerate(found.studies)]
        drawn = [number for group in groups for number in group]
        scale = row_scale(ax, drawn) if template == NORM else signed_scale(ax, groups)
        ax.set_title(title)
        _label(ax, unit_of(template) + (", shaded: linear" if scale == "symlog" else ""), drawn)
    _header(figure, found, "Every replicate")
    several = any(study.num_replicates > 1 for study in found.studies)
    marks = [
        _key("one replicate", color=GREY, markersize=3.4),
        _key("mean ± standard deviation of replicates" if several else "the same as mean", marker="|", markersize=9),
    ]
    if any(study.num_replicates == 1 for study in found.studies) and several:
        marks.append(_key("no deviation: one replicate", marker="|", markersize=9, markeredgewidth=0.6))
    _legend(figure, marks)
    return figure


def _replicate_row(ax: Axes, row: int, study: Study, template: str, found: Studies) -> list[float]:
    series = study.series[template]
    finite = [value for value in series.values if math.isfinite(value)]
    heights = row + 0.12 + 0.22 * np.modf(np.arange(len(finite)) * 0.618034)[0]
    ax.plot(
        finite, heights, linestyle="", marker="o", markersize=3.4, color=_look(found, row)["color"], markeredgewidth=0,
        alpha=0.75, zorder=3, clip_on=False,
    )  # fmt: skip
    drawn = list(finite)
    if math.isfinite(series.mean):
        spread = [series.mean - series.std, series.mean + series.std]
        if math.isfinite(series.std):
            cap(ax, row - 0.12, *spread, upright=False, color=INK, size=3.4)
            drawn += spread
        ax.plot([series.mean], [row - 0.12], marker="|", color=INK, markersize=9, markeredgewidth=1.4, zorder=3)
    else:
        mark(ax, row - 0.12, Reading(value=series.mean))
    return drawn


def draw_ratio(found: Studies) -> Figure:
    """tr Cov over that of the first estimator, with its interval; the verdicts below."""
    assert found.comparison is not None
    figure = _sheet(found, WIDTH * 0.86, 0.34, found.comparison.sentences)
    ax = figure.subplots()
    row_axis(ax, [study.name for study in found.studies])
    drawn = [1.0]
    for row, (study, ratio) in enumerate(zip(found.studies, found.comparison.ratios, strict=True)):
        if ratio.value is None or (math.isnan(ratio.value) and study.num_replicates == 1):
            absent(ax, row, "undefined: 1 replicate")
        elif row == 0 and math.isfinite(ratio.value):
            drawn += mark(ax, row, Reading(value=ratio.value), sure=False, **_look(found, row) | {"color": INK})
            _beside(ax, row, "1 by definition")
        else:
            open_face = {"markerfacecolor": "white"} if _may_be_chance(ratio) else {}
            drawn += mark(ax, row, ratio, **_look(found, row), **open_face)
            _beside(ax, row, _written(ratio))
    log_scale(ax, drawn)
    unity(ax)
    ax.set_xlabel(f"tr Cov / tr Cov of {found.studies[0].name} (1)")
    _header(figure, found, f"Variance relative to {found.studies[0].name}")
    marks = [_key("ratio, 95 % interval", linestyle="-")]
    if any(map(_may_be_chance, found.comparison.ratios[1:])):
        marks.append(_key("interval includes 1", markerfacecolor="white"))
    if any(_half(ratio) for ratio in found.comparison.ratios[1:]):
        marks.append(_without_interval())
    _legend(figure, marks)
    return figure


def _may_be_chance(ratio: Reading) -> bool:
    return ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high


def _beside(ax: Axes, row: int, words: str) -> None:
    ax.text(1.02, row, words, transform=ax.get_yaxis_transform(), ha="left", va="center", fontsize=6.5, color=INK)


def _written(reading: Reading) -> str:
    if reading.value is None or not math.isfinite(reading.value):
        return ""
    ends = "" if reading.low is None or reading.high is None else f" ({spoken(reading.low)} – {spoken(reading.high)})"
    return f"{spoken(reading.value)}{ends}"


def draw_curve(found: Studies) -> Figure:
    """SNR against rollouts or K, with intervals; the answer below."""
    curve = found.curve
    assert curve is not None
    figure = _sheet(found, WIDTH * 0.72, 2.0 / len(found.studies), [curve.answer])
    ax = figure.subplots()
    wide = min(curve.values) > 0 and max(curve.values) / min(curve.values) >= 4
    places = [math.log2(value) if wide else value for value in curve.values]
    order = np.argsort(places)
    step = float(np.diff(np.sort(places)).min()) if len(places) > 1 else 1.0
    drawn: list[float] = []
    for place, reading in zip(places, curve.snr, strict=True):
        if reading.value is None:
            absent(ax, place, "undefined: 1 replicate", upright=True, width=0.5 * (step or 1.0))
        else:
            drawn += mark(ax, place, reading, upright=True, **_look(found, 0))
    known = [math.nan if curve.snr[at].value is None else curve.snr[at].value for at in order]
    ax.plot([places[at] for at in order], known, color=_look(found, 0)["color"], linewidth=0.8, alpha=0.6)
    ax.set_xticks(places, [f"{value:g}" for value in curve.values])
    room = 0.5 * (step or 1.0)
    ax.set_xlim(min(places) - room, max(places) + room)
    ax.set_xlabel(("rollouts an instance" if curve.axis == "rollouts" else "K") + (", logarithmic" if wide else ""))
    ax.grid(axis="y")
    ax.set_axisbelow(True)
    if drawn:
        set_scale(ax, [*drawn, 1.0], judged=[max(each.value or 0.0, 0.5) for each in curve.snr])
        unity(ax, upright=True)
    else:
        ax.tick_params(axis="y", left=False, labelleft=False)
    ax.set_ylabel(f"SNR ({unit_of(SNR)})")
    _header(figure, found, f"SNR of {found.common('label') or found.common('algorithm') or 'the gradient'}")
    marks = [_key("SNR, 95 % interval", linestyle="-", color=COLOURS[0])] if drawn else []
    _legend(figure, marks + ([_without_interval()] if any(map(_half, curve.snr)) else []))
    return figure


def _look(found: Studies, row: int) -> dict[str, Any]:
    """An estimator's colour and marker, the same in every figure; a sweep is of one estimator."""
    place = 0 if found.curve is not None else row % len(COLOURS)
    return {"color": COLOURS[place], "marker": MARKERS[place]}


def _control_look(name: str) -> dict[str, Any]:
    return dict(CONTROLS.get(name, {"marker": "x", "color": GREY, "markersize": 3.4}))


def _half(reading: Reading) -> bool:
    return reading.value is not None and math.isfinite(reading.value) and reading.low is None


def _key(label: str, **look: Any) -> Any:
    from matplotlib.lines import Line2D

    usual: dict[str, Any] = {"linestyle": "", "marker": "o", "color": INK, "markersize": 4}
    return Line2D([], [], label=label, **(usual | look))


def _without_interval() -> Any:
    return _key("no interval: fewer than 4 units", fillstyle="left", markerfacecoloralt="white")


def _summary_marks(found: Studies) -> list[Any]:
    readings = [study.reading(template) for study in found.studies for template in (TRACE, SNR)]
    marks = [_key("estimate, 95 % interval", linestyle="-")] if any(r.low is not None for r in readings) else []
    marks += [_without_interval()] if any(map(_half, readings)) else []
    shown = {name for study in found.studies for name, reading in study.controls.items() if reading.value is not None}
    for name in sorted(shown, reverse=True):
        marks.append(_key(f"SNR with {name.replace('_', ' ')}", linestyle="-", **_control_look(name)))
    if any(study.rollouts is not None and study.reading(ESS).value is not None for study in found.studies):
        marks.append(_key("rollouts an instance", marker="|", color=GREY, markersize=8, markeredgewidth=1.2))
    return marks


def _bias_notes(found: Studies) -> list[str]:
    """Each source of bias once, with whom it concerns."""
    whose: dict[str, list[str]] = {}
    for study in found.studies:
        for source in study.bias:
            whose.setdefault(source, []).append(study.name)
    everyone = len(found.studies)
    return [
        f"Biased{'' if len(names) == everyone else ' (' + ', '.join(names) + ')'}: {source}."
        for source, names in whose.items()
    ]


def _sheet(found: Studies, width: float, row: float, caption: Sequence[str]) -> Figure:
    """Room for the rows, and under the legend for the caption."""
    columns = round(CAPTION_COLUMNS * width / WIDTH)
    lines = [line for words in caption for line in textwrap.wrap(words, columns)]
    below = CAPTION_LINE * len(lines) + (0.08 if lines else 0.0)
    height = 1.35 + max(row * len(found.studies), 0.5) + below
    figure = sheet(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.0, below / height, 1.0, 1.0 - below / height), w_pad=PAD, h_pad=PAD)
    if lines:
        figure.text(
            0.01, (below - 0.03) / height, "\n".join(lines), ha="left", va="top", fontsize=CAPTION_SIZE, color=INK
        )
    return figure


def _header(figure: Figure, found: Studies, title: str) -> None:
    """What is shown, of which run, and what it was measured on."""
    replicates = {study.num_replicates for study in found.studies}
    units = {study.num_units for study in found.studies}
    loc, problem = found.common("num_loc"), found.common("problem")
    parts = [
        f"{problem}{f', {loc} nodes' if loc else ''}" if problem else "",
        _counted(found.common("num_instances"), "instance"),
        _counted(found.common("num_starts"), "rollout"),
        _counted(replicates.pop() if len(replicates) == 1 else None, "replicate"),
        f"{found.common('reduction')} reduction" if found.common("reduction") else "",
        f"intervals over {units.pop()} units of instances" if len(units) == 1 and None not in units else "",
    ]
    small = " · ".join(part for part in parts if part)
    name = found.run if len(found.run) <= 40 else f"{found.run[:39]}…"
    height = float(figure.get_size_inches()[1])
    # The second line is blank: it keeps the place of the small print.
    figure.suptitle(f"{title} · {name}\n", fontsize=9, fontweight="bold", x=0.01, ha="left")
    figure.text(0.01, 1 - 0.205 / height, small, ha="left", va="top", fontsize=6.3, color="#5A5A5A")


def _counted(number: Any, word: str) -> str:
    return "" if number is None else f"{number} {word}{'' if number == 1 else 's'}"


def _legend(figure: Figure, marks: list[Any]) -> None:
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 4), columnspacing=1.4)
