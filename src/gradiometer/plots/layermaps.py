"""Layer × expert, a panel for each tier: where in the model which expert learns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.expertdata import RECENT, Bools, ExpertRun, Floats, rms_of
from gradiometer.plots.frame import headline, shortened, under
from gradiometer.plots.panels import HATCH, not_measured, nothing
from gradiometer.plots.style import INK, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

__all__ = ["bare_layers", "draw_layers", "hatch_cells", "layer_cells"]

PANELS = {"top": "Top 5 %", "middle": "Middle 90 %", "bottom": "Bottom 5 %"}
ZERO, NOT_FINITE = "#FFFFFF", "#D55E00"
MOST_TICKS = 24


def draw_layers(found: ExpertRun, step: int | None = None) -> Figure:
    """RMS of each tier at a step, or the median of the last ten measured ones."""
    experts, layers = found.experts, found.layers
    wide, high = len(experts), len(layers)
    figure = sheet(min(max(7.0, 1.4 + 3 * 0.046 * wide), 13.0), 1.15 + min(max(0.16 * high, 0.9), 6.5))
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    maps = {tier: layer_cells(found, tier, step) for tier in PANELS}
    sizes = np.concatenate([values[np.isfinite(values) & (values > 0)] for values, _ in maps.values()])
    kinds: set[str] = set()
    image = None
    for ax, (tier, (values, there)) in zip(axes, maps.items(), strict=True):
        ax.set_title(f"{PANELS[tier]} of the weights")
        if not there.any():
            nothing(ax, "not measured at this step" if step is not None else "not measured")
            continue
        image = _map(ax, values, there, sizes) or image
        kinds |= _special(ax, values, there)
        ax.set_xlabel("expert")
    names, common = bare_layers(layers)
    _ticks(axes[0], names, experts)
    axes[0].set_ylabel(f"layer  {common}" if common else "layer")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, aspect=30)
        bar.set_label("RMS of the gradient")
        bar.outline.set_visible(False)
    when = f"step {step}" if step is not None else f"median of the last {min(len(found.steps), RECENT)} measured steps"
    under(figure, _keys(kinds), ())
    headline(
        figure, f"Gradient by layer, expert and tier · {shortened(found.run)}",
        f"{when} · {high} layer{'s' * (high != 1)} × {wide} expert{'s' * (wide != 1)} · logarithmic colours",
    )  # fmt: skip
    return figure


def layer_cells(found: ExpertRun, tier: str, step: int | None) -> tuple[Floats, Bools]:
    """[layers, experts] of a tier's RMS, and where there is one."""
    values = np.full((len(found.layers), len(found.experts)), np.nan)
    there = np.zeros(values.shape, dtype=np.bool_)
    field = found.layered.get(rms_of(tier, layered=True))
    if field is None:
        return values, there
    rows, columns = ({name: place for place, name in enumerate(names)} for names in (found.layers, found.experts))
    for (layer, expert), value, known in zip(field.rows, *field.at(step), strict=True):
        values[rows[layer], columns[expert]] = value
        there[rows[layer], columns[expert]] = known
    return values, there


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
    return ax.imshow(shown, norm=norm, cmap="cividis", aspect="auto", interpolation="nearest", zorder=1)


def _special(ax: Axes, values: Floats, there: Bools) -> set[str]:
    """Cells that have no colour on a logarithmic scale: white where zero, orange where not finite."""
    from matplotlib.patches import Rectangle

    kinds = {"missing"} if not there.all() else set()
    for kind, where, fill in (("zero", values == 0, ZERO), ("NaN", there & ~np.isfinite(values), NOT_FINITE)):
        for down, along in zip(*np.nonzero(where), strict=True):
            corner = (float(along) - 0.5, float(down) - 0.5)
            ax.add_patch(Rectangle(corner, 1, 1, facecolor=fill, edgecolor=INK, linewidth=0.3, zorder=2))
            kinds.add(kind)
    return kinds


def hatch_cells(ax: Axes, missing: Bools, *, edges: Floats | None = None) -> None:
    """Hatches over runs of cells without a value; `edges` are where the columns begin and end."""
    from matplotlib.patches import Rectangle

    edges = np.arange(missing.shape[1] + 1) - 0.5 if edges is None else edges
    for down, line in enumerate(missing):
        for first, last in _runs(line):
            left, right = float(edges[first]), float(edges[last])
            ax.add_patch(
                Rectangle(
                    (left, down - 0.5), right - left, 1, facecolor="#FAFAFA", edgecolor="#B5B5B5", linewidth=0.0,
                    hatch=HATCH, zorder=0.5,
                )
            )  # fmt: skip


def _runs(line: Bools) -> Iterator[tuple[int, int]]:
    """Where each stretch of True begins and ends."""
    padded = np.concatenate([[False], line, [False]]).astype(np.int8)
    changes = np.flatnonzero(np.diff(padded))
    yield from zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True)


def _keys(kinds: set[str]) -> list[Patch]:
    from matplotlib.patches import Patch

    keys = {
        "missing": not_measured(),
        "zero": Patch(facecolor=ZERO, edgecolor=INK, linewidth=0.3, label="exactly zero"),
        "NaN": Patch(facecolor=NOT_FINITE, edgecolor=INK, linewidth=0.3, label="NaN or Inf"),
    }
    return [key for kind, key in keys.items() if kind in kinds]


def _ticks(ax: Axes, layers: Sequence[str], experts: Sequence[str]) -> None:
    for axis, names, most in ((ax.yaxis, layers, MOST_TICKS), (ax.xaxis, experts, 9)):
        stride = math.ceil(len(names) / most)
        axis.set_ticks(range(0, len(names), stride), list(names[::stride]))


def bare_layers(layers: Sequence[str]) -> tuple[list[str], str]:
    """Layers by the part of their path in which they differ, and the path with a star for that part."""
    paths = [layer.removeprefix("layer.").split(".") for layer in layers]
    if len(paths) < 2:
        return [".".join(path) for path in paths], ""
    shortest = min(map(len, paths)) - 1  # one part is left for the name
    before = next((n for n in range(shortest) if len({path[n] for path in paths}) > 1), shortest)
    after = next((n for n in range(shortest - before) if len({path[-1 - n] for path in paths}) > 1), shortest - before)
    first = paths[0]
    names = [".".join(path[before : len(path) - after]) for path in paths]
    return names, ".".join([*first[:before], "*", *first[len(first) - after :]]) if before or after else ""
