"""The figures of experts: expert 0 in blues, the others in warm colours, gaps left open, zeros and
NaNs marked at the edges. Lines, levels and axes are those of the page's charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.charts.experts import (
    LEFT,
    ROLES,
    SINGLY,
    WORDS,
    divergence_charts,
    divergence_words,
    evenness_chart,
    norms_chart,
    router_gradient_chart,
    routing_points,
    sound_chart,
    verdict,
)
from gradiometer.charts.model import Chart, Line, Number, Points
from gradiometer.doctor.experts.series import (
    BALANCE,
    COSINE,
    DEAD,
    DIVERGENCE,
    EVERY_ROUTER,
    GRAD_AUX,
    GRAD_TASK,
    LOAD,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    ROUTER_GRAD,
    TIERS,
    WEIGHT,
    Bools,
    ExpertRun,
    Field,
    norm_of,
    rms_of,
)
from gradiometer.plots.panels import floats, hatch_cells, not_measured, nothing
from gradiometer.plots.style import (
    GREY,
    INK,
    TERM_COLOURS,
    WIDTH,
    headline,
    legend_key,
    sheet,
    shortened,
    under,
)
from gradiometer.store.strictjson import plain
from gradiometer.store.thinning import Floats, Ints
from gradiometer.words import counted, typeset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CLEAN",
    "WARM",
    "WholeLines",
    "broken",
    "draw_divergence",
    "draw_dynamics",
    "draw_expert_runs",
    "draw_routers",
    "lines_of",
    "mean_load",
    "step_edges",
]

CLEAN = ("#9ECAE1", "#3182BD", "#08306B")
WARM = (
    ("#FC9272", "#DE2D26", "#67000D"),
    ("#FDBE85", "#F5840C", "#8A3B04"),
    ("#F7B6D2", "#E0559C", "#7A1450"),
)
"""Light, medium and dark for top, bottom and middle."""
STYLES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))
TOGETHER = "experts"
"""The role of a line that is the median of several experts."""
UNDERNEATH = 1.9
"""How wide expert 0's line is: where another lies upon it, both are seen."""
LATE = 1.9
"""A step that comes later than this many times its neighbours' distance leaves a gap."""
EDGES = {"zero": ("v", 0.02), "NaN": ("x", 0.98), "Inf": ("^", 0.98)}
ROUTER_COLOURS = {
    ROLES[BALANCE]: "#009E73",
    ROLES[DEAD]: "#CC79A7",
    ROLES[GRAD_TASK]: TERM_COLOURS["task"],
    ROLES[GRAD_AUX]: TERM_COLOURS["entropy"],
    ROLES[ROUTER_GRAD]: INK,
}
WIDEST = 8.0
"""Loads from 1/8 to 8 times the fair share have colours of their own."""
IDLE = "#262626"
BEFORE = "|log ratio|: thin and pale before routing is divided out, strong lines after."


class WholeLines:
    """Every point of a run; of more than three experts beside expert 0 their median and range."""

    def singles(
        self, found: ExpertRun, template: str, *, tier: str = "bottom", ending: str = ""
    ) -> list[Line]:
        """Lines by expert, in the shade of a tier."""
        return lines_of(found.field(template), template, tier=tier, ending=ending)

    def tiers(
        self,
        found: ExpertRun,
        templates: Iterable[str],
        *,
        layer: str | None = None,
        routed: bool = False,
    ) -> list[Line]:
        """Lines by expert and tier over all layers, tier by tier."""
        assert layer is None, "no figure is of one layer"
        lines: list[Line] = []
        for tier, template in zip(TIERS, templates, strict=True):
            field = found.per_weight(tier) if routed else found.field(template)
            lines += lines_of(field, template, tier=tier, ending=f", {WORDS[tier]}")
        return lines

    def of_router(self, found: ExpertRun, router: str, wanted: dict[str, str]) -> list[Line]:
        """All routers together as the line (else their median), their range as its band."""
        return [
            _router_line(found.field(template), template, words, router)
            for template, words in wanted.items()
            if found.has(template)
        ]


