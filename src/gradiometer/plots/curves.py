"""Experts over time: expert 0 in blues, the others in warm colours, gaps left open, zeros and NaNs marked at the edges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.expertdata import TIERS, Bools, Field, Floats, Ints
from gradiometer.plots.frame import legend_key
from gradiometer.plots.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "SHADES",
    "SINGLY",
    "WARM",
    "Trace",
    "broken",
    "draw_trace",
    "edge_words",
    "from_zero",
    "level",
    "log_limits",
    "step_axis",
    "trace_keys",
    "traces",
]

SHADES = {tier: shade for shade, tier in enumerate(TIERS)}
"""Light, medium and dark for top, bottom and middle, as source 002 has them."""
CLEAN = ("#9ECAE1", "#3182BD", "#08306B")
WARM = (("#FC9272", "#DE2D26", "#67000D"), ("#FDBE85", "#F5840C", "#8A3B04"), ("#F7B6D2", "#E0559C", "#7A1450"))
STYLES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))
SINGLY = len(WARM)
"""As many experts beside expert 0 have lines of their own; more are one median with a band."""
UNDERNEATH = 1.9
"""How wide expert 0's line is: where another lies upon it, both are seen."""
LATE = 1.9
"""A step that comes later than this many times its neighbours' distance leaves a gap."""
EDGES = {"zero": ("v", 0.02), "NaN": ("x", 0.98), "Inf": ("^", 0.98)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line: an expert, or the median of several with their smallest and largest."""

    label: str
    shades: tuple[str, str, str]
    style: Any = "-"
    width: float = 1.1
    values: Floats
    """NaN where there is no finite value."""
    low: Floats | None = None
    high: Floats | None = None
    marks: dict[str, Bools]
    """Where something is exactly zero, NaN or infinite."""


def traces(field: Field, *, values: Floats | None = None, there: Bools | None = None) -> list[Trace]:
    """The lines of a field whose rows are experts; `values` and `there` stand in for its own, row by row."""
    values = field.values if values is None else values
    there = field.there if there is None else there
    clean = [place for place, expert in enumerate(field.rows) if expert == "0"]
    others = [place for place, expert in enumerate(field.rows) if expert != "0"]
    lines = [_single("expert 0", values[place], there[place], CLEAN, width=UNDERNEATH) for place in clean]
    if len(others) > SINGLY:
        return [*lines, _together(_span([field.rows[place] for place in others]), values[others], there[others])]
    for place in others:
        look = (int(field.rows[place]) - 1 if field.rows[place].isdecimal() else place) % SINGLY
        name = f"expert {field.rows[place]}"
        lines.append(_single(name, values[place], there[place], WARM[look], style=STYLES[look]))
    return lines


def _single(label: str, values: Floats, there: Bools, shades: tuple[str, str, str], **look: Any) -> Trace:
    finite = np.where(np.isfinite(values), values, np.nan)
    return Trace(label=label, shades=shades, values=finite, marks=_marks(values[None], there[None]), **look)


def _together(label: str, values: Floats, there: Bools) -> Trace:
    finite = np.where(np.isfinite(values), values, np.nan)
    known = np.isfinite(finite).any(axis=0)
    middle, low, high = (np.full(finite.shape[1], np.nan) for _ in range(3))
    for line, of in ((middle, np.nanmedian), (low, np.nanmin), (high, np.nanmax)):
        line[known] = of(finite[:, known], axis=0)
    return Trace(label=label, shades=WARM[0], values=middle, low=low, high=high, marks=_marks(values, there))


def _marks(values: Floats, there: Bools) -> dict[str, Bools]:
    kinds = {"zero": values == 0, "NaN": there & np.isnan(values), "Inf": np.isinf(values)}
    return {name: where.any(axis=0) for name, where in kinds.items()}


def _span(experts: Sequence[str]) -> str:
    numbers = [int(expert) for expert in experts if expert.isdecimal()]
    unbroken = len(numbers) == len(experts) and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"experts {numbers[0]}–{numbers[-1]}" if unbroken else f"{len(experts)} other experts"


def broken(steps: Ints, *lines: Floats) -> tuple[Floats, ...]:
    """The steps and lines with a NaN put in wherever steps are missing that the cadence around would have had."""
    x = steps.astype(np.float64)
    apart = np.diff(x)
    if len(apart) < 2:
        return (x, *lines)
    around = np.maximum(np.append(apart[1:], 0), np.insert(apart[:-1], 0, 0))
    late = np.flatnonzero(apart > LATE * around) + 1
    middles = (x[late] + x[late - 1]) / 2
    return (np.insert(x, late, middles), *(np.insert(line, late, np.nan) for line in lines))


def draw_trace(ax: Axes, steps: Ints, trace: Trace, *, shade: int = 1, log: bool = False, **look: Any) -> list[float]:
    """The line with its band, points that stand alone as dots, edge marks; gives the numbers on the axis."""
    colour = trace.shades[shade]
    shown = np.where(trace.values > 0, trace.values, np.nan) if log else trace.values
    x, y = broken(steps, shown)
    usual: dict[str, Any] = {"color": colour, "linestyle": trace.style, "linewidth": trace.width, "zorder": 2.5}
    ax.plot(x, y, **(usual | look))
    _dots(ax, x, y, colour)
    if trace.low is not None and trace.high is not None:
        x, low, high = broken(steps, trace.low, trace.high)
        floor = np.maximum(low, 1e-300) if log else low  # a zero reaches below every log axis
        ax.fill_between(x, floor, high, facecolor=(colour, 0.14), edgecolor=(colour, 0.5), linewidth=0.4, zorder=1.5)
    for kind, where in trace.marks.items():
        if where.any() and (log or kind != "zero"):
            _edge(ax, kind, steps[where], colour)
    numbers = [shown, *(line for line in (trace.low, trace.high) if line is not None)]
    return [float(number) for line in numbers for number in line if math.isfinite(number)]


def _dots(ax: Axes, x: Floats, y: Floats, colour: str) -> None:
    """A line needs two neighbours: a value without one would not be seen."""
    known = np.isfinite(y)
    before, after = np.insert(known[:-1], 0, False), np.append(known[1:], False)
    alone = known & ~before & ~after
    if alone.any():
        ax.plot(x[alone], y[alone], linestyle="", marker="o", markersize=2.4, color=colour, zorder=2.6, label="_alone")


def _edge(ax: Axes, kind: str, steps: Ints, colour: str) -> None:
    sign, height = EDGES[kind]
    ax.plot(
        steps, np.full(len(steps), height), transform=ax.get_xaxis_transform(), linestyle="", marker=sign, markersize=3.2,
        color=colour, markeredgewidth=0.8, clip_on=False, zorder=4, label=f"_{kind}",
    )  # fmt: skip


def edge_words(figure: Figure) -> list[str]:
    """The caption's words for the marks at the edges, those that there are."""
    used = {str(line.get_label()) for ax in figure.axes for line in ax.lines}
    words = {
        "zero": "▾ at the bottom edge: exactly zero",
        "NaN": "× at the top edge: NaN",
        "Inf": "▴ at the top edge: Inf",
    }
    found = [words[kind] for kind in EDGES if f"_{kind}" in used]
    return [", ".join(found) + "."] if found else []


def trace_keys(lines: Iterable[Trace], *, shade: int = 1, ending: str = "") -> list[Any]:
    """The legend's lines for traces."""
    return [
        legend_key(
            f"{line.label}{'' if line.low is None else ' (median, band: min to max)'}{ending}",
            marker="", linestyle=line.style, color=line.shades[shade], linewidth=1.5 * line.width,
        )
        for line in lines
    ]  # fmt: skip


def step_axis(ax: Axes, steps: Ints, *, label: bool = True) -> None:
    """From the first measured step to the last."""
    first, last = (float(steps[0]), float(steps[-1])) if len(steps) else (0.0, 1.0)
    room = 0.02 * (last - first) or 0.5
    ax.set_xlim(first - room, last + room)
    ax.locator_params(axis="x", nbins=6, integer=True)
    ax.grid(visible=True, axis="y")
    ax.set_axisbelow(True)
    if label:
        ax.set_xlabel("step")


def log_limits(ax: Axes, drawn: Iterable[float]) -> None:
    """A logarithmic axis with room for marks at both edges; where nothing is above zero it has no numbers."""
    sizes = [number for number in drawn if number > 0]
    ax.set_yscale("log")
    if not sizes:
        ax.set_ylim(0.1, 1.0)
        ax.tick_params(axis="y", which="both", left=False, labelleft=False)
        return
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    room = max(0.08 * (high - low), 0.12)
    ax.set_ylim(10 ** (low - room), 10 ** (high + room))


def from_zero(ax: Axes, drawn: Sequence[float], *, least: float = 0.0) -> None:
    """A linear axis from zero up to the largest number, `least` at the least."""
    top = max([*drawn, least]) or 1.0
    bottom = min([*drawn, 0.0])
    room = top - bottom
    ax.set_ylim(bottom - 0.04 * room, top + 0.08 * room)  # below zero too: a line at zero would be cut in half


def level(ax: Axes, at: float, words: str, *, above: bool = True) -> None:
    """A line to compare with, and what it means."""
    ax.axhline(at, color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
    ax.annotate(
        words, (1.0, at), xycoords=("axes fraction", "data"), xytext=(0, 1.5 if above else -1.5),
        textcoords="offset points", ha="right", va="bottom" if above else "top", fontsize=5.8, color="#5A5A5A",
        bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}, zorder=1.2,
    )  # fmt: skip
