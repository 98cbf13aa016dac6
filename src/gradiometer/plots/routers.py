"""Routers over time: who gets the tokens, how evenly, who gets none, and whether the task trains the router at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.curves import Trace, broken, draw_trace, edge_words, level, log_limits, step_axis
from gradiometer.plots.expertdata import (
    BALANCE,
    DEAD,
    EVERY_ROUTER,
    GRAD_AUX,
    GRAD_TASK,
    LOAD,
    ROUTER_GRAD,
    Bools,
    ExpertRun,
    Field,
    Floats,
    Ints,
)
from gradiometer.plots.figures import WIDTH
from gradiometer.plots.frame import headline, legend_key, shortened, under
from gradiometer.plots.layermaps import hatch_cells
from gradiometer.plots.panels import not_measured, nothing
from gradiometer.plots.style import INK, TERM_COLOURS, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_routers", "mean_load", "router_trace", "step_edges"]

WIDEST = 8.0
"""Loads from 1/8 to 8 times the fair share have colours of their own."""
IDLE = "#262626"
LOOKS = {
    BALANCE: ("balance", "#009E73"),
    DEAD: ("dead share", "#CC79A7"),
    GRAD_TASK: ("from the task", TERM_COLOURS["task"]),
    GRAD_AUX: ("from auxiliary losses", TERM_COLOURS["entropy"]),
    ROUTER_GRAD: ("whole gradient", INK),
}


def draw_routers(found: ExpertRun) -> Figure:
    """The load of every expert, balance with dead share, and the router's gradient by where it comes from."""
    figure = sheet(WIDTH, 4.4)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.15, 1.0))
    load, even, grad = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    hatches = _load(load, found)
    _evenness(even, found)
    _gradients(grad, found)
    marks = [_line_key(template) for template in LOOKS if found.has(template)]
    marks += [not_measured()] if hatches else []
    band = ["Lines are all routers together, bands run from the lowest router to the highest."]
    under(figure, marks, [*(band if len(found.routers) > 1 else []), *edge_words(figure)])
    count = len(found.routers)
    small = f"{count} router{'s' * (count != 1)} · {len(found.experts)} experts" if count else "all routers together"
    headline(figure, f"Routers · {shortened(found.run)}", small)
    return figure


def mean_load(found: ExpertRun) -> tuple[Ints, Floats, Bools]:
    """[experts, steps] of the load over all routers: the run's own `all`, else the mean over those that have one."""
    field = found.load
    values = np.full((len(found.experts), len(field.steps)), np.nan)
    there = np.zeros(values.shape, dtype=np.bool_)
    routers = {router for router, _ in field.rows}
    for place, expert in enumerate(found.experts):
        wanted = [EVERY_ROUTER] if EVERY_ROUTER in routers else sorted(routers)
        lines = [field.row((router, expert)) for router in wanted]
        known = np.array([has for _, has in lines])
        counts = known.sum(axis=0)
        there[place] = counts > 0
        sums = np.where(known, np.array([line for line, _ in lines]), 0.0).sum(axis=0)
        np.divide(sums, counts, out=values[place], where=counts > 0)
    return field.steps, values, there


def step_edges(steps: Ints) -> Floats:
    """Where the column of each step begins and ends: halfway to its neighbours."""
    x = steps.astype(np.float64)
    if len(x) < 2:
        return np.concatenate([x - 0.5, x + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[x[0] - (middles[0] - x[0])], middles, [x[-1] + (x[-1] - middles[-1])]])


def _load(ax: Axes, found: ExpertRun) -> bool:
    """The load as colours, fair share in the middle; whether anything is hatched."""
    from matplotlib.colors import LogNorm

    ax.set_title("Load: share of the routed tokens, times the number of experts")
    if not found.load.rows:
        nothing(ax, f"{LOAD.partition('/')[0]} load is not in this run:\nthe router's output was not understood")
        return False
    steps, values, there = mean_load(found)
    fair = values * len(found.experts)
    # Below the scale has a colour of its own, and only an expert that got nothing is put there.
    shown = np.where(fair == 0, 1e-6, np.clip(fair, 1 / WIDEST, WIDEST))
    edges = step_edges(steps)
    cut = _cut(steps, edges)
    image = ax.pcolormesh(
        cut[0], np.arange(len(found.experts) + 1) - 0.5, np.ma.masked_invalid(np.insert(shown, cut[1], np.nan, axis=1)),
        norm=LogNorm(1 / WIDEST, WIDEST), cmap=_shades(), zorder=1, rasterized=True,
    )  # fmt: skip
    missing = np.insert(~there, cut[1], True, axis=1)
    hatch_cells(ax, missing, edges=cut[0])
    stride = -(-len(found.experts) // 9)
    ax.set_yticks(range(0, len(found.experts), stride), list(found.experts[::stride]))
    ax.set(xlim=(cut[0][0], cut[0][-1]), ylim=(len(found.experts) - 0.5, -0.5), ylabel="expert", xlabel="step")
    ax.spines[:].set_visible(False)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.03, pad=0.01, aspect=18, extend="min")
    bar.set_ticks([1 / 8, 1 / 2, 1, 2, 8], labels=["⅛", "½", "1", "2", "8"])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("× fair share (black: nothing)")
    return bool(missing.any())


