"""The two questions of replicates as figures: who varies less than the first, and how many rollouts an SNR of one takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gradiometer.plots.figures import WIDTH
from gradiometer.plots.frame import framed, header, lacks_interval, legend_key, look_of, no_interval_key, under
from gradiometer.plots.panels import Reading
from gradiometer.plots.rows import absent, around_one, log_scale, mark, row_axis, spoken, unity
from gradiometer.plots.scales import set_scale
from gradiometer.plots.studies import SNR, Studies, unit_of
from gradiometer.plots.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curve", "draw_ratio"]


def draw_ratio(found: Studies) -> Figure:
    """tr Cov over that of the first estimator, with its interval; the verdicts below."""
    assert found.comparison is not None
    figure = framed(WIDTH * 0.86, 0.34 * len(found.studies))
    ax = figure.subplots()
    row_axis(ax, [study.name for study in found.studies])
    drawn = [1.0]
    for row, (study, ratio) in enumerate(zip(found.studies, found.comparison.ratios, strict=True)):
        if ratio.value is None or (math.isnan(ratio.value) and study.num_replicates == 1):
            absent(ax, row, "undefined: 1 replicate")
        elif row == 0 and math.isfinite(ratio.value):
            drawn += mark(ax, row, Reading(value=ratio.value), sure=False, **look_of(found, row))
            _beside(ax, row, "1 by definition")
        else:
            look = look_of(found, row) | ({"markerfacecolor": "white"} if _may_be_chance(ratio) else {})
            drawn += mark(ax, row, ratio, **look)
            _beside(ax, row, _written(ratio))
    log_scale(ax, drawn)
    unity(ax)
    ax.set_xlabel(f"tr Cov / tr Cov of {found.studies[0].name} (1)")
    sure = any(ratio.low is not None for ratio in found.comparison.ratios[1:])
    marks = [legend_key("ratio, 95 % interval", linestyle="-")] if sure else []
    if any(map(_may_be_chance, found.comparison.ratios[1:])):
        marks.append(legend_key("interval includes 1", markerfacecolor="white"))
    if any(lacks_interval(ratio) for ratio in found.comparison.ratios[1:]):
        marks.append(no_interval_key())
    under(figure, marks, found.comparison.sentences)
    header(figure, found, f"Variance relative to {found.studies[0].name}", intervals=sure)
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
    figure = framed(WIDTH * 0.72, 2.0)
    ax = figure.subplots()
    wide = min(curve.values) > 0 and max(curve.values) / min(curve.values) >= 4
    places = [math.log2(value) if wide else value for value in curve.values]
    gaps = np.diff(sorted(set(places)))
    step = float(gaps.min()) if gaps.size else 1.0
    drawn: list[float] = []
    for place, reading in zip(places, curve.snr, strict=True):
        if reading.value is None:
            absent(ax, place, "undefined: 1 replicate", upright=True, width=0.5 * step)
        else:
            drawn += mark(ax, place, reading, upright=True, **look_of(found, 0))
    line = sorted(zip(places, (math.nan if r.value is None else r.value for r in curve.snr), strict=True))
    ax.plot(*zip(*line, strict=True), color=look_of(found, 0)["color"], linewidth=0.8, alpha=0.6)
    ax.set_xticks(places, [f"{value:g}" for value in curve.values])
    room = max(0.5 * step, 0.06 * (max(places) - min(places)))
    ax.set_xlim(min(places) - room, max(places) + room)
    ax.set_xlabel(("rollouts an instance" if curve.axis == "rollouts" else "K") + (", log scale" if wide else ""))
    ax.grid(axis="y")
    ax.set_axisbelow(True)
    if drawn:
        set_scale(ax, [*drawn, 1.0], **around_one(drawn))
        unity(ax, upright=True)
    else:
        ax.tick_params(axis="y", left=False, labelleft=False)
    ax.set_ylabel(f"SNR ({unit_of(SNR)})")
    marks = [legend_key("SNR, 95 % interval", linestyle="-", **look_of(found, 0))] if drawn else []
    under(figure, marks + ([no_interval_key()] if any(map(lacks_interval, curve.snr)) else []), [curve.answer])
    header(figure, found, f"SNR of {found.common('label') or found.common('algorithm') or 'the gradient'}")
    return figure