def lines_of(field: Field, name: str, *, tier: str = "bottom", ending: str = "") -> list[Line]:
    """The lines of a field whose rows are experts."""
    others = [place for place, expert in enumerate(field.rows) if expert != "0"]
    together = others if len(others) > SINGLY else []
    lines = [
        _line(field, [place], name, f"expert {expert}{ending}", f"expert:{expert}:{tier}")
        for place, expert in enumerate(field.rows)
        if place not in together
    ]
    lines.sort(key=lambda line: not line.role.startswith("expert:0:"))
    if together:
        who = f"{_span([field.rows[place] for place in others])} (median, band: min to max)"
        lines.append(_line(field, others, name, f"{who}{ending}", f"{TOGETHER}:{tier}"))
    return lines


def _line(field: Field, rows: list[int], name: str, label: str, role: str) -> Line:
    """A row as it is, or the median, smallest and largest of several."""
    values, there = field.values[rows], field.there[rows]
    points = _points(field.steps, values[0], there[0]) if len(rows) == 1 else None
    return Line(
        run="",
        name=name,
        label=label,
        role=role,
        points=points or _range_points(field.steps, values, there),
    )


def _points(steps: Ints, values: Floats, there: Bools) -> Points:
    said = [value if known else None for value, known in zip(values.tolist(), there, strict=True)]
    return Points(steps=steps.tolist(), values=plain(said))


def _range_points(steps: Ints, values: Floats, there: Bools, line: Floats | None = None) -> Points:
    """The median of finite values and their ends; where one is Inf, the upper end is."""
    finite = np.where(np.isfinite(values), values, np.nan)
    low, high = (_over(function, finite) for function in (np.nanmin, np.nanmax))
    high[np.isinf(values).any(axis=0)] = np.inf
    middle = _over(np.nanmedian, finite) if line is None else line
    return Points(
        steps=steps.tolist(),
        values=_known(middle),
        low=_known(low),
        high=_known(high),
        nans=steps[(there & np.isnan(values)).any(axis=0)].tolist(),
    )


def _known(values: Floats) -> list[Number]:
    listed: list[Number] = plain(
        [None if math.isnan(value) else value for value in values.tolist()]
    )
    return listed


def _over(function: Any, values: Floats) -> Floats:
    known = np.isfinite(values).any(axis=0)
    result = np.full(values.shape[1], np.nan)
    result[known] = function(values[:, known], axis=0)
    return result


def _span(experts: Sequence[str]) -> str:
    numbers = [int(expert) for expert in experts if expert.isdecimal()]
    unbroken = len(numbers) == len(experts) and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"experts {numbers[0]}–{numbers[-1]}" if unbroken else f"{len(experts)} other experts"


def _router_line(field: Field, template: str, words: str, router: str) -> Line:
    each = [place for place, row in enumerate(field.rows) if row != EVERY_ROUTER]
    line, there = field.row(router)
    if router not in field.rows:
        points = _range_points(field.steps, field.values, field.there)
    elif len(each) > 1:
        band = _range_points(field.steps, field.values[each], field.there[each])
        own = _points(field.steps, line, there)
        points = Points(steps=own.steps, values=own.values, low=band.low, high=band.high)
    else:
        points = _points(field.steps, line, there)
    return Line(run="", name=template, label=words, role=ROLES[template], points=points)


def _pen(role: str) -> tuple[str, Any, float]:
    """Colour, dash and width."""
    if role in ROUTER_COLOURS:
        return ROUTER_COLOURS[role], "-", 0.8 if role == ROLES[ROUTER_GRAD] else 1.1
    kind, *expert, tier = role.split(":")
    shade = TIERS.index(tier)
    if kind == TOGETHER:
        return WARM[0][shade], "-", 1.1
    if expert == ["0"]:
        return CLEAN[shade], "-", UNDERNEATH
    number = int(expert[0]) - 1 if expert[0].isdecimal() else len(expert[0])
    return WARM[number % SINGLY][shade], STYLES[number % SINGLY], 1.1


def _floats(values: Sequence[Number]) -> Floats:
    return np.array([np.nan if value is None else value for value in floats(values)])


def broken(steps: Ints, *lines: Floats) -> tuple[Floats, ...]:
    """Steps and lines with a NaN where the cadence would have had steps and has none."""
    x = steps.astype(np.float64)
    apart = np.diff(x)
    if len(apart) < 2:
        return (x, *lines)
    around = np.maximum(np.append(apart[1:], 0), np.insert(apart[:-1], 0, 0))
    late = np.flatnonzero(apart > LATE * around) + 1
    middles = (x[late] + x[late - 1]) / 2
    return (np.insert(x, late, middles), *(np.insert(line, late, np.nan) for line in lines))


