"""Divergence over time, and beside it what tells whether it is only routing: ratios after division, cosines, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.curves import (
    WARM,
    draw_trace,
    edge_words,
    from_zero,
    level,
    log_limits,
    step_axis,
    trace_keys,
    traces,
)
from gradiometer.plots.dynamics import CONVERGED, MEANINGFUL, at_the_end, divergence_words
from gradiometer.plots.expertdata import (
    COSINE,
    DIVERGENCE,
    LAYER_NORM,
    LAYER_WEIGHT,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    NORM,
    WEIGHT,
    ExpertRun,
)
from gradiometer.plots.figures import WIDTH
from gradiometer.plots.frame import headline, legend_key, shortened, under
from gradiometer.plots.panels import nothing
from gradiometer.plots.rows import spoken
from gradiometer.plots.style import GREY, INK, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["divergence_panel", "draw_divergence", "ratio_panel", "routing_points", "verdict"]

LEFT = 0.05
"""|log ratio| under which two tiers are of one size: five per cent."""
NOTHING = 0.001
"""A ratio below it is rounding."""
ALIKE = 0.99
"""A cosine above it is one direction."""


def draw_divergence(found: ExpertRun) -> Figure:
    """The source's score and the ratios it should be read with above; directions, weights and the two together below."""
    explained = found.has(COSINE) or found.has(WEIGHT)
    figure = sheet(WIDTH, 4.9 if explained else 2.7)
    grid = figure.add_gridspec(2 if explained else 1, 6)
    score, ratio = (figure.add_subplot(grid[0, place : place + 3]) for place in (0, 3))
    log_limits(score, divergence_panel(score, found))
    score.set_title("Divergence (source 002)")
    score.set_ylabel("mean |norm − norm₀|")
    if ratio_panel(ratio, found):
        step_axis(ratio, found.steps, label=not explained)
    ratio.set_title("|log ratio| to expert 0")
    step_axis(score, found.steps, label=not explained)
    if explained:
        cosine, weight, scatter = (figure.add_subplot(grid[1, place : place + 2]) for place in (0, 2, 4))
        _cosines(cosine, found)
        _weights(weight, found)
        _scatter(scatter, found)
    marks = trace_keys(traces(next(found.field(t) for t in (WEIGHT, DIVERGENCE, LOG_RATIO) if found.has(t))))
    if found.has(LOG_RATIO):
        marks.append(legend_key("before routing is divided out", marker="", linestyle=":", color=GREY, linewidth=1.2))
    under(figure, marks, [verdict(found), *edge_words(figure)])
    headline(figure, f"Divergence from expert 0 · {shortened(found.run)}", divergence_words(found))
    return figure


def divergence_panel(ax: Axes, found: ExpertRun) -> list[float]:
    """The source's score with its two readings; gives the numbers on the axis."""
    field = found.field(DIVERGENCE)
    if not field.rows:
        nothing(ax, "divergence is not in this run")
        return []
    drawn = [number for line in traces(field) for number in draw_trace(ax, field.steps, line, log=True)]
    level(ax, MEANINGFUL, f"{MEANINGFUL}: meaningful above")
    level(ax, CONVERGED, f"{CONVERGED}: converged below", above=False)
    return [*drawn, MEANINGFUL, CONVERGED]


def ratio_panel(ax: Axes, found: ExpertRun) -> list[float]:
    """|log ratio| of the tiers' RMS: routed in full lines, unrouted dotted; gives the numbers on the axis."""
    if not found.has(LOG_RATIO) and not found.has(LOG_RATIO_ROUTED):
        nothing(ax, "log_ratio and log_ratio_routed\nare not in this run")
        return []
    drawn = []
    for template in (LOG_RATIO, LOG_RATIO_ROUTED):
        field, routed = found.field(template), template == LOG_RATIO_ROUTED
        look: dict[str, Any] = {} if routed else {"linestyle": ":", "linewidth": 0.9}
        for line in traces(field):
            drawn += draw_trace(ax, field.steps, line, shade=1 if routed else 0, **look)
    if not found.has(LOG_RATIO_ROUTED):
        _note(ax, "log_ratio_routed is missing: routing is still in it")
    level(ax, LEFT, f"{LEFT}: one size below")
    ax.set_ylabel("nats")
    from_zero(ax, drawn, least=2 * LEFT)
    return drawn


