"""The experts of a run as the figures see them: arrays of expert × step, with what is missing told from what is NaN."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradiometer.metrics import CATALOGUE, key, parse
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

__all__ = ["RECENT", "TIERS", "ExpertRun", "Field", "Histogram", "norm_of", "read_experts", "rms_of", "series_name"]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

TIERS = ("top", "bottom", "middle")
RECENT = 10
"""Measured steps that a number "at the end" is the median of."""

NORM = "grad/expert/<expert>/norm"
DIVERGENCE = "grad/expert/<expert>/divergence"
LOG_RATIO = "grad/expert/<expert>/log_ratio"
LOG_RATIO_ROUTED = "grad/expert/<expert>/log_ratio_routed"
COSINE = "grad/expert/<expert>/cos_to_0"
WEIGHT = "grad/expert/<expert>/routing_weight"
LAYER_NORM = "grad/<layer>/expert/<expert>/norm"
LAYER_WEIGHT = "grad/<layer>/expert/<expert>/routing_weight"
LOAD = "router/<router>/load/<expert>"
BALANCE = "router/<router>/balance"
DEAD = "router/<router>/dead_share"
ROUTER_GRAD = "router/<router>/grad"
GRAD_TASK = "router/<router>/grad_task"
GRAD_AUX = "router/<router>/grad_aux"

EVERY_ROUTER = "all"
MISSING_EVENT = "experts-missing"
HISTOGRAM = "histogram/expert/"


def norm_of(tier: str) -> str:
    """The catalogue's name for the norm of a tier, over all layers."""
    return f"grad/expert/<expert>/{tier}_norm"


def rms_of(tier: str, *, layered: bool = False) -> str:
    """The catalogue's name for the RMS of a tier, over all layers or in one."""
    return f"grad/{'<layer>/' if layered else ''}expert/<expert>/{tier}_rms"