def _draw_line(ax: Axes, line: Line, *, log: bool = False, **look: Any) -> list[float]:
    """The line, its band, lone points as dots, edge marks; gives the numbers on the axis."""
    points, (colour, style, width) = line.points, _pen(line.role)
    steps, values = np.array(points.steps, dtype=np.int64), _floats(points.values)
    odd = {"zero": values == 0, "NaN": _spelled(points.values, "NaN"), "Inf": np.isinf(values)}
    shown = np.where(np.isfinite(values) & ((values > 0) | (not log)), values, np.nan)
    x, y = broken(steps, shown)
    usual = {"color": colour, "linestyle": style, "linewidth": width, "zorder": 2.5}
    ax.plot(x, y, **(usual | look))
    _dots(ax, x, y, colour)
    numbers = [shown]
    if points.low is not None and points.high is not None:
        low, high = _floats(points.low), _floats(points.high)
        if line.role.startswith(TOGETHER):
            odd |= {"zero": low == 0, "NaN": np.isin(steps, points.nans), "Inf": np.isinf(high)}
        high = np.where(np.isinf(high), np.nan, high)
        _draw_band(ax, steps, low, high, colour, log=log)
        numbers += [low, high]
    for kind, where in odd.items():
        if where.any() and (log or kind != "zero"):
            _edge(ax, kind, steps[where], colour)
    return [float(number) for each in numbers for number in each if math.isfinite(number)]


def _spelled(values: Sequence[Number], word: str) -> Bools:
    return np.array([value == word for value in values], dtype=np.bool_)


def _draw_band(ax: Axes, steps: Ints, low: Floats, high: Floats, colour: str, *, log: bool) -> None:
    x, bottom, top = broken(steps, low, high)
    floor = np.maximum(bottom, 1e-300) if log else bottom  # a zero reaches below every log axis
    look: dict[str, Any] = {"facecolor": (colour, 0.14), "edgecolor": (colour, 0.5)}
    ax.fill_between(x, floor, top, linewidth=0.4, zorder=1.5, **look)


def _dots(ax: Axes, x: Floats, y: Floats, colour: str) -> None:
    """A line needs two neighbours: a value without one would not be seen."""
    known = np.isfinite(y)
    before, after = np.insert(known[:-1], 0, False), np.append(known[1:], False)
    alone = known & ~before & ~after
    if alone.any():
        ax.plot(
            x[alone],
            y[alone],
            linestyle="",
            marker="o",
            markersize=2.4,
            color=colour,
            zorder=2.6,
            label="_alone",
        )


def _edge(ax: Axes, kind: str, steps: Ints, colour: str) -> None:
    sign, height = EDGES[kind]
    ax.plot(
        steps,
        np.full(len(steps), height),
        transform=ax.get_xaxis_transform(),
        linestyle="",
        marker=sign,
        markersize=3.2,
        color=colour,
        markeredgewidth=0.8,
        clip_on=False,
        zorder=4,
        label=f"_{kind}",
    )


def _edge_words(figure: Figure) -> list[str]:
    """The caption's words for the marks at the edges, those that there are."""
    used = {str(line.get_label()) for ax in figure.axes for line in ax.lines}
    words = {
        "zero": "▾ at the bottom edge: exactly zero",
        "NaN": "× at the top edge: NaN",
        "Inf": "▴ at the top edge: Inf",
    }
    found = [words[kind] for kind in EDGES if f"_{kind}" in used]
    return [", ".join(found) + "."] if found else []


def _line_keys(lines: Iterable[Line]) -> list[Any]:
    """The legend's lines."""
    pens = [(line.label, *_pen(line.role)) for line in lines]
    return [
        legend_key(label, marker="", linestyle=style, color=colour, linewidth=1.5 * width)
        for label, colour, style, width in pens
    ]