def _cosines(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Cosine to expert 0's gradient")
    field = found.field(COSINE)
    if not field.rows:
        nothing(ax, "cos_to_0 is not in this run")
        return
    drawn = [number for line in traces(field) for number in draw_trace(ax, field.steps, line)]
    step_axis(ax, field.steps)
    level(ax, 1.0, "1: one direction", above=False)
    ax.set_ylim(min([-0.05, *(number - 0.05 for number in drawn)]), 1.08)


def _weights(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Routing weight")
    field = found.field(WEIGHT)
    if not field.rows:
        nothing(ax, "routing_weight is not in this run")
        return
    drawn = [number for line in traces(field) for number in draw_trace(ax, field.steps, line)]
    step_axis(ax, field.steps)
    level(ax, 1 / len(found.experts), f"1/{len(found.experts)}")
    from_zero(ax, drawn, least=1.2 / len(found.experts))


def _scatter(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Is it routing?")
    points, absent = routing_points(found)
    if not points:
        nothing(ax, "needs norm and routing_weight\nof expert 0 and another")
        return
    singly = {line.label: line.shades[1] for line in traces(found.field(WEIGHT)) if line.low is None}
    for expert in dict.fromkeys(expert for expert, _, _ in points):
        x, y = zip(*((weight, norm) for of, weight, norm in points if of == expert), strict=True)
        colour = singly.get(f"expert {expert}", WARM[0][1])
        ax.plot(x, y, linestyle="", marker="o", markersize=2.8, color=colour, markeredgewidth=0, alpha=0.7, zorder=3)
    ends = [number for _, *pair in points for number in pair]
    low, high = min([*ends, 0.8]) / 1.4, max([*ends, 1.25]) * 1.4
    ax.plot([low, high], [low, high], color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ax.set_xlabel("routing weight / expert 0's")
    ax.set_ylabel("gradient norm / expert 0's")
    ax.grid(visible=True)
    ax.set_axisbelow(True)
    _note(ax, "on the line: routing alone" + (f"\n{absent} not shown: zero or missing" if absent else ""))


def routing_points(found: ExpertRun) -> tuple[list[tuple[str, float, float]], int]:
    """(expert, weight over expert 0's, norm over expert 0's) at the end of the run, for each layer where the layers have
    both; and how many experts are left out because a number is zero or missing."""
    inside = found.has(LAYER_NORM, LAYER_WEIGHT)
    norms = at_the_end(found.layered[LAYER_NORM] if inside else found.field(NORM))
    weights = at_the_end(found.layered[LAYER_WEIGHT] if inside else found.field(WEIGHT))
    layers: tuple[str | None, ...] = found.layers if inside else (None,)
    points, absent = [], 0
    if not norms or not weights:
        return [], 0
    for layer in layers:
        for expert in found.experts:
            row, first = (expert, "0") if layer is None else ((layer, expert), (layer, "0"))
            numbers = [of.get(place, 0.0) for of in (weights, norms) for place in (row, first)]
            if expert == "0":
                continue
            if min(numbers) > 0:
                points.append((expert, numbers[0] / numbers[1], numbers[2] / numbers[3]))
            else:
                absent += 1
    return points, absent


def _note(ax: Axes, words: str) -> None:
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    ax.text(0.03, 0.97, words, transform=ax.transAxes, ha="left", va="top", fontsize=5.8, color=INK, bbox=box, zorder=4)


def verdict(found: ExpertRun) -> str:
    """Whether routing explains the divergence, in a sentence with its numbers."""
    before, after, cosine = (_middle(found, template) for template in (LOG_RATIO, LOG_RATIO_ROUTED, COSINE))
    direction = "" if cosine is None else f"; cosine to expert 0: {spoken(cosine)}"
    if after is None:
        bare = "" if before is None else f" (|log ratio| {spoken(before)} with routing in it{direction})"
        return f"Whether routing explains the divergence cannot be said: log_ratio_routed was not measured{bare}."
    start = "" if before is None else f"{_size(before)} before, "
    numbers = f"|log ratio| {start}{_size(after)} after dividing by routing weights{direction}"
    if before is not None and max(before, after) < LEFT:
        words = "The tiers of all experts are of one size, with routing or without"
    elif after < LEFT and (cosine is None or cosine >= ALIKE):
        words = "Routing explains the divergence: what differs is how much an expert is asked, not what it learns"
    elif after < LEFT:
        words = "Routing explains the sizes, but the directions differ"
    elif before is not None and after < before / 2:
        words = "Routing explains part of the divergence, not all"
    else:
        words = "Routing does not explain the divergence"
    return f"{words} ({numbers}; median over experts at the end)."


def _size(ratio: float) -> str:
    return spoken(ratio) if ratio >= NOTHING else f"under {NOTHING}"


def _middle(found: ExpertRun, template: str) -> float | None:
    known = list(at_the_end(found.field(template)).values())
    return float(np.median(known)) if known else None
