"""Layer × expert × tier, and how large the elements of each expert's gradient are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradiometer.dashboard.desk import Open, info_of
from gradiometer.dashboard.points import spoken
from gradiometer.dashboard.shape import Axis, Bars, Chart, Empty, Matrix, Number
from gradiometer.dashboard.views.dynamics_runs import Experts, in_order
from gradiometer.plots.divergence import LEFT
from gradiometer.plots.dynamics import WORDS
from gradiometer.plots.expertdata import HISTOGRAM, LAYER_WEIGHT, RECENT, Bools, Field, Floats, rms_of
from gradiometer.plots.experthistograms import BIN_EDGES, FIRST, INF, LAST, NAN, ZERO
from gradiometer.plots.layermaps import bare_layers
from gradiometer.store.importers import Log

__all__ = ["histogram_chart", "histogram_steps", "histograms_of", "layer_maps"]

WRITTEN = 60
"""Up to so many cells have their number written into them."""
BEYOND = ("zero", "NaN", "Inf")


def layer_maps(found: Experts, tier: str, step: int | None) -> list[Chart]:
    """RMS of a tier, its ratio to expert 0, and the same after routing: at a step, or the median of the last ten."""
    template = rms_of(tier, layered=True)
    read = found.read(template, LAYER_WEIGHT, step=step)
    if read is None or template not in read.layered:
        return []
    rms, weight = read.layered[template], read.layered.get(LAYER_WEIGHT)
    when = f"step {step}" if step is not None else f"median of the last {min(len(read.steps), RECENT)} measured steps"
    words = f"{WORDS[tier]} of the weights"
    charts = [
        _map("layers-rms", f"RMS of the gradient, {words}", rms, found, step, when, (template,)),
        _map("layers-ratio", f"log RMS ratio to expert 0, {words}", _ratio(rms), found, step, when, (template,)),
    ]
    if weight is not None:
        title = f"log RMS ratio to expert 0, routing divided out, {words}"
        charts.append(
            _map("layers-routed", title, _ratio(_over(rms, weight)), found, step, when, (template, LAYER_WEIGHT))
        )
    return charts


def _over(rms: Field, weight: Field) -> Field:
    """Step by step, not of medians: routing divides out at a step."""
    lines = [weight.row(row) for row in rms.rows]
    under = np.array([values for values, _ in lines]).reshape(rms.values.shape)
    there = rms.there & np.array([known for _, known in lines]).reshape(rms.values.shape) & (under != 0)
    return _field(rms, np.divide(rms.values, under, out=np.full(under.shape, np.nan), where=there), there)


def _ratio(field: Field) -> Field:
    """log of each row over expert 0 of its layer, where that is more than zero."""
    first = [field.row((layer, "0")) for layer, _ in field.rows]
    base = np.array([values for values, _ in first]).reshape(field.values.shape)
    there = field.there & np.array([known for _, known in first]).reshape(field.values.shape) & (base != 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _field(field, np.where(there, np.log(field.values) - np.log(base), np.nan), there)


def _field(like: Field, values: Floats, there: Bools) -> Field:
    return Field(rows=like.rows, steps=like.steps, values=values, there=there)


def _map(id: str, title: str, field: Field, found: Experts, step: int | None, when: str, about: Sequence[str]) -> Chart:
    values, known = field.at(step)
    numbers = dict(zip(field.rows, zip(spoken(values), known.tolist(), strict=True), strict=True))
    cells = [[_cell(numbers, layer, expert) for expert in found.experts] for layer in found.layers]
    names, common = bare_layers(found.layers)
    sizes = np.abs(values[known & np.isfinite(values)])
    end = max(float(sizes.max()), LEFT) if len(sizes) else LEFT
    signed = id != "layers-rms"
    matrix = Matrix(
        rows=names, columns=list(found.experts), cells=cells, low=-end if signed else None, high=end if signed else None,
        scale="linear" if signed else "log", colours="diverging" if signed else "sequential",
        written=len(numbers) <= WRITTEN,
    )  # fmt: skip
    return Chart(
        id=id, kind="matrix", title=title, subtitle=f"{when}{', in nats' if signed else ''}",
        x=Axis(title="expert"), y=Axis(title=f"layer {common}" if common else "layer"), matrix=matrix,
        info=info_of(*about),
    )  # fmt: skip


def _cell(numbers: dict[tuple[str, str], tuple[Number, bool]], layer: str, expert: str) -> Number:
    value, known = numbers.get((layer, expert), (None, False))
    return value if known else None


def histograms_of(run: Open) -> dict[str, str]:
    """By expert, the vector that holds its histogram."""
    if isinstance(run.log, Log):
        return {}
    names = {name.removeprefix(HISTOGRAM): name for name in run.log.vector_names() if name.startswith(HISTOGRAM)}
    return {expert: names[expert] for expert in in_order(names) if "/" not in expert}


def histogram_steps(run: Open, names: dict[str, str]) -> list[int]:
    """The steps of which histograms are kept: the same for all experts but those that had no gradient."""
    steps = {step for name in list(names.values())[:4] for step in run.log.vector_steps(name).tolist()}
    return sorted(steps)


def histogram_chart(
    found: Experts, names: dict[str, str], step: int | None, shown: Sequence[str], *, many: bool
) -> Chart:
    """Counts by size of the element: bars of the chosen few, or a row for every expert."""
    title = "Sizes of the gradient's elements"
    if step is None:
        return Chart(id="histograms", kind="bars", title=title, empty=_none_kept(found.run))
    log = found.run.log
    there = [
        expert for expert in (names if many else shown) if expert in names and step in log.vector_steps(names[expert])
    ]
    counts = {expert: log.vector(names[expert], step).values.astype(np.int64) for expert in there}
    places = _filled(list(counts.values()))
    bins = [_bin(place) for place in places]
    title, subtitle = f"{title} at step {step}", "Elements of each expert's gradient by |g|, in half decades."
    if many:
        cells = [[int(counts[expert][place]) for place in places] for expert in there]
        matrix = Matrix(rows=there, columns=bins, cells=cells, scale="log")
        return Chart(
            id="histograms", kind="matrix", title=title, subtitle=subtitle, wide=True,
            x=Axis(title="log10 |g|"), y=Axis(title="expert"), matrix=matrix,
        )  # fmt: skip
    bars = [
        Bars(
            label=f"expert {expert}", role=f"expert:{expert}:bottom", categories=bins,
            values=[int(counts[expert][place]) for place in places],
            notes=[f"{counts[expert][place] / max(int(counts[expert].sum()), 1):.3%}" for place in places],
        )
        for expert in there
    ]  # fmt: skip
    return Chart(
        id="histograms", kind="bars", title=title, subtitle=subtitle, wide=True,
        x=Axis(title="log10 |g|"), y=Axis(title="elements", low=0.0), bars=bars,
    )  # fmt: skip


def _filled(counts: Sequence[np.ndarray]) -> list[int]:
    """From the first bin in which anything lies to the last, with zero, NaN and Inf at the ends where there are any."""
    total = np.sum(counts, axis=0) if counts else np.zeros(INF + 1, dtype=np.int64)
    filled = (FIRST + np.flatnonzero(total[FIRST : LAST + 1])).tolist()
    inside = list(range(filled[0], filled[-1] + 1)) if filled else []
    return [*(place for place in (ZERO,) if total[place]), *inside, *(place for place in (NAN, INF) if total[place])]


def _bin(place: int) -> str:
    if place in (ZERO, NAN, INF):
        return BEYOND[(ZERO, NAN, INF).index(place)]
    low, high = BIN_EDGES[place - FIRST], BIN_EDGES[place - FIRST + 1]
    return f"below {high:g}" if place == FIRST else f"above {low:g}" if place == LAST else f"{low:g} to {high:g}"


def _none_kept(run: Open) -> Empty:
    if isinstance(run.log, Log):
        return Empty(
            title="No histograms", cause="A log of numbers has none.", fix="Measure with gm.watch in tier deep."
        )
    return Empty(
        title="No histograms of experts", cause="They are kept in tier deep, and this run was measured in another.",
        fix="Measure with tier=\"deep\"; keep= says how many steps of histograms stay on disk.",
        code='gm.watch(model, optimizer, run="runs/moe", tier="deep")',
    )  # fmt: skip
