"""What a benchmark gives: rows, each a figure with its spread, beside the target it has to meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Row", "Scale", "clock", "counted", "measured", "three_digits"]

MIN_ROUNDS = 9
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: enough for a figure, or only enough to see that the benchmark runs."""

    quick: bool = False

    def rounds(self, full: int = MIN_ROUNDS) -> int:
        """How often the candidates take their turns."""
        assert full >= MIN_ROUNDS
        return 1 if self.quick else full

    def of(self, full: T, quick: T) -> T:
        """A size."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: the median over rounds, and the 10th and 90th percentile of the rounds."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    rounds: int
    """0 for what is counted, and the same every time."""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without one. What is no number meets
        nothing."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )


def measured(
    name: str,
    rounds: Sequence[float] | NDArray[np.float64],
    *,
    unit: str = "×",
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """A row from the figure of each round: a ratio is taken inside its round, before the median."""
    low, value, high = (
        float(x) for x in np.percentile(np.asarray(rounds, dtype=np.float64), (10, 50, 90))
    )
    return Row(
        name=name,
        value=value,
        unit=unit,
        low=low,
        high=high,
        rounds=len(rounds),
        at_most=at_most,
        at_least=at_least,
        note=note,
    )


def counted(
    name: str, value: float, *, unit: str, at_most: float | None = None, note: str = ""
) -> Row:
    """A row of what needs no clock: bytes."""
    return Row(
        name=name,
        value=value,
        unit=unit,
        low=value,
        high=value,
        rounds=0,
        at_most=at_most,
        note=note,
    )


def clock(taken: dict[str, NDArray[np.float64]], *names: str) -> str:
    """The medians behind a ratio, for its note: `clip 4.7 ms, light 6.2 ms`."""
    return ", ".join(f"{name} {_seconds(float(np.median(taken[name])))}" for name in names)


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds / 1e-6)} µs"


def three_digits(value: float) -> str:
    """As it stands on the page: three significant digits, thousands apart."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
