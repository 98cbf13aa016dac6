"""Which experts a run has and under which names, and ways to look at a part of it: some series, lately, or divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from gradiometer.dashboard.desk import Open
from gradiometer.dashboard.views.series import natural
from gradiometer.doctor.experts.series import NESTED
from gradiometer.metrics import parse
from gradiometer.plots.expertdata import (
    EVERY_ROUTER,
    IN_A_LAYER,
    LAYER_WEIGHT,
    LOAD,
    NORM,
    OF_ROUTERS,
    OVER_LAYERS,
    RECENT,
    TIERS,
    WEIGHT,
    ExpertRun,
    norm_of,
    read_experts,
    rms_of,
)
from gradiometer.store.dynamics import series_of
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats, Ints

__all__ = ["Divided", "Experts", "experts_in", "layer_norm_of"]

Names = Mapping[str, Mapping[Any, str]]
"""By template, and then by expert, (layer, expert), router or (router, expert): the series in the run's file."""

MEASURED_BY = (*map(norm_of, reversed(TIERS)), NORM, *map(rms_of, TIERS))
"""Any of these is there at every step an expert was looked at."""


def layer_norm_of(tier: str) -> str:
    """The catalogue's name for the norm of a tier in one layer."""
    return f"grad/<layer>/expert/<expert>/{tier}_norm"


LAYERED = (*map(layer_norm_of, TIERS), *IN_A_LAYER)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of one run on the desk; numbers are read when they are asked for."""

    run: Open
    names: Names

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Every expert of which anything was measured."""
        over = {expert for template in OVER_LAYERS for expert in self.names.get(template, ())}
        inside = {expert for template in LAYERED for _, expert in self.names.get(template, ())}
        return in_order(over | inside | {expert for _, expert in self.names.get(LOAD, ())})

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers that are measured one by one."""
        return in_order({layer for template in LAYERED for layer, _ in self.names.get(template, ())})

    @cached_property
    def routers(self) -> tuple[str, ...]:
        """All routers together first, then each, as far as the run has them."""
        found = {router for template in OF_ROUTERS for router in self.names.get(template, ())}
        found |= {router for router, _ in self.names.get(LOAD, ())}
        return tuple(sorted(found, key=lambda router: (router != EVERY_ROUTER, natural(router))))

    @cached_property
    def steps(self) -> Ints:
        """The steps at which the first experts were looked at: with top-k routing a single one is not asked at every step."""
        known = {template: rows for template in (*MEASURED_BY, *LAYERED) if (rows := self.names.get(template))}
        names = list(next(iter(known.values()), {}).values())[:4]
        steps = [self.run.log.series(name)[0] for name in names]
        return np.unique(np.concatenate([np.array([], dtype=np.int64), *steps]))

    def has(self, *templates: str) -> bool:
        """Whether the run has series of each of the templates."""
        return all(template in self.names for template in templates)

    def name(self, template: str, row: Any) -> str | None:
        """The series of an expert, a router or a pair of them; None when there is none."""
        return self.names.get(template, {}).get(row)

    def read(self, *templates: str, step: int | None = None) -> ExpertRun | None:
        """Some quantities of all experts for the figures' own functions: at a step, or at the last ten measured ones."""
        first = step if step is not None else int(self.steps[-RECENT:][0]) if len(self.steps) else None
        return read_experts(Chosen(self.run.log, self.names, templates, first=first, last=step))

    def divided(self, layer: str | None = None) -> Divided:
        """The run with every tier's RMS divided by the routing weight: in a layer, or the mean over layers."""
        return Divided(self.run.log, {name: tuple(pairs) for name, pairs in self._quotients(layer) if pairs})

    def _quotients(self, layer: str | None) -> Iterable[tuple[str, list[tuple[str, str]]]]:
        layers = self.layers if layer is None else (layer,)
        for tier in TIERS:
            inside, over = rms_of(tier, layered=True), rms_of(tier)
            for expert in self.experts:
                pairs = [
                    (self.name(inside, (each, expert)), self.name(LAYER_WEIGHT, (each, expert))) for each in layers
                ]
                name = self.name(over, expert) if layer is None else self.name(inside, (layer, expert))
                known = [(rms, weight) for rms, weight in pairs if rms is not None and weight is not None]
                if not known and layer is None and name is not None and (weight := self.name(WEIGHT, expert)):
                    known = [(name, weight)]
                if name is not None:
                    yield name, known


