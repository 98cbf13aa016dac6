"""The files of a replicate study: how much each estimator varies, every replicate, what was asked of them, the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.export import write_whole
from gradiometer.plots.figures import WIDTH
from gradiometer.plots.frame import (
    framed,
    header,
    label_numbers,
    lacks_interval,
    legend_key,
    look_of,
    no_interval_key,
    shaded,
    under,
)
from gradiometer.plots.panels import Reading
from gradiometer.plots.rows import (
    absent,
    around_one,
    log_scale,
    mark,
    row_axis,
    row_grid,
    row_scale,
    signed_scale,
    unity,
    whisker,
)
from gradiometer.plots.studies import ESS, NORM, PROJECTION, SNR, TOP_SHARE, TRACE, Studies, Study, bias_notes, unit_of
from gradiometer.plots.style import GREY, INK, render, styled
from gradiometer.plots.verdicts import draw_curve, draw_ratio
from gradiometer.store.strictjson import to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["RECORDS_NAME", "draw_replicates", "draw_variance", "write_replicates"]

RECORDS_NAME = "variance_records.json"
CONTROLS: dict[str, dict[str, Any]] = {
    "shuffled_rewards": {"marker": "d", "color": GREY, "markersize": 3.6},
    "random_policy": {"marker": "s", "color": GREY, "markersize": 3.2, "markerfacecolor": "white"},
}


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
    figure = framed(WIDTH, len(found.studies) * (0.5 if with_controls else 0.34))
    axes = figure.subplots(1, 4, sharey=True, width_ratios=(1.25, 1.5, 1.0, 1.0))
    row_axis(axes[0], [study.name for study in found.studies])
    for ax, draw in zip(axes, (_trace_panel, _snr_panel, _ess_panel, _share_panel), strict=True):
        row_grid(ax, len(found.studies))
        draw(ax, found)
    under(figure, _summary_marks(found), bias_notes(found))
    header(figure, found, "Variance of the gradient")
    return figure


def _row_marks(ax: Axes, found: Studies, template: str, *, shift: float = 0.0, sure: bool = True) -> list[float]:
    drawn: list[float] = []
    for row, study in enumerate(found.studies):
        reading = study.reading(template)
        if reading.value is None:
            absent(ax, row, study.absence(template))
        else:
            drawn += mark(ax, row + shift, reading, sure=sure, **look_of(found, row))
    return drawn


def _trace_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("Variance, tr Cov")
    drawn = _row_marks(ax, found, TRACE)
    scale = log_scale(ax, drawn)
    label_numbers(ax, unit_of(TRACE) + shaded(scale), drawn)


def _snr_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("Signal-to-noise")
    beside = {row for row, study in enumerate(found.studies) if study.reading(SNR).value is not None and study.controls}
    drawn = _row_marks(ax, found, SNR, shift=-0.22 if beside else 0.0)
    for row in sorted(beside):
        for place, (name, reading) in enumerate(found.studies[row].controls.items()):
            if reading.value is not None:
                drawn += mark(ax, row + 0.06 + 0.22 * place, reading, **_control_look(name))
    scale = ""
    if drawn:
        scale = row_scale(ax, [*drawn, 1.0], **around_one(drawn))
        unity(ax)
    label_numbers(ax, f"‖E g‖² / tr Cov ({unit_of(SNR)})" + shaded(scale), drawn)


def _ess_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("|ESS|")
    drawn = _row_marks(ax, found, ESS, sure=False)
    for row, study in enumerate(found.studies):
        if drawn and study.rollouts is not None and study.reading(ESS).value is not None:
            ax.plot([study.rollouts], [row], marker="|", color=GREY, markersize=9, markeredgewidth=1.2, zorder=2)
            drawn.append(float(study.rollouts))
    row_scale(ax, drawn)
    label_numbers(ax, unit_of(ESS), drawn)


def _share_panel(ax: Axes, found: Studies) -> None:
    ax.set_title("Top-1 share")
    drawn = _row_marks(ax, found, TOP_SHARE, sure=False)
    row_scale(ax, drawn, decades=math.inf)
    label_numbers(ax, f"of Σ|w| ({unit_of(TOP_SHARE)})", drawn)


def draw_replicates(found: Studies) -> Figure:
    """Norm and projection of every replicate, with their mean and standard deviation."""
    figure = framed(WIDTH, 0.38 * len(found.studies))
    axes = figure.subplots(1, 2, sharey=True)
    row_axis(axes[0], [study.name for study in found.studies])
    panels = ((NORM, "Gradient norm, noise included"), (PROJECTION, "Along one fixed N(0, I) direction"))
    for ax, (template, title) in zip(axes, panels, strict=True):
        row_grid(ax, len(found.studies))
        groups = [_replicate_row(ax, row, study, template, found) for row, study in enumerate(found.studies)]
        drawn = [number for group in groups for number in group]
        scale = row_scale(ax, drawn) if template == NORM else signed_scale(ax, groups)
        ax.set_title(title)
        label_numbers(ax, unit_of(template) + shaded(scale), drawn)
    several = any(study.num_replicates > 1 for study in found.studies)
    marks = [
        legend_key("one replicate", color=GREY, markersize=3.4),
        legend_key(
            "mean ± standard deviation" if several else "mean", marker="|", markersize=9, linestyle="-" * several
        ),
    ]
    under(figure, marks, ())
    header(figure, found, "Every replicate", intervals=False)
    return figure


def _replicate_row(ax: Axes, row: int, study: Study, template: str, found: Studies) -> list[float]:
    series = study.series[template]
    finite = [value for value in series.values if math.isfinite(value)]
    heights = row + 0.12 + 0.22 * np.modf(np.arange(len(finite)) * 0.618034)[0]
    ax.plot(
        finite, heights, linestyle="", marker="o", markersize=3.4, color=look_of(found, row)["color"], markeredgewidth=0,
        alpha=0.75, zorder=3, clip_on=False,
    )  # fmt: skip
    drawn = list(finite)
    if math.isfinite(series.mean):
        spread = [series.mean - series.std, series.mean + series.std]
        if math.isfinite(series.std):
            whisker(ax, row - 0.12, *spread, upright=False, color=INK, size=3.4)
            drawn += spread
        ax.plot([series.mean], [row - 0.12], marker="|", color=INK, markersize=9, markeredgewidth=1.4, zorder=3)
    else:
        mark(ax, row - 0.12, Reading(value=series.mean))
    return drawn


def _control_look(name: str) -> dict[str, Any]:
    return dict(CONTROLS.get(name, {"marker": "x", "color": GREY, "markersize": 3.4}))


def _summary_marks(found: Studies) -> list[Any]:
    readings = [study.reading(template) for study in found.studies for template in (TRACE, SNR)]
    marks = [legend_key("estimate, 95 % interval", linestyle="-")] if any(r.low is not None for r in readings) else []
    marks += [no_interval_key()] if any(map(lacks_interval, readings)) else []
    shown = {name for study in found.studies for name, reading in study.controls.items() if reading.value is not None}
    for name in sorted(shown, reverse=True):
        marks.append(legend_key(f"SNR with {name.replace('_', ' ')}", linestyle="-", **_control_look(name)))
    if any(study.rollouts is not None and study.reading(ESS).value is not None for study in found.studies):
        marks.append(legend_key("rollouts an instance", marker="|", color=GREY, markersize=8, markeredgewidth=1.2))
    return marks