def _step_axis(ax: Axes, steps: Ints, *, label: bool = True) -> None:
    """From the first measured step to the last."""
    first, last = (float(steps[0]), float(steps[-1])) if len(steps) else (0.0, 1.0)
    room = 0.02 * (last - first) or 0.5
    ax.set_xlim(first - room, last + room)
    ax.locator_params(axis="x", nbins=6, integer=True)
    ax.grid(visible=True, axis="y")
    ax.set_axisbelow(True)
    if label:
        ax.set_xlabel("step")


def _log_limits(ax: Axes, drawn: Iterable[float]) -> None:
    """A log axis with room for marks at both edges; without numbers where nothing is."""
    sizes = [number for number in drawn if number > 0]
    ax.set_yscale("log")
    if not sizes:
        ax.set_ylim(0.1, 1.0)
        ax.tick_params(axis="y", which="both", left=False, labelleft=False)
        return
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    room = max(0.08 * (high - low), 0.12)
    ax.set_ylim(10 ** (low - room), 10 ** (high + room))


def _from_zero(ax: Axes, drawn: Sequence[float], *, least: float = 0.0) -> None:
    """A linear axis from zero up to the largest number, `least` at the least."""
    top = max([*drawn, least]) or 1.0
    bottom = min([*drawn, 0.0])
    room = top - bottom
    ax.set_ylim(
        bottom - 0.04 * room, top + 0.08 * room
    )  # below zero too: a line at zero would be cut in half


