"""The series of experts in a run or a log: which there are, arrays of them, and how they compare
with expert 0.

Each comparison is made in one layer and then averaged over layers. That matters: a merged layer
multiplies one common gradient by its own routing weights, so within a layer routing divides out
exactly, while the joined vectors of two layers that route differently are not collinear although
nothing but routing sets them apart.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from gradiometer.doctor.experts.answers import Answers, Routing, SeriesSource
from gradiometer.errors import UsageError
from gradiometer.maths.trends import Array
from gradiometer.metrics import key, parse
from gradiometer.store.dynamics import series_of
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats, Ints
from gradiometer.words import natural

__all__ = [
    "RECENT",
    "REFERENCE",
    "TIERS",
    "ExpertRun",
    "ExpertSeries",
    "Field",
    "Histogram",
    "TimeSeries",
    "in_order",
    "layer_norm_of",
    "mean_over_layers",
    "norm_of",
    "quotient",
    "rms_of",
    "series_name",
]

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Names = Mapping[str, Mapping[Any, str]]
"""By template, and then by expert, (layer, expert), router or (router, expert): the series in the
run's file."""

REFERENCE = "0"
TIERS = ("top", "bottom", "middle")
RECENT = 10
"""Measured steps that a number "at the end" is the median of."""

POOLED, LAYERED = "grad/expert/<expert>/", "grad/<layer>/expert/<expert>/"
NORM = POOLED + "norm"
DIVERGENCE = POOLED + "divergence"
LOG_RATIO = POOLED + "log_ratio"
LOG_RATIO_ROUTED = POOLED + "log_ratio_routed"
COSINE = POOLED + "cos_to_0"
WEIGHT = POOLED + "routing_weight"
LAYER_NORM = LAYERED + "norm"
LAYER_WEIGHT = LAYERED + "routing_weight"
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
    return f"{POOLED}{tier}_norm"


def layer_norm_of(tier: str) -> str:
    """The catalogue's name for the norm of a tier in one layer."""
    return f"{LAYERED}{tier}_norm"


def rms_of(tier: str, *, layered: bool = False) -> str:
    """The catalogue's name for the RMS of a tier, over all layers or in one."""
    return f"{LAYERED if layered else POOLED}{tier}_rms"


OVER_LAYERS = (
    *map(norm_of, TIERS),
    NORM,
    *map(rms_of, TIERS),
    DIVERGENCE,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    COSINE,
    WEIGHT,
)
IN_A_LAYER = (*(rms_of(tier, layered=True) for tier in TIERS), LAYER_NORM, LAYER_WEIGHT)
LAYER_NORMS = tuple(map(layer_norm_of, TIERS))
OF_ROUTERS = (BALANCE, DEAD, ROUTER_GRAD, GRAD_TASK, GRAD_AUX)
AT_EVERY_LOOK = (*map(norm_of, reversed(TIERS)), NORM, *map(rms_of, TIERS))
"""Any of these is there at every step an expert was looked at."""
JUDGED = (
    "top_norm",
    "bottom_norm",
    "middle_norm",
    "norm",
    "bottom_rms",
    "middle_rms",
    "divergence",
    "log_ratio_routed",
    "cos_to_0",
    "cos_mean",
    "routing_weight",
    "norm_per_weight",
    "norm_per_token",
    "weight_distance",
)
"""The quantities that are compared with expert 0's."""
TEMPLATES = dict.fromkeys(
    [
        *OVER_LAYERS,
        *LAYER_NORMS,
        *IN_A_LAYER,
        *OF_ROUTERS,
        *(place + quantity for place in (POOLED, LAYERED) for quantity in JUDGED),
    ]
)
BY_ENDING: dict[str, list[str]] = {}
for _template in TEMPLATES:
    BY_ENDING.setdefault(_template.rpartition("/")[2], []).append(_template)
