"""Numbers turned into words: a mean with its interval, a list of experts, and how many more steps would be enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.experts.answers import Number, Verdict
from gradiometer.doctor.experts.series import Points
from gradiometer.maths.means import MIN_BLOCKS, Interval, block_length, holm, mean_interval
from gradiometer.words import fmt

__all__ = [
    "Estimate",
    "confirmed",
    "estimate",
    "listed",
    "plus_minus",
    "span",
    "steps_short",
    "times",
    "with_verdict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A quantity of an expert: the number to show, and the interval to judge by (None: too few measurements)."""

    number: Number
    interval: Interval | None
    points: Points

    def p_above(self, bound: float) -> float:
        """Two-sided p that goes with the 95 % interval lying above the bound; 1 without an interval."""
        return min(1.0, 2.0 * self.interval.p_above(bound)) if self.interval else 1.0

    def p_below(self, bound: float) -> float:
        """The same for an interval below the bound."""
        return min(1.0, 2.0 * self.interval.p_below(bound)) if self.interval else 1.0


def estimate(points: Points, *, expert: str, name: str, unit: str) -> Estimate | None:
    """The mean of a quantity with its interval; None when it was never measured."""
    if points.values.size == 0:
        return None
    found = mean_interval(points.values)
    number = Number(
        expert=expert,
        name=name,
        unit=unit,
        value=float(points.values.mean()),
        low=found.low if found else None,
        high=found.high if found else None,
        points=int(points.values.size),
        blocks=found.num_blocks if found else None,
    )
    return Estimate(number=number, interval=found, points=points)


def confirmed(p_values: Mapping[str, float]) -> list[str]:
    """The experts whose p stands when all that were looked at count (Holm)."""
    experts = list(p_values)
    return [expert for expert, fallen in zip(experts, holm([p_values[e] for e in experts]), strict=True) if fallen]


def steps_short(points: Points, *, blocks: int = MIN_BLOCKS, block: int | None = None) -> int:
    """Steps still to be trained until the measurements are worth so many blocks."""
    wanted = blocks * (block or block_length(points.values)) - points.values.size
    return max(0, math.ceil(wanted * points.gap))


def listed(experts: Sequence[str], *, most: int = 6) -> str:
    """`expert 2`, `experts 1, 2 and 5`, `experts 1, 2, 3 and 58 more`."""
    if len(experts) == 1:
        return f"expert {experts[0]}"
    head, last = (experts[:-1], experts[-1]) if len(experts) <= most else (experts[:3], f"{len(experts) - 3} more")
    return f"experts {', '.join(head)} and {last}"


def with_verdict(experts: Mapping[str, Verdict], wanted: Verdict) -> list[str]:
    """The experts that got a verdict."""
    return [expert for expert, verdict in experts.items() if verdict == wanted]


def span(number: Number) -> str:
    """`0.21 [0.19, 0.23]`, or `0.21 (no interval yet)`; the last digit is one the interval can bear."""
    if number.low is None or number.high is None:
        return f"{fmt(number.value)} (no interval yet)"
    return _span(number.value, number.low, number.high, pure=number.unit != "loss/weight")


def times(number: Number) -> str:
    """The same for a log ratio, as a factor: `3.0 [2.9, 3.1] times`."""
    factor, *ends = (float(np.exp(min(x, 700.0))) for x in (number.value, number.low, number.high) if x is not None)
    within = _span(factor, *ends, pure=True) if len(ends) == 2 else f"{fmt(factor)} (no interval yet)"
    return f"{within} times"


def plus_minus(number: Number) -> str:
    """`0.21 ± 0.02` of a number without a unit; `0.21 ± ?` without an interval."""
    if number.low is None or number.high is None:
        return f"{number.value:.3f} ± ?"
    digits = min(3, _digits(number.high - number.low))
    return f"{number.value:.{digits}f} ± {0.5 * (number.high - number.low):.{digits}f}".replace("-0.000 ", "0.000 ")


def _span(value: float, low: float, high: float, *, pure: bool) -> str:
    """A pure number is near 1 or near 0, and 1e-17 of it is nothing; one with a unit may be of any size."""
    if not pure and (0 < abs(value) < 1e-2 or abs(value) >= 1e4):
        return f"{fmt(value)} [{fmt(low)}, {fmt(high)}]"
    digits = _digits(high - low)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _digits(width: float) -> int:
    """Decimals: two digits of the interval's width, at least three where it has none."""
    return 3 if not 1e-4 <= width < math.inf else max(0, min(4, 1 - math.floor(math.log10(width))))
