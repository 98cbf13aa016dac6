"""The tier chart of source 002, and under it the same question asked soundly: RMS per tier, routing divided out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.curves import SHADES, SINGLY, draw_trace, edge_words, log_limits, step_axis, trace_keys, traces
from gradiometer.plots.expertdata import (
    DIVERGENCE,
    RECENT,
    TIERS,
    WEIGHT,
    Bools,
    ExpertRun,
    Field,
    Floats,
    norm_of,
    rms_of,
)
from gradiometer.plots.figures import WIDTH
from gradiometer.plots.frame import headline, shortened, under
from gradiometer.plots.panels import nothing
from gradiometer.plots.rows import spoken
from gradiometer.plots.style import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CONVERGED",
    "MEANINGFUL",
    "at_the_end",
    "divergence_words",
    "draw_dynamics",
    "routed_rms",
    "sound_panel",
    "sound_words",
    "tier_keys",
    "tier_panel",
]

MEANINGFUL, CONVERGED = 0.05, 0.01
"""The readings of source 002 for its divergence."""
WORDS = {"top": "top 5 %", "bottom": "bottom 5 %", "middle": "middle 90 %"}
NAMED = 3
"""So many experts have their divergence in the header one by one."""


def draw_dynamics(found: ExpertRun) -> Figure:
    """Norms of the tiers over time above, RMS per routing weight below."""
    sound = any(found.has(rms_of(tier)) for tier in TIERS)
    figure = sheet(WIDTH, 5.6 if sound else 3.8)
    upper, lower = figure.subplots(2, 1, sharex=sound, height_ratios=(1, 1) if sound else (6, 1))
    log_limits(upper, tier_panel(upper, found))
    upper.set_title("Gradient norm by weight magnitude (source 002)")
    upper.set_ylabel("gradient norm")
    title, label = sound_words(found)
    drawn = sound_panel(lower, found)
    step_axis(upper, found.steps, label=drawn is None)
    if drawn is not None:
        log_limits(lower, drawn)
        lower.set_ylabel(label)
        step_axis(lower, found.steps)
    lower.set_title(title)
    marks, columns = tier_keys(found)
    under(figure, marks, [*_extremes(found), *edge_words(figure)], columns=columns)
    headline(figure, f"Expert dynamics · {shortened(found.run)}", divergence_words(found))
    return figure


def tier_panel(ax: Axes, found: ExpertRun) -> list[float]:
    """The source's chart; gives the numbers on the axis."""
    if not found.has(*map(norm_of, TIERS[:1])):
        nothing(ax, "tier norms are not in this run")
        return []
    return [number for tier in TIERS for number in _tier(ax, found.field(norm_of(tier)), tier)]


def sound_panel(ax: Axes, found: ExpertRun) -> list[float] | None:
    """RMS per tier over the routing weight, or without one the bare RMS; None when there is neither."""
    if not any(found.has(rms_of(tier)) for tier in TIERS):
        nothing(ax, "top_rms, bottom_rms, middle_rms and routing_weight are not in this run")
        return None
    drawn: list[float] = []
    for tier in TIERS:
        field = found.field(rms_of(tier))
        values, there = routed_rms(found, tier) if found.has(WEIGHT) else (field.values, field.there)
        drawn += _tier(ax, field, tier, values=values, there=there)
    return drawn


def sound_words(found: ExpertRun) -> tuple[str, str]:
    """Title and axis of the sound panel, as far as the run allows."""
    if not any(found.has(rms_of(tier)) for tier in TIERS):
        return "RMS per routing weight", ""
    if not found.has(WEIGHT):
        return "RMS of the gradient (not divided: routing_weight is missing)", "RMS"
    return "RMS per routing weight: what is left once routing is divided out", "RMS / routing weight"


def routed_rms(found: ExpertRun, tier: str) -> tuple[Floats, Bools]:
    """[experts, steps] of RMS / routing weight; nothing where either is missing or the weight is zero."""
    rms, weight = found.field(rms_of(tier)), found.field(WEIGHT)
    over = [weight.row(expert) for expert in rms.rows]
    weights = np.array([values for values, _ in over]).reshape(rms.values.shape)
    known = np.array([there for _, there in over]).reshape(rms.values.shape)
    there = rms.there & known & (weights != 0)
    quotient = np.full(rms.values.shape, np.nan)
    np.divide(rms.values, weights, out=quotient, where=there)
    return quotient, there


def _tier(ax: Axes, field: Field, tier: str, **instead: Any) -> Iterator[float]:
    for line in traces(field, **instead):
        yield from draw_trace(ax, field.steps, line, shade=SHADES[tier], log=True)


def tier_keys(found: ExpertRun) -> tuple[list[Any], int]:
    """The legend, a column for each line of experts and a row for each tier; and how many columns."""
    field = found.field(norm_of("middle")) if found.has(norm_of("middle")) else found.field(rms_of("middle"))
    lines = traces(field)
    keys = [
        key
        for line in lines
        for tier in TIERS
        for key in trace_keys([line], shade=SHADES[tier], ending=f", {WORDS[tier]}")
    ]
    return keys, max(len(lines), 1)


def divergence_words(found: ExpertRun) -> str:
    """The source's score at the end of the run, with its readings."""
    known = at_the_end(found.field(DIVERGENCE))
    if not known:
        return "divergence: not measured"
    if len(known) <= NAMED:
        score = ", ".join(f"expert {expert}: {spoken(value)}" for expert, value in known.items())
    else:
        least, most = (pick(known, key=lambda expert: known[expert]) for pick in (min, max))
        ends = f"{spoken(known[least])} (expert {least}) to {spoken(known[most])} (expert {most})"
        score = f"{spoken(float(np.median(list(known.values()))))} over {len(known)} experts, from {ends}"
    over = f"median of the last {min(len(found.steps), RECENT)} measured steps"
    return f"divergence {score} · {over} · source: > {MEANINGFUL} meaningful, < {CONVERGED} converged"


def at_the_end(field: Field) -> dict[Any, float]:
    """The median of the last measured steps, of every row that has a finite one."""
    values, _ = field.at(None)
    return {row: float(value) for row, value in zip(field.rows, values, strict=True) if np.isfinite(value)}


def _extremes(found: ExpertRun) -> list[str]:
    """A band names nobody: who is at its ends."""
    template = norm_of("middle")
    known = {expert: value for expert, value in at_the_end(found.field(template)).items() if expert != "0"}
    if len(known) <= SINGLY:
        return []
    least, most = (pick(known, key=lambda expert: known[expert]) for pick in (min, max))
    ends = f"expert {least} is the lowest ({spoken(known[least])}), expert {most} the highest ({spoken(known[most])})"
    return [f"At the end, in the norm of the middle tier: {ends}."]
