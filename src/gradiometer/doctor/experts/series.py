"""The series of experts in a run or a log, put beside those of expert 0.

Each comparison is made in one layer and then averaged over layers. That matters: a merged layer multiplies one common
gradient by its own routing weights, so within a layer routing divides out exactly, while the joined vectors of two
layers that route differently are not collinear although nothing but routing sets them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.experts.answers import Routing, SeriesSource
from gradiometer.errors import UsageError
from gradiometer.maths.series import Array
from gradiometer.metrics import key, parse
from gradiometer.store.dynamics import series_of

__all__ = ["REFERENCE", "ExpertSeries", "Points"]

REFERENCE = "0"

POOLED, LAYERED = "grad/expert/<expert>/", "grad/<layer>/expert/<expert>/"
QUANTITIES = (
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
# The dictionary that source 002's helper returns, when somebody logs it as it is.
NESTED = re.compile(r"(?:expert_gradients|divergence_scores)/(expert_[0-9]+)[_/]([a-z_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A quantity over time: steps [T], finite values [T]."""

    steps: Array
    values: Array
    left_out: int = 0
    """Measurements that were NaN, infinite, or zero where a logarithm is taken."""

    @property
    def gap(self) -> float:
        """Steps between two measurements, lately (a budget stretches them); 10, the default, when there are too few."""
        return float(np.median(np.diff(self.steps)[-5:])) if self.steps.size > 1 else 10.0


NOTHING = Points(steps=np.empty(0), values=np.empty(0))


class ExpertSeries:
    """Which experts, layers and quantities a run has, and their comparisons with expert 0."""

    def __init__(self, run: SeriesSource, since: int | None = None) -> None:
        self._run = run
        self._since = since
        names = run.names()
        self._names = {place: name for name in names for place in _places(name)}
        experts = {expert for _, expert, _ in self._names}
        self.experts = tuple(sorted(experts, key=_by_number))
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
                f"every gradient norm of experts {', '.join(self.experts)} is exactly zero: they were logged before "
                "backward() or after zero_grad(). Log after backward() and before optimizer.step()"
            )

    @property
    def others(self) -> tuple[str, ...]:
        """Every expert but the reference."""
        return tuple(expert for expert in self.experts if expert != REFERENCE)

    @property
    def routing(self) -> Routing:
        """How experts are chosen: a count of tokens for each expert exists only where tokens are routed."""
        found = {quantity for _, _, quantity in self._names}
        return "top-k" if "norm_per_token" in found else "merged" if "routing_weight" in found else "unknown"

    def has(self, quantity: str, expert: str) -> bool:
        """Whether the run has the quantity of the expert, in a layer or over all."""
        return any((layer, expert, quantity) in self._names for layer in ("", *self.layers))

    def pooled(self, quantity: str, expert: str) -> Points:
        """A quantity as it was averaged over layers, finite values only."""
        return self._combine([(quantity, expert)], lambda x: x, [""])

    def mean(self, quantity: str, expert: str) -> Points:
        """A quantity of one expert, averaged over the layers measured one by one where there are any."""
        return self.combine([(quantity, expert)], lambda x: x)

    def combine(self, inputs: list[tuple[str, str]], formula: Callable[..., Array]) -> Points:
        """A formula of several quantities at the steps that have them all: in each layer, then the mean over layers."""
        layers = [layer for layer in self.layers if self._complete(layer, inputs)]
        return self._combine(inputs, formula, layers or [""])

    def log_ratio(self, over: Iterable[tuple[str, str]], under: Iterable[tuple[str, str]]) -> Points:
        """Σ log over − Σ log under, each a (quantity, expert)."""
        over, under = list(over), list(under)

        def formula(*values: Array) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = [np.log(value) for value in values]
                return np.asarray(sum(logs[: len(over)]) - sum(logs[len(over) :]), dtype=np.float64)

        return self.combine([*over, *under], formula)

    def _complete(self, layer: str, inputs: list[tuple[str, str]]) -> bool:
        return all((layer, expert, quantity) in self._names for quantity, expert in inputs)

    def _combine(self, inputs: list[tuple[str, str]], formula: Callable[..., Array], layers: list[str]) -> Points:
        found = [self._in_layer(layer, inputs, formula) for layer in layers if self._complete(layer, inputs)]
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
        return Points(steps=steps[kept], values=total[kept] / count[kept], left_out=left_out)

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


def _places(name: str) -> Iterator[tuple[str, str, str]]:
    """(layer, expert, quantity) of a series' name, layer "" for what is over all layers; nothing for other names."""
    name = series_of(NESTED.sub(r"\1_\2", name)) or name
    quantity = name.rpartition("/")[2]
    if name.startswith("grad/") and "expert/" in name and quantity in QUANTITIES:
        for template in (POOLED + quantity, LAYERED + quantity):
            if parts := parse(template, name):
                yield parts.get("layer", ""), parts["expert"], quantity


def _by_number(expert: str) -> tuple[int, str]:
    return (int(expert), "") if expert.isdigit() else (10**9, expert)


HOW = (
    "`gm.watch` finds experts by itself where a module holds them beside a router, and measures them every "
    "experts_every steps (10 unless told); where it finds none, name them with experts=. Logging by hand: after backward() "
    "and before optimizer.step() and zero_grad(), and every expert, not only 0 and 1"
)


def _none_found(names: list[str]) -> str:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    found = f"found {len(names)} others: {shown}" if names else "found nothing at all"
    return f"no series of experts ({key(POOLED + 'norm', expert='0')} and so on); {found}. {HOW}"


def _one_found(experts: tuple[str, ...]) -> str:
    if REFERENCE in experts:
        return f"only expert 0 was logged, and there is nothing to compare it with. {HOW}"
    return f"expert 0, which the others are compared with, was not logged; found {', '.join(experts)}. {HOW}"