def _cut(steps: Ints, edges: Floats) -> tuple[Floats, Ints]:
    """Edges with a column put in where steps are missing, and the places of those columns."""
    _, marks = broken(steps, np.zeros(len(steps)))
    added = np.flatnonzero(np.isnan(marks))
    places = added - np.arange(len(added))
    if not len(places):
        return edges, places
    wide = edges.copy()
    starts, ends = [], []
    for place in places.tolist():
        usual = np.diff(steps)[max(place - 2, 0)] if place > 1 else np.diff(steps)[min(place, len(steps) - 2)]
        starts.append(float(steps[place - 1]) + usual / 2)
        ends.append(float(steps[place]) - usual / 2)
    wide[places] = starts
    return np.insert(wide, places + 1, ends), places


def _shades() -> Any:
    from matplotlib import colormaps

    return colormaps["PuOr_r"].with_extremes(under=IDLE)


def _evenness(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Balance and dead share")
    if not found.has(BALANCE) and not found.has(DEAD):
        nothing(ax, "balance and dead_share are not in this run")
        return
    for template in (BALANCE, DEAD):
        _draw(ax, found, template, log=False)
    ax.set_ylim(-0.04, 1.1)
    level(ax, 1.0, "1: every expert has its share")
    step_axis(ax, found.routed[BALANCE if found.has(BALANCE) else DEAD].steps)


def _gradients(ax: Axes, found: ExpertRun) -> None:
    split = found.has(GRAD_TASK) or found.has(GRAD_AUX)
    ax.set_title("Router's gradient by term" if split else "Router's gradient")
    wanted = [template for template in (ROUTER_GRAD, GRAD_TASK, GRAD_AUX) if found.has(template)]
    if not wanted:
        nothing(ax, "grad, grad_task and grad_aux\nare not in this run")
        return
    drawn = [number for template in wanted for number in _draw(ax, found, template, log=True)]
    log_limits(ax, drawn)
    ax.set_ylabel("norm")
    step_axis(ax, np.unique(np.concatenate([found.routed[template].steps for template in wanted])))
    if not split:
        words = "task and auxiliary parts: only with meter.terms"
        ax.text(0.02, 0.03, words, transform=ax.transAxes, fontsize=5.8, color="#5A5A5A", ha="left", va="bottom")


def _draw(ax: Axes, found: ExpertRun, template: str, *, log: bool) -> list[float]:
    if not found.has(template):
        return []
    field = found.routed[template]
    look: dict[str, Any] = {"linewidth": 0.8} if template == ROUTER_GRAD else {}
    return draw_trace(ax, field.steps, router_trace(field, template), log=log, **look)


def router_trace(field: Field, template: str) -> Trace:
    """`all` as the line (else the median of the routers), and the routers' range as its band."""
    label, colour = LOOKS[template]
    each = [place for place, router in enumerate(field.rows) if router != EVERY_ROUTER]
    finite = np.where(np.isfinite(field.values), field.values, np.nan)
    line, there = field.row(EVERY_ROUTER) if EVERY_ROUTER in field.rows else (_over(np.nanmedian, finite), None)
    of = field.values if there is None else line[None]
    has = field.there if there is None else there[None]
    kinds = {"zero": of == 0, "NaN": has & np.isnan(of), "Inf": np.isinf(of)}
    return Trace(
        label=label,
        shades=(colour,) * 3,
        values=np.where(np.isfinite(line), line, np.nan),
        low=_over(np.nanmin, finite[each]) if len(each) > 1 else None,
        high=_over(np.nanmax, finite[each]) if len(each) > 1 else None,
        marks={kind: where.any(axis=0) for kind, where in kinds.items()},
    )


def _over(function: Any, values: Floats) -> Floats:
    known = np.isfinite(values).any(axis=0)
    result = np.full(values.shape[1], np.nan)
    result[known] = function(values[:, known], axis=0)
    return result


def _line_key(template: str) -> Any:
    label, colour = LOOKS[template]
    return legend_key(label, marker="", linestyle="-", color=colour, linewidth=1.6)