class Chosen(Log):
    """A few quantities of a run between two steps, under the catalogue's names whatever the log calls them."""

    def __init__(
        self, run: Run | Log, names: Names, templates: Sequence[str], *, first: int | None, last: int | None
    ) -> None:
        super().__init__(run.path, name=run.name, run_id="", rows=())
        self._run, self._first, self._last = run, first, last
        self._called = {_canonical(name): name for template in templates for name in names.get(template, {}).values()}

    def names(self) -> list[str]:
        """Those of the chosen quantities."""
        return sorted(self._called)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """What of it lies between the steps."""
        return self._run.part(self._called[name], self._first, self._last)


class Divided(Log):
    """A run in which the RMS of a tier is divided by the routing weight, so that lines of it are thinned and live like any.

    Division is done in each layer and the quotients averaged: every layer has routing weights of its own, and in what is
    pooled over layers they do not divide out.
    """

    def __init__(self, run: Run | Log, quotients: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        super().__init__(run.path, name=run.name, run_id="", rows=())
        self._run, self._quotients = run, quotients
        self._weights: dict[tuple[str, int | None, int | None], tuple[Ints, Floats]] = {}

    @property
    def first_step(self) -> int | None:
        """As the run's."""
        return self._run.first_step

    def names(self) -> list[str]:
        """As the run's: any of them may be the x axis."""
        return self._run.names()

    def divisible(self) -> frozenset[str]:
        """The series that have something to be divided by."""
        return frozenset(self._quotients)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """All of it."""
        return self.part(name)

    def part(self, name: str, first: int | None = None, last: int | None = None) -> tuple[Ints, Floats]:
        """RMS / routing weight where both are there and the weight is not zero; the mean over the layers that have it."""
        found = [self._quotient(rms, weight, first, last) for rms, weight in self._quotients[name]]
        steps = np.unique(np.concatenate([at for at, _ in found]))
        total, count = np.zeros(len(steps)), np.zeros(len(steps))
        for at, values in found:
            places = np.searchsorted(steps, at)
            total[places] += values
            count[places] += 1
        return steps, total / count

    def latest(self, name: str, steps: Ints) -> Floats:
        """As the run's, for the x axis."""
        return self._run.latest(name, steps)

    def where(self, column: str, steps: Ints) -> Floats:
        """As the run's, for the x axis."""
        return self._run.where(column, steps)

    def _quotient(self, rms: str, weight: str, first: int | None, last: int | None) -> tuple[Ints, Floats]:
        asked = (weight, first, last)
        if asked not in self._weights:  # the tiers of an expert share it
            self._weights[asked] = self._run.part(*asked)
        (at, over), (known, under) = self._run.part(rms, first, last), self._weights[asked]
        steps, mine, theirs = np.intersect1d(at, known, assume_unique=True, return_indices=True)
        kept = under[theirs] != 0
        return steps[kept], over[mine][kept] / under[theirs][kept]


def experts_in(run: Open) -> Experts | None:
    """The experts of a run; None when nothing of one was measured."""
    names = _sorted_out(run.names)
    return Experts(run=run, names=names) if any(template in names for template in (*OVER_LAYERS, *LAYERED)) else None


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Expert 9 before expert 10."""
    return tuple(sorted(names, key=natural))


@lru_cache(maxsize=64)
def _sorted_out(names: frozenset[str]) -> Names:
    """A run can have tens of thousands of series, and they are the same at every tick."""
    found: dict[str, dict[Any, str]] = {}
    for name in names:
        for template, row in _place(_canonical(name)):
            found.setdefault(template, {})[row] = name
    return MappingProxyType({
        template: {row: rows[row] for row in sorted(rows, key=_row_order)} for template, rows in found.items()
    })  # fmt: skip


def _ending(name: str) -> str:
    return name.rpartition("/")[2]


TEMPLATES = (*OVER_LAYERS, *LAYERED, *OF_ROUTERS)
BY_ENDING = {_ending(one): tuple(each for each in TEMPLATES if _ending(each) == _ending(one)) for one in TEMPLATES}


def _place(name: str) -> Iterable[tuple[str, Any]]:
    """The template of a series and what stands in its placeholders: a part, or several."""
    if not name.startswith(("grad/", "router/")):
        return
    for template in (*BY_ENDING.get(_ending(name), ()), LOAD):
        if there := parse(template, name):
            parts = tuple(there.values())
            yield template, parts[0] if len(parts) == 1 else parts


def _canonical(name: str) -> str:
    """Our name for a column of the source's table, also inside the dictionary its helper returns."""
    return series_of(NESTED.sub(r"\1_\2", name)) or name if "expert_" in name else name


def _row_order(row: Any) -> Any:
    return natural(row) if isinstance(row, str) else tuple(map(natural, row))