# The dictionary that the Prismatic router's helper returns, when somebody logs it as it is.
NESTED = re.compile(r"(?:expert_gradients|divergence_scores)/(expert_[0-9]+)[_/]([a-z_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A quantity of every row (expert, router, or expert of a layer) at every measured step."""

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

    def like(self, rows: Iterable[Any]) -> tuple[Floats, Bools]:
        """Several rows, one below the other, as arrays [rows, steps]."""
        found = [self.row(name) for name in rows]
        shape = (len(found), len(self.steps))
        return (
            np.array([values for values, _ in found]).reshape(shape),
            np.array([there for _, there in found], dtype=np.bool_).reshape(shape),
        )

    def at(self, step: int | None) -> tuple[Floats, Bools]:
        """Every row's value at a step, or without one the median of its last ten measured steps;
        and whether it has one.

        A median is of what was recorded there; a NaN among it makes it NaN.
        """
        chosen = slice(-RECENT, None) if step is None else self.steps == step
        values, there = self.values[:, chosen], self.there[:, chosen]
        found: Bools = np.asarray(there.any(axis=1))
        middle = [
            float(np.median(line[known]))
            for line, known in zip(values[found], there[found], strict=True)
        ]
        result = np.full(len(self.rows), np.nan)
        result[found] = middle
        return result, found

    def over(self, other: Field) -> Field:
        """Each row divided by its own of another field, where both are and that is not zero."""
        under, known = other.like(self.rows)
        there = self.there & known & (under != 0)
        quotient = np.full(self.values.shape, np.nan)
        np.divide(self.values, under, out=quotient, where=there)
        return Field(rows=self.rows, steps=self.steps, values=quotient, there=there)

    def at_the_end(self) -> dict[Any, float]:
        """The median of the last measured steps, of every row that has a finite one."""
        values, _ = self.at(None)
        pairs = zip(self.rows, values.tolist(), strict=True)
        return {row: value for row, value in pairs if np.isfinite(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many elements of an expert's gradient have which size: zero, 34 bins of |g|, NaN, Inf."""

    expert: str
    step: int
    counts: Ints


class ExpertRun:
    """The experts of a run: what was measured of them, read when it is asked for and then kept.

    `first` and `last` limit what is read; steps at which no expert had a gradient are then not
    looked for.
    """

    def __init__(
        self, log: SeriesSource, names: Names, *, first: int | None = None, last: int | None = None
    ) -> None:
        self.log, self.names = log, names
        self.answers: Answers | None = None
        """To the three questions, where they were asked (judge.read_experts)."""
        self.run = str(getattr(log, "name", ""))
        """What to call it."""
        self._first, self._last = first, last
        self._fields: dict[str, Field] = {}

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Every expert of which anything was measured, also by a router alone."""
        over = {expert for template in OVER_LAYERS for expert in self.names.get(template, ())}
        inside = {expert for _, expert in self._in_layers()}
        return in_order(over | inside | {expert for _, expert in self.names.get(LOAD, ())})

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers that are measured one by one."""
        return in_order({layer for layer, _ in self._in_layers()})

    def _in_layers(self) -> Iterator[tuple[str, str]]:
        for template in (*LAYER_NORMS, *IN_A_LAYER):
            yield from self.names.get(template, ())

    @cached_property
    def routers(self) -> tuple[str, ...]:
        """The routers but `all`."""
        found = {router for template in OF_ROUTERS for router in self.names.get(template, ())}
        found |= {router for router, _ in self.names.get(LOAD, ())}
        return in_order(found - {EVERY_ROUTER})

    @cached_property
    def steps(self) -> Ints:
        """At which anything of an expert was measured, or should have been."""
        names = [
            name for t in (*OVER_LAYERS, *IN_A_LAYER) for name in self.names.get(t, {}).values()
        ]
        return np.unique(np.concatenate([self._missed(), *(self.series(n)[0] for n in names)]))

    @cached_property
    def looked_at(self) -> Ints:
        """The steps of the first experts alone: quick to read, also of a run with many."""
        templates = (*AT_EVERY_LOOK, *LAYER_NORMS, *IN_A_LAYER)
        first = next((rows for t in templates if (rows := self.names.get(t))), {})
        # With top-k routing a single expert is not asked at every step.
        steps = [self.series(name)[0] for name in list(first.values())[:4]]
        return np.unique(np.concatenate([np.array([], dtype=np.int64), *steps]))

    def _missed(self) -> Ints:
        """Steps at which experts should have been measured and none had a gradient."""
        whole = self._first is None and self._last is None
        events = self.log.events(MISSING_EVENT) if whole and isinstance(self.log, Run) else []
        return np.array([event.step for event in events], dtype=np.int64)

    def has(self, *templates: str) -> bool:
        """Whether the run has series of each of the templates."""
        return all(template in self.names for template in templates)

    def name(self, template: str, row: Any) -> str | None:
        """The series of an expert, a router or a pair of them; None when there is none."""
        return self.names.get(template, {}).get(row)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """A series within the limits."""
        if self._first is None and self._last is None:
            return self.log.series(name)
        assert isinstance(self.log, Run | Log)
        return self.log.part(name, self._first, self._last)

    def field(self, template: str) -> Field:
        """A quantity of all rows; without rows when it was not measured."""
        if template not in self._fields:
            self._fields[template] = self._read(template)
        return self._fields[template]

    def _read(self, template: str) -> Field:
        names = self.names.get(template, {})
        series = [self.series(name) for name in names.values()]
        if template == LOAD or template in OF_ROUTERS:
            # Steps of its own: a split by terms is measured more rarely than a load.
            own = [np.array([], dtype=np.int64), *(steps for steps, _ in series)]
            steps = np.unique(np.concatenate(own))
        else:
            steps = self.steps
        values = np.full((len(names), len(steps)), np.nan)
        there = np.zeros(values.shape, dtype=np.bool_)
        for row, (at, found) in enumerate(series):
            places = np.searchsorted(steps, at)
            values[row, places] = found
            there[row, places] = True
        return Field(rows=tuple(names), steps=steps, values=values, there=there)

    def quotients(self, layer: str | None = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Of every tier's RMS, over all layers or in one: its series, and the pairs of series (RMS,
        routing weight) that are divided and then averaged.

        Every layer has routing weights of its own: what is pooled over layers first is a mixture
        of them, and dividing it by their mean does not take routing out.
        """
        layers = self.layers if layer is None else (layer,)
        for tier, expert in itertools.product(TIERS, self.experts):
            inside, over = rms_of(tier, layered=True), rms_of(tier)
            row = expert if layer is None else (layer, expert)
            name = self.name(over if layer is None else inside, row)
            pairs = [
                (self.name(inside, (each, expert)), self.name(LAYER_WEIGHT, (each, expert)))
                for each in layers
            ]
            known = [(rms, weight) for rms, weight in pairs if rms and weight]
            weight = self.name(WEIGHT, expert) if layer is None else None
            if name is not None:
                yield name, known or ([(name, weight)] if weight else [])

    def per_weight(self, tier: str) -> Field:
        """The RMS of a tier over the routing weight: in each layer, then the mean over layers."""
        pooled = self.field(rms_of(tier)).over(self.field(WEIGHT))
        inside = self.field(rms_of(tier, layered=True)).over(self.field(LAYER_WEIGHT))
        values, there = pooled.values.copy(), pooled.there.copy()
        for place, expert in enumerate(pooled.rows):
            rows = [row for row, (_, mine) in enumerate(inside.rows) if mine == expert]
            known = inside.there[rows]
            if known.any():
                total = np.where(known, inside.values[rows], 0.0).sum(axis=0)
                there[place] = known.any(axis=0)
                values[place] = np.where(
                    there[place], total / np.maximum(known.sum(axis=0), 1), np.nan
                )
        return Field(rows=pooled.rows, steps=pooled.steps, values=values, there=there)

    def fields(self, templates: Iterable[str] = OVER_LAYERS) -> dict[str, Field]:
        """Those of the quantities that the run has, by template."""
        return {template: self.field(template) for template in templates if self.has(template)}

    @cached_property
    def histogram_names(self) -> dict[str, str]:
        """By expert, the vector that holds its histogram."""
        if not isinstance(self.log, Run):
            return {}
        names = {
            name.removeprefix(HISTOGRAM): name
            for name in self.log.vector_names()
            if name.startswith(HISTOGRAM)
        }
        return {expert: names[expert] for expert in in_order(names) if "/" not in expert}

    @cached_property
    def histograms(self) -> tuple[Histogram, ...]:
        """All that are kept."""
        return tuple(self._histograms())

    def _histograms(self) -> Iterator[Histogram]:
        for expert, name in self.histogram_names.items():
            assert isinstance(self.log, Run)
            for step in self.log.vector_steps(name).tolist():
                counts = self.log.vector(name, step).values.astype(np.int64)
                yield Histogram(expert=expert, step=step, counts=counts)

    @property
    def histogram_steps(self) -> tuple[int, ...]:
        """The steps of which histograms are kept."""
        return tuple(sorted({histogram.step for histogram in self.histograms}))

    def lately(self, *templates: str, step: int | None = None) -> ExpertRun:
        """Some quantities alone: at a step, or at the last ten measured ones."""
        ends = self.looked_at[-RECENT:]
        first = step if step is not None else int(ends[0]) if len(ends) else None
        names = {template: self.names[template] for template in templates if self.has(template)}
        return ExpertRun(self.log, names, first=first, last=step)

    def called(self, name: str) -> Self:
        """The same under another name."""
        other = copy.copy(self)
        other.run = name
        return other


def mean_over_layers(found: Sequence[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """The mean of series at every step, over those that have it."""
    if not found:
        return np.array([], dtype=np.int64), np.array([])
    steps = np.unique(np.concatenate([at for at, _ in found]))
    total, count = np.zeros(len(steps)), np.zeros(len(steps))
    for at, values in found:
        places = np.searchsorted(steps, at)
        total[places] += values
        count[places] += 1
    return steps, total / count


def quotient(a: tuple[Ints, Floats], b: tuple[Ints, Floats]) -> tuple[Ints, Floats]:
    """a/b where both are and b is not 0."""
    steps, mine, theirs = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    kept = b[1][theirs] != 0
    return steps[kept], a[1][mine][kept] / b[1][theirs][kept]


def names_of(names: Iterable[str]) -> Names:
    """The series of experts and routers among a run's, also by the names of a Prismatic log."""
    return _sorted_out(frozenset(names))


@lru_cache(maxsize=64)
def _sorted_out(names: frozenset[str]) -> Names:
    """A run can have tens of thousands of series, and they are the same at every tick."""
    found: dict[str, dict[Any, str]] = {}
    for name in sorted(names):
        for template, row in _place(_canonical(name)):
            found.setdefault(template, {})[row] = name
    return MappingProxyType(
        {
            template: {row: rows[row] for row in sorted(rows, key=_row_order)}
            for template, rows in found.items()
        }
    )


def _place(name: str) -> Iterator[tuple[str, Any]]:
    """The template of a series and what stands in its placeholders: a part, or several."""
    if not name.startswith(("grad/", "router/")):
        return
    for template in (*BY_ENDING.get(name.rpartition("/")[2], ()), LOAD):
        if there := parse(template, name):
            parts = tuple(there.values())
            yield template, parts[0] if len(parts) == 1 else parts


def _canonical(name: str) -> str:
    """Our name for a column of Prismatic's table, also inside the dictionary its helper
    returns."""
    return series_of(NESTED.sub(r"\1_\2", name)) or name if "expert_" in name else name


def _row_order(row: Any) -> Any:
    return natural(row) if isinstance(row, str) else tuple(map(natural, row))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Expert 9 before expert 10."""
    return tuple(sorted(names, key=natural))


def series_name(template: str, row: Any) -> str:
    """The series behind a row of a field, by our name."""
    parts = re.findall(r"<([a-z_]+)>", template)
    return key(template, **dict(zip(parts, (row,) if isinstance(row, str) else row, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """A quantity over time: steps [T], finite values [T]."""

    steps: Array
    values: Array
    left_out: int = 0
    """Measurements that were NaN, infinite, or zero where a logarithm is taken."""

    @property
    def gap(self) -> float:
        """Steps between two measurements, lately (a budget stretches them); 10, the default, when
        there are too few."""
        return float(np.median(np.diff(self.steps)[-5:])) if self.steps.size > 1 else 10.0


NOTHING = TimeSeries(steps=np.empty(0), values=np.empty(0))


class ExpertSeries:
    """Which experts, layers and quantities a run has, and their comparisons with expert 0."""

    def __init__(self, run: SeriesSource, since: int | None = None) -> None:
        self._run = run
        self._since = since
        names = run.names()
        self._names = dict(_places(names_of(names)))
        experts = {expert for _, expert, _ in self._names}
        self.experts = tuple(sorted(experts, key=natural))
        self.layers = tuple(sorted({layer for layer, _, _ in self._names if layer}))
        if not experts:
            raise UsageError(_none_found(names))
        if REFERENCE not in experts or len(experts) < 2:
            raise UsageError(_one_found(self.experts))
        self.steps = self._all_steps()
        if self.steps.size == 0:
            raise UsageError(self._empty())
        if self._all_zero():
            raise UsageError(
                f"every gradient norm of experts {', '.join(self.experts)} is exactly zero: they"
                " were logged before backward() or after zero_grad(). Log after backward() and"
                " before optimizer.step()"
            )

    @property
    def others(self) -> tuple[str, ...]:
        """Every expert but the reference."""
        return tuple(expert for expert in self.experts if expert != REFERENCE)

    @property
    def routing(self) -> Routing:
        """How experts are chosen: a count of tokens for each expert exists only where tokens are
        routed."""
        found = {quantity for _, _, quantity in self._names}
        return (
            "top-k"
            if "norm_per_token" in found
            else "merged"
            if "routing_weight" in found
            else "unknown"
        )

    def has(self, quantity: str, expert: str) -> bool:
        """Whether the run has the quantity of the expert, in a layer or over all."""
        return any((layer, expert, quantity) in self._names for layer in ("", *self.layers))

    def pooled(self, quantity: str, expert: str) -> TimeSeries:
        """A quantity as it was averaged over layers, finite values only."""
        return self._combine([(quantity, expert)], lambda x: x, [""])

    def mean(self, quantity: str, expert: str, but: Collection[str] = ()) -> TimeSeries:
        """A quantity of one expert, averaged over the layers measured one by one where there are
        any, without those of `but`."""
        return self.combine([(quantity, expert)], lambda x: x, but)

    def combine(
        self,
        inputs: list[tuple[str, str]],
        formula: Callable[..., Array],
        but: Collection[str] = (),
    ) -> TimeSeries:
        """A formula of several quantities at the steps that have them all: in each layer, then the
        mean over layers."""
        layers = [layer for layer in self.layers if self._complete(layer, inputs)]
        return self._combine(inputs, formula, [x for x in layers if x not in but] or [""])

    def relative(
        self, quantity: str, expert: str, *, per: str = "", but: Collection[str] = ()
    ) -> TimeSeries:
        """log of a quantity (per another one) of an expert over that of expert 0."""
        over, under = [(quantity, expert)], [(quantity, REFERENCE)]
        if per:
            over, under = [*over, (per, REFERENCE)], [*under, (per, expert)]

        def formula(*values: Array) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = [np.log(value) for value in values]
                return np.asarray(sum(logs[: len(over)]) - sum(logs[len(over) :]), dtype=np.float64)

        return self.combine([*over, *under], formula, but)

    def silent(self, expert: str) -> bool:
        """Whether an expert has no gradient, or only zeros, in the newest half of the steps."""
        places = [x for x in self._norms() if x[1] == expert and x[2] in ("norm", "middle_norm")]
        middle = self.steps[self.steps.size // 2]
        newest = [values[steps >= middle] for steps, values in map(self._series, places)]
        return bool(places) and not any(values.any() for values in newest)

    def _complete(self, layer: str, inputs: list[tuple[str, str]]) -> bool:
        return all((layer, expert, quantity) in self._names for quantity, expert in inputs)

    def _combine(
        self, inputs: list[tuple[str, str]], formula: Callable[..., Array], layers: list[str]
    ) -> TimeSeries:
        found = [
            self._in_layer(layer, inputs, formula)
            for layer in layers
            if self._complete(layer, inputs)
        ]
        if not found:
            return NOTHING
        steps = np.unique(np.concatenate([t for t, _ in found]))
        total, count = np.zeros(steps.size), np.zeros(steps.size)
        for t, values in found:
            kept = np.isfinite(values)
            place = np.searchsorted(steps, t[kept])
            total[place] += values[kept]
            count[place] += 1.0
        kept = count > 0
        left_out = sum(int((~np.isfinite(values)).sum()) for _, values in found)
        return TimeSeries(steps=steps[kept], values=total[kept] / count[kept], left_out=left_out)

    def _in_layer(
        self, layer: str, inputs: list[tuple[str, str]], formula: Callable[..., Array]
    ) -> tuple[Array, Array]:
        series = [self._series((layer, expert, quantity)) for quantity, expert in inputs]
        steps = series[0][0]
        for t, _ in series[1:]:
            steps = np.intersect1d(steps, t, assume_unique=True)
        return steps, formula(*(values[np.searchsorted(t, steps)] for t, values in series))

    def _series(self, place: tuple[str, str, str]) -> tuple[Array, Array]:
        steps, values = self._run.series(self._names[place])
        kept = slice(None) if self._since is None else steps >= self._since
        return steps[kept].astype(np.float64), np.asarray(values[kept], dtype=np.float64)

    def _norms(self) -> list[tuple[str, str, str]]:
        wanted = ("norm", "top_norm", "bottom_norm", "middle_norm")
        return [place for place in self._names if place[2] in wanted]

    def _all_steps(self) -> Array:
        places = self._norms() or list(self._names)
        return np.unique(np.concatenate([self._series(place)[0] for place in places]))

    def _all_zero(self) -> bool:
        norms = [self._series(place)[1] for place in self._norms()]
        return bool(norms) and all(values.size > 0 and not values.any() for values in norms)

    def _empty(self) -> str:
        since, self._since = self._since, None
        steps = self._all_steps()
        newest = f"they end at step {steps[-1]:.0f}" if steps.size else "they hold no value"
        return f"no measurement of experts from step {since} on: {newest}"


def _places(names: Names) -> Iterator[tuple[tuple[str, str, str], str]]:
    """((layer, expert, quantity), series), layer "" for what is over all layers."""
    for quantity in JUDGED:
        for expert, name in names.get(POOLED + quantity, {}).items():
            yield ("", expert, quantity), name
        for (layer, expert), name in names.get(LAYERED + quantity, {}).items():
            yield (layer, expert, quantity), name


HOW = (
    "`gm.watch` hooks experts next to a router automatically and measures them every experts_every"
    " steps (default 10). If it finds none, name them with experts=. If you log them yourself, do"
    " so after backward() and before optimizer.step() and zero_grad(), for every expert, not only"
    " 0 and 1"
)


def _none_found(names: list[str]) -> str:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    found = f"found {len(names)} others: {shown}" if names else "found nothing at all"
    return f"no series of experts ({key(POOLED + 'norm', expert='0')} and so on); {found}. {HOW}"


def _one_found(experts: tuple[str, ...]) -> str:
    if REFERENCE in experts:
        return f"only expert 0 was logged, and there is nothing to compare it with. {HOW}"
    return (
        f"expert 0, which the others are compared with, was not logged; found {', '.join(experts)}."
        f" {HOW}"
    )