OVER_LAYERS = (
    *map(norm_of, TIERS), NORM, *map(rms_of, TIERS), DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED, COSINE, WEIGHT,
)  # fmt: skip
IN_A_LAYER = (*(rms_of(tier, layered=True) for tier in TIERS), LAYER_NORM, LAYER_WEIGHT)
OF_ROUTERS = (BALANCE, DEAD, ROUTER_GRAD, GRAD_TASK, GRAD_AUX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One quantity of every row (expert, router, or expert of a layer) at every step it was measured at."""

    rows: tuple[Any, ...]
    steps: Ints
    values: Floats
    """[rows, steps]; NaN where nothing was recorded, and where a NaN was."""
    there: Bools
    """[rows, steps]: something was recorded."""

    def row(self, name: Any) -> tuple[Floats, Bools]:
        """The values of a row and where it has any; nothing anywhere when there is no such row."""
        if name not in self.rows:
            return np.full(len(self.steps), np.nan), np.zeros(len(self.steps), dtype=np.bool_)
        place = self.rows.index(name)
        return self.values[place], self.there[place]

    def at(self, step: int | None) -> tuple[Floats, Bools]:
        """Every row's value at a step, or without one the median of its last ten measured steps; and whether it has one.

        A median is of what was recorded there; a NaN among it makes it NaN.
        """
        chosen = slice(-RECENT, None) if step is None else self.steps == step
        values, there = self.values[:, chosen], self.there[:, chosen]
        found: Bools = np.asarray(there.any(axis=1))
        middle = [float(np.median(line[known])) for line, known in zip(values[found], there[found], strict=True)]
        result = np.full(len(self.rows), np.nan)
        result[found] = middle
        return result, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many elements of an expert's gradient have which size: zero, 34 bins of |g|, NaN, Inf."""

    expert: str
    step: int
    counts: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRun:
    """Everything the figures of experts draw."""

    run: str
    experts: tuple[str, ...]
    steps: Ints
    """At which anything of an expert was measured, or should have been."""
    fields: Mapping[str, Field]
    """By template: over all layers, rows are experts."""
    layered: Mapping[str, Field]
    """By template: in a layer, rows are (layer, expert)."""
    load: Field
    """Rows are (router, expert)."""
    routed: Mapping[str, Field]
    """By template, rows are routers."""
    histograms: tuple[Histogram, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that have experts, in the order of their numbers."""
        return _sorted({layer for field in self.layered.values() for layer, _ in field.rows})

    @property
    def routers(self) -> tuple[str, ...]:
        """The routers but `all`."""
        found = {router for router, _ in self.load.rows} | {r for field in self.routed.values() for r in field.rows}
        return _sorted(found - {EVERY_ROUTER})

    @property
    def histogram_steps(self) -> tuple[int, ...]:
        """The steps of which histograms are kept."""
        return tuple(sorted({histogram.step for histogram in self.histograms}))

    def has(self, *templates: str) -> bool:
        """Whether anything was recorded of each of the templates."""
        return all(name in self.fields or name in self.layered or name in self.routed for name in templates)

    def field(self, template: str) -> Field:
        """A quantity over all layers; with no rows when it was not measured."""
        return self.fields.get(template) or _nothing(self.steps)


def read_experts(run: Run | Log) -> ExpertRun | None:
    """What a run holds about experts; None when that is nothing."""
    names = run.names()
    over = {template: _matching(template, names, ("expert",)) for template in OVER_LAYERS}
    inside = {template: _matching(template, names, ("layer", "expert")) for template in IN_A_LAYER}
    if not any(over.values()) and not any(inside.values()):
        return None
    series = {name: run.series(name) for found in (*over.values(), *inside.values()) for name in found.values()}
    steps = np.unique(np.concatenate([_missed(run), *(found for found, _ in series.values())]))
    fields = {template: _field(found, series, steps) for template, found in over.items() if found}
    layered = {template: _field(found, series, steps) for template, found in inside.items() if found}
    loads = _matching(LOAD, names, ("router", "expert"))
    rows = {row for field in fields.values() for row in field.rows}
    rows |= {expert for field in layered.values() for _, expert in field.rows} | {expert for _, expert in loads}
    return ExpertRun(
        run=run.name,
        experts=_sorted(rows),
        steps=steps,
        fields=fields,
        layered=layered,
        load=_own_steps(run, loads),
        routed={
            template: _own_steps(run, found)
            for template in OF_ROUTERS
            if (found := _matching(template, names, ("router",)))
        },
        histograms=tuple(_histograms(run)),
    )


def _matching(template: str, names: Iterable[str], parts: tuple[str, ...]) -> dict[Any, str]:
    """The series of a template by what stands in its placeholders: the part itself when there is one, else a tuple."""
    assert template in CATALOGUE, template
    ending = "/" + template.rpartition("/")[2]  # a quick look: runs have tens of thousands of series
    wanted = (name for name in names if ending.endswith(">") or name.endswith(ending))
    found = {tuple(there[part] for part in parts): name for name in wanted if (there := parse(template, name))}
    ordered = sorted(found, key=lambda row: [_natural(part) for part in row])
    return {row[0] if len(parts) == 1 else row: found[row] for row in ordered}


def _field(names: Mapping[Any, str], series: Mapping[str, tuple[Ints, Floats]], steps: Ints) -> Field:
    values = np.full((len(names), len(steps)), np.nan)
    there = np.zeros(values.shape, dtype=np.bool_)
    for row, name in enumerate(names.values()):
        places = np.searchsorted(steps, series[name][0])
        values[row, places] = series[name][1]
        there[row, places] = True
    return Field(rows=tuple(names), steps=steps, values=values, there=there)


def _own_steps(run: Run | Log, names: Mapping[Any, str]) -> Field:
    """A field whose steps are its own: a split by terms is measured more rarely than a load."""
    series = {name: run.series(name) for name in names.values()}
    steps = np.unique(np.concatenate([np.array([], dtype=np.int64), *(found for found, _ in series.values())]))
    return _field(names, series, steps)


def _nothing(steps: Ints) -> Field:
    empty = np.zeros((0, len(steps)))
    return Field(rows=(), steps=steps, values=empty, there=empty.astype(np.bool_))


def _missed(run: Run | Log) -> Ints:
    """Steps at which experts should have been measured and none had a gradient."""
    events = run.events(MISSING_EVENT) if isinstance(run, Run) else []
    return np.array([event.step for event in events], dtype=np.int64)


def _histograms(run: Run | Log) -> Iterable[Histogram]:
    if isinstance(run, Log):
        return
    names = [name for name in run.vector_names() if re.fullmatch(re.escape(HISTOGRAM) + r"[^/]+", name)]
    for name in sorted(names, key=_natural):
        for step in run.vector_steps(name).tolist():
            counts = run.vector(name, step).values.astype(np.int64)
            yield Histogram(expert=name.removeprefix(HISTOGRAM), step=step, counts=counts)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=_natural))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Layer 9 before layer 10."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def series_name(template: str, row: Any) -> str:
    """The series behind a row of a field."""
    parts = re.findall(r"<([a-z_]+)>", template)
    return key(template, **dict(zip(parts, (row,) if isinstance(row, str) else row, strict=True)))
