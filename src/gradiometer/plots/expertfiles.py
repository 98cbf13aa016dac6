"""The files of a run's experts: the figures it has something for, the numbers behind them, and why a figure is not there."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.plots.divergence import draw_divergence, verdict
from gradiometer.plots.dynamics import draw_dynamics
from gradiometer.plots.expertdata import (
    DIVERGENCE,
    LOAD,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    NORM,
    RECENT,
    TIERS,
    ExpertRun,
    Field,
    norm_of,
    rms_of,
    series_name,
)
from gradiometer.plots.experthistograms import BIN_EDGES, FIRST, LAST, chosen_steps, draw_histograms
from gradiometer.plots.expertruns import draw_expert_runs
from gradiometer.plots.export import write_whole
from gradiometer.plots.layermaps import draw_layers, layer_cells
from gradiometer.plots.routers import draw_routers
from gradiometer.plots.style import render, styled
from gradiometer.store.strictjson import to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SERIES_NAME", "SUMMARY_NAME", "left_out", "write_expert_runs", "write_experts"]

SERIES_NAME, SUMMARY_NAME = "expert_series.csv", "expert_summary.json"
LAYERS_STEM, HISTOGRAMS_STEM, COMPARISON_STEM = "expert_layers", "expert_histograms", "expert_comparison"
FIGURES: dict[str, Callable[[ExpertRun], Figure]] = {
    "expert_dynamics": draw_dynamics,
    "expert_divergence": draw_divergence,
    "expert_routers": draw_routers,
}


def write_experts(found: ExpertRun, folder: Path, *, kind: str = "png", steps: Sequence[int] = ()) -> list[Path]:
    """Every figure the run has something for, or with `steps` the heat map and histograms of those; with their numbers.

    Each file appears whole or not at all.
    """
    files = _of_steps(found, kind, steps) if steps else _of_run(found, kind)
    return [write_whole(folder / name, content) for name, content in files]


def write_expert_runs(runs: Sequence[ExpertRun], folder: Path, *, kind: str = "png") -> list[Path]:
    """One figure of all runs, and the numbers of each."""
    named = distinct(runs)
    drawn = [*map(norm_of, TIERS), *map(rms_of, TIERS), DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED]
    lines = [(found.run, *line) for found in named for line in _long(found, drawn)]
    files = [
        (f"{COMPARISON_STEM}.{kind}", _drawn(lambda: draw_expert_runs(named), kind)),
        (f"{COMPARISON_STEM}.csv", _csv(("run", "step", "series", "value"), lines)),
    ]
    return [write_whole(folder / name, content) for name, content in files]


def distinct(runs: Sequence[ExpertRun]) -> list[ExpertRun]:
    """The runs under names that differ: a second `exp` is `exp (2)`."""
    seen: dict[str, int] = {}
    named = []
    for found in runs:
        seen[found.run] = seen.get(found.run, 0) + 1
        again = seen[found.run]
        named.append(found if again == 1 else replace(found, run=f"{found.run} ({again})"))
    return named


def left_out(found: ExpertRun, *, steps: Sequence[int] = ()) -> dict[str, str]:
    """The figures that cannot be drawn, each with what is missing."""
    reasons = {}
    if not steps and not any(found.has(name) for name in (norm_of("top"), rms_of("top"), NORM)):
        reasons["expert_dynamics"] = "no norms over all layers"
    if not steps and not found.has(DIVERGENCE) and not found.has(LOG_RATIO):
        reasons["expert_divergence"] = "no expert to compare with expert 0"
    if not found.layers:
        reasons[LAYERS_STEM] = "nothing was measured per layer"
    if not steps and not found.load.rows and not found.routed:
        reasons["expert_routers"] = "nothing of a router was measured"
    if not found.histogram_steps:
        reasons[HISTOGRAMS_STEM] = "no histograms: they are kept with tier='deep'"
    for step in steps:
        if found.histogram_steps and step not in found.histogram_steps:
            near = sorted(found.histogram_steps, key=lambda kept: abs(kept - step))[:3]
            kept = ", ".join(map(str, near))
            reasons[f"{HISTOGRAMS_STEM}_step_{step}"] = f"no histograms of step {step}; nearest that are kept: {kept}"
    return reasons


def _of_run(found: ExpertRun, kind: str) -> Iterator[tuple[str, bytes]]:
    missing = left_out(found)
    for name, draw in FIGURES.items():
        if name not in missing:
            yield f"{name}.{kind}", _drawn(lambda draw=draw: draw(found), kind)  # type: ignore[misc]
    yield from _of_a_step(found, kind, None, missing)
    yield SERIES_NAME, _wide(found)
    yield SUMMARY_NAME, (to_json(_summary(found, missing), indent=2) + "\n").encode()


def _of_steps(found: ExpertRun, kind: str, steps: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    missing = left_out(found, steps=steps)
    for step in steps:
        yield from _of_a_step(found, kind, step, missing)


def _of_a_step(found: ExpertRun, kind: str, step: int | None, missing: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Heat map and histograms with their tables; without a step those at the end and over time."""
    ending = "" if step is None else f"_step_{step}"
    if LAYERS_STEM not in missing:
        yield f"{LAYERS_STEM}{ending}.{kind}", _drawn(lambda: draw_layers(found, step), kind)
        yield f"{LAYERS_STEM}{ending}.csv", _csv(("tier", "layer", "expert", "rms"), _cells(found, step))
    if HISTOGRAMS_STEM not in missing and f"{HISTOGRAMS_STEM}{ending}" not in missing:
        yield f"{HISTOGRAMS_STEM}{ending}.{kind}", _drawn(lambda: draw_histograms(found, step), kind)
        steps = chosen_steps(found.histogram_steps) if step is None else (step,)
        yield f"{HISTOGRAMS_STEM}{ending}.csv", _csv(("step", "expert", "bin", "count"), _bins(found, steps))