def _levels(ax: Axes, chart: Chart) -> list[float]:
    """Lines to compare with, and what they mean: above the highest, below the others."""
    values = [level.value for level in chart.levels]
    for level in chart.levels:
        above = level.value == max(values)
        ax.axhline(level.value, color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
        box = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"}
        ax.annotate(
            level.label,
            (1.0, level.value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 1.5 if above else -1.5),
            textcoords="offset points",
            ha="right",
            va="bottom" if above else "top",
            fontsize=5.8,
            color="#5A5A5A",
            bbox={**box, "alpha": 0.7},
            zorder=1.2,
        )
    return values


def _draw_chart(ax: Axes, chart: Chart) -> list[float]:
    """The lines and levels of a chart, on a log axis where it has one; gives the numbers on it."""
    log = chart.y.scale == "log"
    dotted = {"linestyle": ":", "linewidth": 0.9}
    ax.set_ylabel(chart.y.title)
    drawn = [
        number
        for line in chart.lines
        for number in _draw_line(ax, line, log=log, **(dotted if line.name == LOG_RATIO else {}))
    ]
    return [*drawn, *_levels(ax, chart)]


def _chart(found: ExpertRun, id: str) -> Chart | None:
    """One of the charts of divergence."""
    charts = divergence_charts(WholeLines(), [found])
    return next((chart for chart in charts if chart.id == id), None)


def _sound(found: ExpertRun) -> Chart:
    return sound_chart(WholeLines(), found, routed=found.has(WEIGHT))


def draw_dynamics(found: ExpertRun) -> Figure:
    """Norms of the tiers over time above, RMS per routing weight below."""
    norms, sound = norms_chart(WholeLines(), found), _sound(found)
    figure = sheet(WIDTH, 5.6 if sound.lines else 3.8)
    heights = (1, 1) if sound.lines else (6, 1)
    upper, lower = figure.subplots(2, 1, sharex=bool(sound.lines), height_ratios=heights)
    upper.set_title(norms.title)
    _log_limits(upper, _tier_panel(upper, found))
    _step_axis(upper, found.steps, label=not sound.lines)
    lower.set_title(sound.title if sound.lines else "RMS per routing weight")
    if sound.lines:
        _log_limits(lower, _draw_chart(lower, sound))
        _step_axis(lower, found.steps)
    else:
        nothing(lower, "top_rms, bottom_rms, middle_rms and routing_weight are not in this run")
    marks, columns = _tier_keys(found)
    under(figure, marks, [*_extremes(found), *_edge_words(figure)], columns=columns)
    headline(figure, f"Expert dynamics · {shortened(found.run)}", divergence_words(found))
    return figure


def _tier_panel(ax: Axes, found: ExpertRun) -> list[float]:
    chart = norms_chart(WholeLines(), found)
    if not chart.lines:
        nothing(ax, "tier norms are not in this run")
        return []
    return _draw_chart(ax, chart)


def _tier_keys(found: ExpertRun) -> tuple[list[Any], int]:
    """The legend, a column a line of experts and a row a tier; and how many columns."""
    lines = norms_chart(WholeLines(), found).lines or _sound(found).lines
    columns = max(len(lines) // len(TIERS), 1)
    ordered = [line for place in range(columns) for line in lines[place::columns]]
    return _line_keys(ordered), columns


def _extremes(found: ExpertRun) -> list[str]:
    """A band names nobody: who is at its ends."""
    known = found.field(norm_of("middle")).at_the_end()
    known.pop("0", None)
    if len(known) <= SINGLY:
        return []
    least, most = (pick(known, key=lambda expert: known[expert]) for pick in (min, max))
    ends = (
        f"expert {least} is the lowest ({typeset(known[least])}), expert {most} the highest"
        f" ({typeset(known[most])})"
    )
    return [f"At the end, in the norm of the middle tier: {ends}."]


def draw_divergence(found: ExpertRun) -> Figure:
    """The score and the ratios above; directions, weights and the two together below."""
    explained = found.has(COSINE) or found.has(WEIGHT)
    figure = sheet(WIDTH, 4.9 if explained else 2.7)
    grid = figure.add_gridspec(2 if explained else 1, 6)
    score, ratio = (figure.add_subplot(grid[0, place : place + 3]) for place in (0, 3))
    _log_limits(score, _divergence_panel(score, found))
    score.set_title("Divergence of tier norms")
    _step_axis(score, found.steps, label=not explained)
    ratio.set_title("|log ratio| to expert 0")
    if drawn := _ratio_panel(ratio, found):
        _from_zero(ratio, drawn, least=2 * LEFT)
        _step_axis(ratio, found.steps, label=not explained)
    if explained:
        cosine, weight, scatter = (
            figure.add_subplot(grid[1, place : place + 2]) for place in (0, 2, 4)
        )
        _cosines(cosine, found)
        _weights(weight, found)
        _scatter(scatter, found)
    keyed = next(t for t in (WEIGHT, DIVERGENCE, LOG_RATIO) if found.has(t))
    marks = _line_keys(WholeLines().singles(found, keyed))
    if found.has(LOG_RATIO):
        look = {"marker": "", "linestyle": ":", "color": GREY, "linewidth": 1.2}
        marks.append(legend_key("before routing is divided out", **look))
    under(figure, marks, [verdict(found, found.answers), *_edge_words(figure)])
    headline(figure, f"Divergence from expert 0 · {shortened(found.run)}", divergence_words(found))
    return figure


def _divergence_panel(ax: Axes, found: ExpertRun) -> list[float]:
    chart = _chart(found, "divergence")
    if chart is None:
        nothing(ax, "divergence is not in this run")
        return []
    return _draw_chart(ax, chart)


def _ratio_panel(ax: Axes, found: ExpertRun) -> list[float]:
    """|log ratio| of the tiers' RMS, routed solid, unrouted dotted."""
    chart = _chart(found, "log-ratio")
    if chart is None:
        nothing(ax, "log_ratio and log_ratio_routed\nare not in this run")
        return []
    if not found.has(LOG_RATIO_ROUTED):
        _note(ax, "log_ratio_routed is missing: routing is still in it")
    return _draw_chart(ax, chart)


def _cosines(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Cosine to expert 0's gradient")
    chart = _chart(found, "cosine")
    if chart is None:
        nothing(ax, "cos_to_0 is not in this run")
        return
    drawn = _draw_chart(ax, chart)
    _step_axis(ax, found.steps)
    ax.set_ylim(min([-0.05, *(number - 0.05 for number in drawn)]), 1.08)


def _weights(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Routing weight")
    chart = _chart(found, "routing-weight")
    if chart is None:
        nothing(ax, "routing_weight is not in this run")
        return
    drawn = _draw_chart(ax, chart)
    _step_axis(ax, found.steps)
    _from_zero(ax, drawn, least=1.2 / len(found.experts))


def _scatter(ax: Axes, found: ExpertRun) -> None:
    ax.set_title("Is it routing?")
    points, absent = routing_points(found)
    if not points:
        nothing(ax, "needs norm and routing_weight\nof expert 0 and another")
        return
    lines = WholeLines().singles(found, WEIGHT)
    singly = {line.label: _pen(line.role)[0] for line in lines}
    for expert in dict.fromkeys(expert for expert, _, _ in points):
        x, y = zip(*((weight, norm) for of, weight, norm in points if of == expert), strict=True)
        colour = singly.get(f"expert {expert}", WARM[0][1])
        ax.plot(
            x,
            y,
            linestyle="",
            marker="o",
            markersize=2.8,
            color=colour,
            markeredgewidth=0,
            alpha=0.7,
            zorder=3,
        )
    ends = [number for _, *pair in points for number in pair]
    low, high = min([*ends, 0.8]) / 1.4, max([*ends, 1.25]) * 1.4
    ax.plot([low, high], [low, high], color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ax.set_xlabel("routing weight / expert 0's")
    ax.set_ylabel("gradient norm / expert 0's")
    ax.grid(visible=True)
    ax.set_axisbelow(True)
    _note(
        ax,
        "on the line: routing alone" + (f"\n{absent} not shown: zero or missing" if absent else ""),
    )


def _note(ax: Axes, words: str) -> None:
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    ax.text(
        0.03,
        0.97,
        words,
        transform=ax.transAxes,
        ha="left",
        va="top",
        fontsize=5.8,
        color=INK,
        bbox=box,
        zorder=4,
    )


def draw_expert_runs(runs: Sequence[ExpertRun]) -> Figure:
    """Runs side by side: tiers, RMS per weight, divergence and what routing leaves."""
    rows = _rows(runs)
    figure = sheet(max(WIDTH, 0.7 + 2.3 * len(runs)), 0.8 + 1.65 * len(rows))
    axes = figure.subplots(len(rows), len(runs), sharex=True, sharey="row", squeeze=False)
    steps = np.unique(np.concatenate([found.steps for found in runs]))
    for line, (label, panel, log) in zip(axes, rows, strict=True):
        pairs = zip(line, runs, strict=True)
        drawn = [number for ax, found in pairs for number in panel(ax, found)]
        if log:
            _log_limits(line[0], drawn)
        else:
            _from_zero(line[0], drawn, least=2 * LEFT)
        for ax in line:
            ax.set_ylabel("")
            _step_axis(ax, steps, label=line is axes[-1])
        line[0].set_ylabel(label)
        line[0].tick_params(left=True, labelleft=True)
    for ax, found in zip(axes[0], runs, strict=True):
        ax.set_title(shortened(found.run))
    for ax in axes[-1]:
        ax.tick_params(bottom=True, labelbottom=True)
    # One run may have a line for every expert and another a band: both belong in the legend.
    marks = list({key.get_label(): key for found in runs for key in _tier_keys(found)[0]}.values())
    captions = [BEFORE] if any(found.has(LOG_RATIO) for found in runs) else []
    columns = len(marks) // len(TIERS) or None
    under(figure, marks, [*captions, *_edge_words(figure)], columns=columns)
    headline(figure, f"Experts of {len(runs)} runs", " · ".join(map(_score, runs)))
    return figure


Panel = Callable[["Axes", ExpertRun], "list[float]"]


def _rows(runs: Sequence[ExpertRun]) -> list[tuple[str, Panel, bool]]:
    rows: list[tuple[str, Panel, bool]] = [("gradient norm", _tier_panel, True)]
    if any(found.has(rms_of("middle"), WEIGHT) for found in runs):
        rows.append(("RMS / routing weight", _only_routed, True))
    rows.append(("divergence", _divergence_panel, True))
    if any(found.has(LOG_RATIO_ROUTED) for found in runs):
        rows.append(("|log ratio|, nats", _ratio_panel, False))
    return rows


def _only_routed(ax: Axes, found: ExpertRun) -> list[float]:
    """A bare RMS beside one that is divided would not compare."""
    if not found.has(rms_of("middle"), WEIGHT):
        nothing(ax, "no RMS or no routing weights\nin this run")
        return []
    return _draw_chart(ax, _sound(found))


def _score(found: ExpertRun) -> str:
    known = list(found.field(DIVERGENCE).at_the_end().values())
    score = typeset(float(np.median(known))) if known else "not measured"
    return f"{shortened(found.run)}: divergence {score}"


def draw_routers(found: ExpertRun) -> Figure:
    """The load of every expert, balance with dead share, and the router's gradient."""
    figure = sheet(WIDTH, 4.4)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.15, 1.0))
    load, even, grad = (
        figure.add_subplot(grid[0, :]),
        figure.add_subplot(grid[1, 0]),
        figure.add_subplot(grid[1, 1]),
    )
    words = "all routers together"
    evenness = evenness_chart(WholeLines(), found, EVERY_ROUTER, words)
    gradient = router_gradient_chart(WholeLines(), found, EVERY_ROUTER, words)
    hatches = _load(load, found)
    _evenness(even, evenness)
    _gradients(grad, gradient)
    marks = [
        legend_key(line.label, marker="", linestyle="-", color=_pen(line.role)[0], linewidth=1.6)
        for line in (*evenness.lines, *gradient.lines)
    ]
    marks += [not_measured()] if hatches else []
    band = ["Lines are all routers together, bands run from the lowest router to the highest."]
    under(figure, marks, [*(band if len(found.routers) > 1 else []), *_edge_words(figure)])
    count = len(found.routers)
    few = f"{counted(count, 'router')} · {len(found.experts)} experts"
    headline(figure, f"Routers · {shortened(found.run)}", few if count else words)
    return figure


def _evenness(ax: Axes, chart: Chart) -> None:
    ax.set_title("Balance and dead share")
    if not chart.lines:
        nothing(ax, "balance and dead_share are not in this run")
        return
    _draw_chart(ax, chart)
    ax.set_ylim(-0.04, 1.1)
    _step_axis(ax, np.array(chart.lines[0].points.steps, dtype=np.int64))


def _gradients(ax: Axes, chart: Chart) -> None:
    split = any(line.name in (GRAD_TASK, GRAD_AUX) for line in chart.lines)
    ax.set_title("Router's gradient by term" if split else "Router's gradient")
    if not chart.lines:
        nothing(ax, "grad, grad_task and grad_aux\nare not in this run")
        return
    _log_limits(ax, _draw_chart(ax, chart))
    _step_axis(ax, np.unique([step for line in chart.lines for step in line.points.steps]))
    if not split:
        words = "task and auxiliary parts: only with meter.terms"
        look: dict[str, Any] = {"fontsize": 5.8, "color": "#5A5A5A", "ha": "left", "va": "bottom"}
        ax.text(0.02, 0.03, words, transform=ax.transAxes, **look)


def mean_load(found: ExpertRun) -> tuple[Ints, Floats, Bools]:
    """[experts, steps] of the load: of all routers as recorded, else their mean."""
    field = found.field(LOAD)
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
    if not found.has(LOAD):
        nothing(
            ax,
            f"{LOAD.partition('/')[0]} load is not in this run:\nthe router's output was not"
            " understood",
        )
        return False
    steps, values, there = mean_load(found)
    fair = values * len(found.experts)
    # Below the scale has a colour of its own, and only an expert that got nothing is put there.
    shown = np.where(fair == 0, 1e-6, np.clip(fair, 1 / WIDEST, WIDEST))
    edges = step_edges(steps)
    cut = _cut(steps, edges)
    image = ax.pcolormesh(
        cut[0],
        np.arange(len(found.experts) + 1) - 0.5,
        np.ma.masked_invalid(np.insert(shown, cut[1], np.nan, axis=1)),
        norm=LogNorm(1 / WIDEST, WIDEST),
        cmap=_shades(),
        zorder=1,
        rasterized=True,
    )
    missing = np.insert(~there, cut[1], True, axis=1)
    hatch_cells(ax, missing, edges=cut[0])
    stride = -(-len(found.experts) // 9)
    ax.set_yticks(range(0, len(found.experts), stride), list(found.experts[::stride]))
    ax.set(
        xlim=(cut[0][0], cut[0][-1]),
        ylim=(len(found.experts) - 0.5, -0.5),
        ylabel="expert",
        xlabel="step",
    )
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
        usual = (
            np.diff(steps)[max(place - 2, 0)]
            if place > 1
            else np.diff(steps)[min(place, len(steps) - 2)]
        )
        starts.append(float(steps[place - 1]) + usual / 2)
        ends.append(float(steps[place]) - usual / 2)
    wide[places] = starts
    return np.insert(wide, places + 1, ends), places


def _shades() -> Any:
    from matplotlib import colormaps

    return colormaps["PuOr_r"].with_extremes(under=IDLE)
