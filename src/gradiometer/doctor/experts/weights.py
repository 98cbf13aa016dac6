"""How far the weights of each expert are from those of expert 0, and what that makes of it.

Two experts with the same weights are the same function: whatever sets their gradients apart then is
which tokens each is asked, that is routing. The three questions and the rule `experts-converged`
both read it here, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradiometer.doctor.experts.answers import SeriesSource
from gradiometer.doctor.experts.series import LAYERED, POOLED, names_of
from gradiometer.maths.trends import Array

__all__ = ["ONE_EXPERT", "THE_SAME", "Standing", "WeightDistance", "read_distances", "standing_of"]

WeightState = Literal["one", "nearing", "apart", "unknown"]

ONE_EXPERT = 0.1
"""Of the distance they began with. Training alone lets it shrink, for weights grow (to 0.40 in
1,500 steps of the healthy prismatic lab); averaging them left 0.001 to 0.06 of it."""
STILL_APART = 0.3
"""Above it the weights contradict a collapse that the gradients seem to show."""
THE_SAME = 0.01
"""‖W_e − W_0‖/‖W_0‖ of two that are one: a copy, up to one per cent."""
MIN_COPIES = 3
"""Readings of that: experts may begin as copies (upcycling), and should not stay so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDistance:
    """‖W_e − W_0‖/‖W_0‖ of one expert in one layer over the whole run, finite values only."""

    series: str
    """Its name in the run."""
    layer: str
    """Empty for what is joined over layers."""
    expert: str
    values: Array

    @property
    def first(self) -> float:
        """Where it began."""
        return float(self.values[0])

    @property
    def last(self) -> float:
        """Where it is."""
        return float(self.values[-1])

    @property
    def left(self) -> float:
        """The share that is left of where it began."""
        return self.last / self.first if self.first > 0 else 1.0

    @property
    def copy(self) -> bool:
        """Whether they never were apart."""
        return bool((self.values < THE_SAME).all())

    @property
    def state(self) -> WeightState:
        """`one` when they have met or always were one."""
        newest = self.values[-MIN_COPIES:]
        met = self.first > THE_SAME and self.left < ONE_EXPERT
        if met or (newest.size == MIN_COPIES and bool((newest < THE_SAME).all())):
            return "one"
        if self.last <= THE_SAME:
            return "unknown"
        return "apart" if self.left > STILL_APART else "nearing"


def read_distances(source: SeriesSource) -> list[WeightDistance]:
    """Of every expert: in each layer where that was kept, else over all."""
    names = names_of(source.names())
    layered = names.get(LAYERED + "weight_distance", {})
    places = layered or {
        ("", e): name for e, name in names.get(POOLED + "weight_distance", {}).items()
    }
    found = []
    for (layer, expert), name in places.items():
        values = np.asarray(source.series(name)[1], dtype=np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            found.append(WeightDistance(series=name, layer=layer, expert=expert, values=values))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an expert stands: whether it learns at all, and how its weights are to expert 0's."""

    dead: bool
    """It gets no token, or no gradient."""
    weights: WeightState
    met_in: frozenset[str]
    """The layers in which its weights are expert 0's."""
    copy: bool
    """They never were apart, in any layer."""
    distance: float | None
    """The newest, of the nearest layer."""

    @property
    def one(self) -> bool:
        """Whether it is expert 0 in every layer."""
        return self.weights == "one"

    @property
    def collapsed(self) -> bool:
        """Whether it is one with expert 0 somewhere, and was not always and everywhere."""
        return bool(self.met_in) and not (self.one and self.copy)


def standing_of(found: Iterable[WeightDistance], *, dead: bool) -> Standing:
    """Of one expert, from its layers. Where one layer is apart, so is the expert."""
    found = list(found)
    states = {each.state for each in found}
    met = frozenset(each.layer for each in found if each.state == "one")
    weights: WeightState = "unknown"
    if states == {"one"}:
        weights = "one"
    elif "apart" in states:
        weights = "apart"
    elif "nearing" in states:
        weights = "nearing"
    return Standing(
        dead=dead,
        weights=weights,
        met_in=met,
        copy=bool(found) and all(each.copy for each in found),
        distance=min((each.last for each in found), default=None),
    )