def _drawn(draw: Callable[[], Figure], kind: str) -> bytes:
    with styled():
        return render(draw(), kind)


def _csv(columns: Sequence[str], lines: Any) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue().encode()


def _number(value: float, there: bool) -> str:
    """Nothing where nothing was recorded, NaN where a NaN was."""
    return ("NaN" if math.isnan(value) else repr(float(value))) if there else ""


def _quantities(found: ExpertRun) -> dict[str, Field]:
    loads = {LOAD: found.load} if found.load.rows else {}
    return {**found.fields, **loads, **found.routed}


def _wide(found: ExpertRun) -> bytes:
    """A row for each step, a column for each series over all layers and of each router."""
    fields = _quantities(found)
    steps = np.unique(np.concatenate([field.steps for field in fields.values()] or [found.steps]))
    columns: dict[str, list[str]] = {}
    for template, field in fields.items():
        places = np.searchsorted(steps, field.steps)
        for row, values, there in zip(field.rows, field.values, field.there, strict=True):
            column = [""] * len(steps)
            for place, value, known in zip(places, values, there, strict=True):
                column[place] = _number(value, known)
            columns[series_name(template, row)] = column
    return _csv(("step", *columns), zip(steps.tolist(), *columns.values(), strict=True))


def _long(found: ExpertRun, templates: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for template in templates:
        field = found.field(template)
        for row, values, there in zip(field.rows, field.values, field.there, strict=True):
            name = series_name(template, row)
            for step, value, known in zip(field.steps.tolist(), values, there, strict=True):
                if known:
                    yield step, name, _number(value, known)


def _cells(found: ExpertRun, step: int | None) -> Iterator[tuple[str, str, str, str]]:
    for tier in TIERS:
        values, there = layer_cells(found, tier, step)
        for down, layer in enumerate(found.layers):
            for along, expert in enumerate(found.experts):
                yield tier, layer, expert, _number(values[down, along], there[down, along])


def _bins(found: ExpertRun, steps: Sequence[int]) -> Iterator[tuple[int, str, str, int]]:
    edges = [f"10^{edge:g}" for edge in BIN_EDGES[1:-1]]
    middle = [f"[{low}, {high})" for low, high in itertools.pairwise(edges)]
    bins = ["zero", f"(0, {edges[0]})", *middle, f"[{edges[-1]}, inf)", "NaN", "Inf"]
    assert len(bins) == LAST - FIRST + 4
    for histogram in found.histograms:
        if histogram.step in steps:
            for name, count in zip(bins, histogram.counts.tolist(), strict=True):
                yield histogram.step, histogram.expert, name, count


def _summary(found: ExpertRun, missing: dict[str, str]) -> dict[str, Any]:
    """What the figures say in words and single numbers."""
    steps = found.steps.tolist()
    recent = {}
    for template, field in _quantities(found).items():
        for row, value, there in zip(field.rows, *field.at(None), strict=True):
            if there:
                recent[series_name(template, row)] = float(value)
    return {
        "run": found.run,
        "experts": list(found.experts),
        "layers": list(found.layers),
        "routers": list(found.routers),
        "measured_steps": {"count": len(steps), "first": steps[0], "last": steps[-1]},
        "histogram_steps": list(found.histogram_steps),
        "median_of_the_last": min(len(steps), RECENT),
        "at_the_end": recent,
        "routing": verdict(found),
        "left_out": missing,
    }
