"""Maps of experts: where in the model which of them learns, and how large the elements of their
gradients are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.charts.experts import (
    BIN_EDGES,
    FIRST,
    INF,
    LAST,
    NAN,
    ZERO,
    bare_layers,
    layer_map,
    shares,
)
from gradiometer.charts.model import Number
from gradiometer.doctor.experts.series import (
    Bools,
    ExpertRun,
    Histogram,
    rms_of,
)
from gradiometer.plots.experts import CLEAN, WARM
from gradiometer.plots.panels import hatch_cells, not_measured, nothing
from gradiometer.plots.style import (
    INK,
    WIDTH,
    headline,
    legend_key,
    sheet,
    shortened,
    under,
)
from gradiometer.store.thinning import Floats
from gradiometer.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

__all__ = ["chosen_steps", "draw_histograms", "draw_layers"]

PANELS = {"top": "Top 5 %", "middle": "Middle 90 %", "bottom": "Bottom 5 %"}
WHITE, ORANGE = "#FFFFFF", "#D55E00"
"""Cells that are exactly zero, and those that are not finite."""
MOST_TICKS = 24
OUTLINED = 8
"""As many experts have a panel each; more are rows of one map."""


def draw_layers(found: ExpertRun, step: int | None = None) -> Figure:
    """Layer × expert, a panel for each tier: RMS at a step, or the median of the last ten."""
    wide, high = len(found.experts), len(found.layers)
    width = min(max(7.0, 1.4 + 3 * 0.046 * wide), 13.0)
    figure = sheet(width, 1.15 + min(max(0.16 * high, 0.9), 6.5))
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    charts = [layer_map(found, found.field(rms_of(t, layered=True)), t, step) for t in PANELS]
    cells = [[list(map(_cell, row)) for row in c.matrix.cells] for c in charts if c.matrix]
    maps = [
        (
            np.array([[v for v, _ in row] for row in each]).reshape(high, wide),
            np.array([[k for _, k in row] for row in each]).reshape(high, wide),
        )
        for each in cells
    ]
    sizes = np.concatenate([values[np.isfinite(values) & (values > 0)] for values, _ in maps])
    kinds: set[str] = set()
    image = None
    for ax, title, (values, there) in zip(axes, PANELS.values(), maps, strict=True):
        ax.set_title(f"{title} of the weights")
        if not there.any():
            nothing(ax, "not measured at this step" if step is not None else "not measured")
            continue
        image = _map(ax, values, there, sizes) or image
        kinds |= _special(ax, values, there)
        ax.set_xlabel("expert")
    names, common = bare_layers(found.layers)
    _ticks(axes[0], names, found.experts)
    axes[0].set_ylabel(f"layer  {common}" if common else "layer")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, aspect=30)
        bar.set_label("RMS of the gradient")
        bar.outline.set_visible(False)
    under(figure, _keys(kinds), ())
    headline(
        figure,
        f"Gradient by layer, expert and tier · {shortened(found.run)}",
        f"{charts[0].subtitle} · {counted(high, 'layer')} × {counted(wide, 'expert')}"
        " · logarithmic colours",
    )
    return figure


def _cell(value: Number) -> tuple[float, bool]:
    return (math.nan, False) if value is None else (float(value), True)


def _map(ax: Axes, values: Floats, there: Bools, sizes: Floats) -> Any:
    from matplotlib.colors import LogNorm

    ax.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    hatch_cells(ax, ~there)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if not sizes.size:
        return None
    low, high = float(sizes.min()), float(sizes.max())
    norm = LogNorm(low, high if high > low else low * 1.01)
    shown = np.ma.masked_invalid(np.where(values > 0, values, np.nan))
    return ax.imshow(
        shown, norm=norm, cmap="cividis", aspect="auto", interpolation="nearest", zorder=1
    )


def _special(ax: Axes, values: Floats, there: Bools) -> set[str]:
    """Cells without a colour on a log scale: white where zero, orange where not finite."""
    from matplotlib.patches import Rectangle

    kinds = {"missing"} if not there.all() else set()
    for kind, where, fill in (
        ("zero", values == 0, WHITE),
        ("NaN", there & ~np.isfinite(values), ORANGE),
    ):
        for down, along in zip(*np.nonzero(where), strict=True):
            corner = (float(along) - 0.5, float(down) - 0.5)
            ax.add_patch(
                Rectangle(corner, 1, 1, facecolor=fill, edgecolor=INK, linewidth=0.3, zorder=2)
            )
            kinds.add(kind)
    return kinds


def _keys(kinds: set[str]) -> list[Patch]:
    from matplotlib.patches import Patch

    keys = {
        "missing": not_measured(),
        "zero": Patch(facecolor=WHITE, edgecolor=INK, linewidth=0.3, label="exactly zero"),
        "NaN": Patch(facecolor=ORANGE, edgecolor=INK, linewidth=0.3, label="NaN or Inf"),
    }
    return [key for kind, key in keys.items() if kind in kinds]


def _ticks(ax: Axes, layers: Sequence[str], experts: Sequence[str]) -> None:
    for axis, names, most in ((ax.yaxis, layers, MOST_TICKS), (ax.xaxis, experts, 9)):
        stride = math.ceil(len(names) / most)
        axis.set_ticks(range(0, len(names), stride), list(names[::stride]))


def draw_histograms(found: ExpertRun, step: int | None = None) -> Figure:
    """The experts side by side, at a step or at the first, middle and last one kept."""
    steps = chosen_steps(found.histogram_steps) if step is None else (step,)
    kept = {
        (histogram.expert, histogram.step): histogram
        for histogram in found.histograms
        if histogram.step in steps
    }
    experts = tuple(expert for expert in found.experts if any((expert, at) in kept for at in steps))
    low, high = _range(kept.values())
    figure = (_outlines if len(experts) <= OUTLINED else _maps)(experts, steps, kept, (low, high))
    when = ", ".join(map(str, steps))
    headline(
        figure,
        f"Sizes of the gradient's elements · {shortened(found.run)}",
        f"step{'s' * (len(steps) != 1)} {when} · |g|, two bins for each power of"
        " ten, as a share of all elements",
    )
    return figure


def chosen_steps(kept: Sequence[int]) -> tuple[int, ...]:
    """The first, the middle and the last, each once."""
    return tuple(dict.fromkeys((kept[0], kept[(len(kept) - 1) // 2], kept[-1]))) if kept else ()


def _range(histograms: Any) -> tuple[float, float]:
    """The half decades in which anything lies, with one more on each side."""
    filled = np.flatnonzero(
        sum((histogram.counts[FIRST : LAST + 1] for histogram in histograms), np.zeros(34))
    )
    if not len(filled):
        return -12.5, 4.5
    return float(BIN_EDGES[max(filled[0] - 1, 0)]), float(
        BIN_EDGES[min(filled[-1] + 2, len(BIN_EDGES) - 1)]
    )


def _outlines(
    experts: Sequence[str], steps: Sequence[int], kept: Any, across: tuple[float, float]
) -> Figure:
    """A panel for each expert, the steps from light to dark."""
    columns = min(max(len(experts), 1), 4)
    rows = math.ceil(len(experts) / columns)
    figure = sheet(WIDTH, 0.8 + 1.55 * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in axes[len(experts) :]:
        ax.set_visible(False)
    lines = 0
    for place, (ax, expert) in enumerate(zip(axes, experts, strict=False)):
        colours = CLEAN if expert == "0" else WARM[0]
        here = {at: kept[expert, at] for at in steps if (expert, at) in kept}
        for at, colour in zip(steps, colours[-len(steps) :], strict=True):
            if at in here:
                ax.stairs(shares(here[at].counts), BIN_EDGES, color=colour, linewidth=1.1)
        notes = _oddities(here, steps)
        ax.text(
            0.03,
            0.98,
            "\n".join(notes),
            transform=ax.transAxes,
            ha="left",
            va="top",
            fontsize=5.6,
            color=INK,
        )
        lines = max(lines, len(notes))
        ax.set_title(f"expert {expert}")
        ax.set_xlim(across)
        ax.locator_params(axis="x", nbins=5, integer=True)
        if place + columns >= len(experts):
            ax.set_xlabel("log10 |g|")
            ax.tick_params(labelbottom=True)
        ax.grid(visible=True, axis="y")
        ax.set_axisbelow(True)
        if place % columns == 0:
            ax.set_ylabel("share of elements")
    highest = (
        max((float(shares(histogram.counts).max()) for histogram in kept.values()), default=1.0)
        or 1.0
    )
    axes[0].set_ylim(0, highest * (1.08 + 0.1 * lines))  # room for the words above the outlines
    names = ("light", "medium", "dark")[-len(steps) :]
    keys = [
        legend_key(f"step {at} ({name})", marker="", linestyle="-", color=shade, linewidth=1.6)
        for at, name, shade in zip(
            steps, names, ("#BDBDBD", "#7F7F7F", "#000000")[-len(steps) :], strict=False
        )
    ]
    under(figure, keys, ())
    return figure


def _oddities(here: dict[int, Histogram], steps: Sequence[int]) -> list[str]:
    """What has no place on the axis, in words: a number for each of the steps, in their order."""
    words = []
    for name, place, unit in (("zeros", ZERO, " %"), ("NaN", NAN, ""), ("Inf", INF, "")):
        counts = [histogram.counts for histogram in here.values()]
        if any(count[place] for count in counts):
            numbers = [
                100 * count[place] / count.sum() if unit else count[place] for count in counts
            ]
            words.append(f"{name}: {', '.join(f'{number:.3g}' for number in numbers)}{unit}")
    absent = [str(at) for at in steps if at not in here]
    return [*words, f"not kept: step {', '.join(absent)}"] if absent else words


def _maps(
    experts: Sequence[str], steps: Sequence[int], kept: Any, across: tuple[float, float]
) -> Figure:
    """A map for each step, a row for each expert."""
    from matplotlib.colors import LogNorm

    figure = sheet(WIDTH, 1.2 + min(max(0.09 * len(experts), 1.6), 7.0))
    axes = figure.subplots(1, len(steps), sharey=True, sharex=True, squeeze=False)[0]
    image, hatches = None, False
    for ax, at in zip(axes, steps, strict=True):
        found = [kept.get((expert, at)) for expert in experts]
        missing = np.array([histogram is None for histogram in found])
        ax.set_title(f"step {at}")
        if missing.all():
            nothing(ax, "not kept")
            continue
        table = np.array([np.zeros(34) if h is None else shares(h.counts) for h in found])
        hatch_cells(ax, missing[:, None], edges=np.array(across))
        hatches = hatches or bool(missing.any())
        image = ax.pcolormesh(
            BIN_EDGES,
            np.arange(len(experts) + 1) - 0.5,
            np.ma.masked_less_equal(table, 0),
            norm=LogNorm(1e-4, 1.0),
            cmap="cividis",
            zorder=1,
            rasterized=True,
        )
        ax.set(xlim=across, ylim=(len(experts) - 0.5, -0.5), xlabel="log10 |g|")
        ax.spines[:].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.locator_params(axis="x", nbins=5, integer=True)
    stride = math.ceil(len(experts) / 16)
    axes[0].set_yticks(range(0, len(experts), stride), list(experts[::stride]))
    axes[0].set_ylabel("expert")
    if image is not None:
        bar = figure.colorbar(
            image, ax=list(axes), fraction=0.03, pad=0.01, aspect=30, extend="min"
        )
        bar.set_label("share of elements")
        bar.outline.set_visible(False)
    under(figure, [not_measured()] if hatches else [], _map_notes(kept.values()))
    return figure


def _map_notes(histograms: Any) -> list[str]:
    """Zeros and non-finite elements: how many experts have any, and the largest share."""
    notes = []
    for name, place in (("exact zeros", ZERO), ("NaN", NAN), ("Inf", INF)):
        having = [h for h in histograms if h.counts[place]]
        if having:
            most = max(having, key=lambda h: h.counts[place] / h.counts.sum())
            share = 100 * most.counts[place] / most.counts.sum()
            many = len({h.expert for h in having})
            of = (
                f"{counted(many, 'expert')}, at most {share:.3g} % (expert {most.expert},"
                f" step {most.step})"
            )
            notes.append(f"Not on the axis: {name} in {of}.")
    return notes
