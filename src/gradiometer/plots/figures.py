"""The figures of one analysis step: norms, losses, reward spread and norms per count. The summary has a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.analysis import ALL, LOSS, NORM, TOTAL, USUAL_TERMS, AnalysisStep
from gradiometer.plots.panels import (
    AXIS,
    MANY,
    Reading,
    bucket_axis,
    compact,
    draw_readings,
    hatched,
    not_measured,
    nothing,
    positions,
)
from gradiometer.plots.scales import set_scale
from gradiometer.plots.style import GREY, INK, colour, marker, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw_losses",
    "draw_normed",
    "draw_norms",
    "draw_reward_std",
    "header",
    "legend",
    "norm_panel",
    "plain_norms",
    "read",
    "term_legend",
]

WIDTH = 7.0
"""Inches: the text width of a two-column paper."""

SIGNAL = "grad_norm/<bucket>/signal/<term>"
SIGNAL_LOW = "grad_norm/<bucket>/signal_low/<term>"
SIGNAL_HIGH = "grad_norm/<bucket>/signal_high/<term>"
NULL = "grad_norm/<bucket>/null/<term>"
NULL_SIGNAL = "grad_norm/<bucket>/null_signal/<term>"
NULL_LOW = "grad_norm/<bucket>/null_signal_low/<term>"
NULL_HIGH = "grad_norm/<bucket>/null_signal_high/<term>"
SPREAD_MEAN = "grad_norm/<bucket>/reward_std_mean"
SPREAD_MIN = "grad_norm/<bucket>/reward_std_min"
SPREAD_MAX = "grad_norm/<bucket>/reward_std_max"
GROUPS = "grad_norm/<bucket>/group_rv_count"
PER_COUNT = (
    ("grad_norm/<bucket>/per_sample/<term>", "norm ÷ samples", "loss/weight per sample"),
    ("grad_norm/<bucket>/per_token/<term>", "norm ÷ tokens", "loss/weight per token"),
    ("grad_norm/<bucket>/per_sample_sum/<term>", "norm of summed loss ÷ samples", "loss/weight per sample"),
    ("grad_norm/<bucket>/per_token_sum/<term>", "norm of summed loss ÷ tokens", "loss/weight per token"),
)
LOSS_DECADES = 3.0
"""Losses and rewards add up: they stay on a linear axis for longer."""
NORM_UNIT = "gradient norm (loss/weight)"


def header(figure: Figure, step: AnalysisStep, title: str, *, note: str = "") -> None:
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
    small = " · ".join(part for part in parts if part)
    name = step.run if len(step.run) <= 40 else f"{step.run[:39]}…"
    height = float(figure.get_size_inches()[1])
    # The second line is blank: it keeps the place of the small print.
    words = f"{title} · {f'{name}, ' if name else ''}step {step.step}" + ("\n" if small else "")
    figure.suptitle(words, fontsize=9, fontweight="bold", x=0.01, ha="left")
    figure.text(0.01, 1 - 0.205 / height, small, ha="left", va="top", fontsize=6.3, color="#5A5A5A")


def _vectors(about: Any) -> str:
    if about.get("vectors") == "sketch" and about.get("cosine_error") is not None:
        return f"sketched gradients, cosines ±{about['cosine_error']:.2g}"
    return f"{about['vectors']} gradients" if "vectors" in about else ""


def read(step: AnalysisStep, template: str, bounds: tuple[str, str] | None = None, **parts: str) -> dict[str, Reading]:
    """A template over all buckets, with its interval where the template has one."""
    low, high = bounds or ("", "")
    return {
        bucket: Reading(
            value=step.value(template, bucket=bucket, **parts),
            low=step.value(low, bucket=bucket, **parts) if low else None,
            high=step.value(high, bucket=bucket, **parts) if high else None,
        )
        for bucket in step.buckets
    }


def draw_norms(step: AnalysisStep) -> Figure:
    """Each term's norm by bucket: as measured, with the noise taken off, and under shuffled rewards."""
    total = (TOTAL,) if any(_measured(step, NORM, term=TOTAL)) else ()
    terms = (*step.terms, *total) or USUAL_TERMS[:1]
    columns = min(2, len(terms))
    rows = -(-len(terms) // columns)
    figure = sheet(WIDTH, 0.75 + 2.25 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(terms) :]:
        ax.set_visible(False)
    for number, (ax, term) in enumerate(zip(axes, terms, strict=False)):
        drawn = norm_panel(ax, step, term)
        set_scale(ax, drawn, judged=plain_norms(step, term))
        ax.set_title(term)
        if number % columns == 0 and drawn:
            ax.set_ylabel(NORM_UNIT)
    header(figure, step, "Gradient norm by bucket")
    legend(figure, [step], terms)
    return figure


def norm_panel(ax: Axes, step: AnalysisStep, term: str, *, label: str = AXIS) -> list[float]:
    """One term: open marker the plain norm, filled the signal with its interval, grey the same under shuffled rewards."""
    norms = read(step, NORM, term=term)
    signals = read(step, SIGNAL, (SIGNAL_LOW, SIGNAL_HIGH), term=term)
    shuffled = read(step, NULL_SIGNAL, (NULL_LOW, NULL_HIGH), term=term)
    plain_null = read(step, NULL, term=term)
    if not any(_measured(step, NORM, term=term)):
        nothing(ax, f"{term}: {step.absence(term)}\nin this analysis")
        return []
    own, shape = colour(term, step.terms), marker(term, step.terms)
    bucket_axis(ax, step, label=label)
    present = {bucket: reading for bucket, reading in norms.items() if reading.value is not None}
    for bucket in norms.keys() - present.keys():
        hatched(ax, positions(step)[bucket] - 0.45, 0.9)
    with_signal, with_null = (any(r.value is not None for r in kind.values()) for kind in (signals, shuffled))
    shift = 0.27 if with_null else 0.14 if with_signal else 0.0
    drawn = draw_readings(ax, present, step, shift=-shift, color=own, marker=shape, markerfacecolor="white")
    drawn += draw_readings(
        ax, _of(signals, present), step, shift=-0.09 if with_null else 0.14, sure=True, color=own, marker=shape
    )
    drawn += draw_readings(
        ax, {b: r for b, r in plain_null.items() if r.value is not None}, step, shift=0.09,
        color=GREY, marker="d", markerfacecolor="white", markersize=3.4,
    )  # fmt: skip
    null_shown = {bucket: reading for bucket, reading in shuffled.items() if reading.value is not None}
    return drawn + draw_readings(ax, null_shown, step, shift=0.27, color=GREY, marker="d", markersize=3.4)


def plain_norms(step: AnalysisStep, term: str) -> list[float]:
    """A term's norms as measured: whose range decides about the axis."""
    found = (step.value(NORM, bucket=bucket, term=term) for bucket in step.buckets)
    return [value for value in found if value is not None]


def _of(readings: dict[str, Reading], present: dict[str, Reading]) -> dict[str, Reading]:
    return {bucket: reading for bucket, reading in readings.items() if bucket in present and reading.value is not None}


def _measured(step: AnalysisStep, template: str, **parts: str) -> list[bool]:
    return [step.value(template, bucket=bucket, **parts) is not None for bucket in step.buckets]


def legend(figure: Figure, steps: list[AnalysisStep], terms: tuple[str, ...]) -> None:
    """Says what the marks mean, and only those that occur."""
    from matplotlib.lines import Line2D

    def occurs(template: str) -> bool:
        return any(step.has(template) for step in steps)

    def mark(label: str, **look: Any) -> Line2D:
        usual: dict[str, Any] = {"linestyle": "", "marker": "o", "color": INK, "markersize": 4}
        return Line2D([], [], label=label, **(usual | look))

    marks: list[Any] = [mark("norm as measured", markerfacecolor="white")]
    if occurs(SIGNAL):
        whisker = {"linestyle": "-"} if occurs(SIGNAL_LOW) else {}
        marks.append(mark("noise-corrected, 95 % interval; below 0: less than noise", **whisker))
    if any(_without_interval(step, terms) for step in steps):
        marks.append(mark("no interval: fewer than 4 units", fillstyle="left", markerfacecoloralt="white"))
    if occurs(NULL_SIGNAL) or occurs(NULL):
        marks.append(mark("the same, rewards shuffled", marker="d", color=GREY))
    if any(not all(_measured(step, NORM, term=term)) for step in steps for term in terms):
        marks.append(not_measured())
    figure.legend(
        handles=marks, loc="outside lower center", ncols=3 if len(marks) > 3 else len(marks), columnspacing=1.4
    )


def _without_interval(step: AnalysisStep, terms: tuple[str, ...]) -> bool:
    return any(
        step.value(SIGNAL, bucket=bucket, term=term) is not None
        and step.value(SIGNAL_LOW, bucket=bucket, term=term) is None
        for bucket in step.buckets
        for term in terms
    )


def draw_losses(step: AnalysisStep) -> Figure:
    """Each loss by bucket; the line joins the buckets, the dashed one is the whole batch."""
    names = step.losses
    columns = 2
    rows = max(-(-len(names) // columns), 1)
    figure = sheet(WIDTH, 0.5 + 1.95 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[max(len(names), 1) :]:
        ax.set_visible(False)
    if not names:
        nothing(axes[0], "no losses in this log")
    for number, (ax, name) in enumerate(zip(axes, names, strict=False)):
        if _loss_panel(ax, step, name) and number % columns == 0:
            ax.set_ylabel("loss (as optimised)")
    header(figure, step, "Loss by bucket")
    return figure


def _loss_panel(ax: Axes, step: AnalysisStep, name: str) -> list[float]:
    ax.set_title(name)
    if not any(_measured(step, LOSS, name=name)):
        nothing(ax, f"no {name} loss\nin this analysis")
        return []
    own, readings, places = colour(name, step.losses), read(step, LOSS, name=name), positions(step)
    bucket_axis(ax, step)
    drawn = draw_readings(ax, readings, step, color=own, marker=marker(name, step.losses), markersize=4.5)
    line = [(places[bucket], readings[bucket].value) for bucket in step.buckets if bucket != ALL]
    ax.plot([x for x, _ in line], [np.nan if y is None else y for _, y in line], color=own, linewidth=0.8, alpha=0.6)
    whole = step.value(LOSS, bucket=ALL, name=name)
    if whole is not None:
        ax.axhline(whole, color=own, linewidth=0.7, linestyle=(0, (4, 2)), alpha=0.6, zorder=1)
    set_scale(ax, drawn, decades=LOSS_DECADES, from_zero=False)
    return drawn


def draw_reward_std(step: AnalysisStep) -> Figure:
    """How much rewards differ inside the groups of each bucket: mean, range, and every group of the table."""
    figure = sheet(WIDTH * 0.72, 2.9)
    ax = figure.subplots()
    places = positions(step)
    bucket_axis(ax, step, counts=False)
    drawn = []
    for bucket, place in places.items():
        spreads = sorted(group.reward_std for group in step.groups if group.bucket == bucket)
        drawn += spreads
        ax.plot(place + _spread_out(len(spreads)), spreads, linestyle="", marker="o", markersize=2.4, color="#56B4E9",
                markeredgewidth=0, alpha=0.75, zorder=2)  # fmt: skip
    bounds = (SPREAD_MIN, SPREAD_MAX)
    drawn += draw_readings(
        ax,
        read(step, SPREAD_MEAN, bounds),
        step,
        shift=-0.3 if step.groups else 0.0,
        width=0.3,
        color="#000000",
        marker="D",
    )
    set_scale(ax, drawn, decades=LOSS_DECADES)
    ax.set_ylabel("reward std in a group (reward)")
    few = len(places) <= MANY
    if few:
        names = [f"{bucket.removeprefix('bucket_')}\n{compact(step.value(GROUPS, bucket=bucket))}" for bucket in places]
        ax.set_xticks(list(places.values()), names)
    ax.set_xlabel(AXIS + (" (below: groups)" if few else ""))
    header(figure, step, "Reward spread")
    _spread_legend(figure, bool(step.groups))
    return figure


def _spread_out(number: int) -> np.ndarray[Any, Any]:
    """Places side by side for points that would hide each other; the same ones every time."""
    return np.asarray(0.08 + 0.28 * np.modf(np.arange(number) * 0.618034)[0])


def _spread_legend(figure: Figure, with_groups: bool) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color="#000000", marker="D", markersize=4, label="mean, with smallest and largest group")]
    if with_groups:
        marks.append(Line2D([], [], linestyle="", color="#56B4E9", marker="o", markersize=3, label="one group"))
    else:
        marks.append(Line2D([], [], linestyle="", label="(no group table in this log)"))
    figure.legend(handles=marks, loc="outside lower center", ncols=2)


def draw_normed(step: AnalysisStep) -> Figure:
    """Norms per sample and per token: divided by the count, and as the gradient of the summed loss divided by it."""
    figure = sheet(WIDTH, 4.9)
    axes = figure.subplots(2, 2).ravel()
    for ax, (template, title, unit) in zip(axes, PER_COUNT, strict=True):
        ax.set_title(title)
        terms = tuple(term for term in step.terms if any(_measured(step, template, term=term)))
        if not terms:
            nothing(ax, "not in this log")
            continue
        bucket_axis(ax, step)
        drawn = []
        width = 0.72 / len(step.terms)
        for number, term in enumerate(step.terms):
            shift = (number - (len(step.terms) - 1) / 2) * width
            if term in terms:
                readings = read(step, template, term=term)
                look: dict[str, Any] = {"color": colour(term, step.terms), "marker": marker(term, step.terms)}
                drawn += draw_readings(ax, readings, step, shift=shift, width=width, **look)
        set_scale(ax, drawn)
        ax.set_ylabel(unit)
    note = "norm ÷ count ranks buckets by 1/size, the lower row does not"
    header(figure, step, "Gradient norm per sample and per token", note=note)
    term_legend(figure, step)
    return figure


def term_legend(figure: Figure, step: AnalysisStep) -> None:
    """Which colour and marker is which term, and why one is not there."""
    from matplotlib.lines import Line2D

    marks: list[Any] = []
    for term in step.terms:
        there = term in step.measured_terms
        look: dict[str, Any] = {"color": colour(term, step.terms), "marker": marker(term, step.terms), "markersize": 4}
        marks.append(Line2D([], [], linestyle="", label=term if there else f"{term}: {step.absence(term)}", **look))
    if any(not all(_measured(step, NORM, term=term)) for term in step.measured_terms):
        marks.append(not_measured())
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 5), columnspacing=1.4)
