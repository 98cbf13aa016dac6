"""Means with honest intervals: of a series whose values depend on each other, and of few values.

Student's interval on raw AR(1) measurements with φ = 0.9 covers the true mean in a third of the
cases instead of 95 %. Here neighbours are averaged into blocks at least twice the autocorrelation
time long, and the blocks are the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradiometer.maths.students import t_below, t_quantile
from gradiometer.maths.trends import (
    Array,
    array,
    autocorrelation_time,
    drift,
    is_flat,
    noise_time,
    unbiased_phi,
)

__all__ = [
    "LEVEL",
    "MIN_BLOCKS",
    "MIN_SAMPLES",
    "MeanInterval",
    "StudentMean",
    "block_length",
    "holm",
    "mean_interval",
    "student",
]

LEVEL = 0.05
"""Intervals are of 95 %, and tests that belong to them of 5 %."""

MIN_BLOCKS = 5
"""On fewer blocks Student's quantile is above 3 and the autocorrelation time itself is a guess."""

MIN_SAMPLES = 4
"""Below, Student's quantile is above 4 and the spread itself a guess: no interval."""

MIN_TREND = 40
"""Below, wandering is often taken for a trend (at 20, φ = 0.95, 8 % of intervals are wrong)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean with its 95 % interval, and the tests that go with it."""

    mean: float
    low: float
    high: float
    error: float
    """Standard error of the mean."""
    num_blocks: int
    block: int
    """Measurements in a block."""
    count: int
    """Measurements that were finite."""

    def p_above(self, bound: float) -> float:
        """One-sided p of "the true mean is at most the bound": small when it is clearly above."""
        return self._tail(self.mean - bound)

    def p_below(self, bound: float) -> float:
        """One-sided p of "the true mean is at least the bound": small when it is clearly below."""
        return self._tail(bound - self.mean)

    def _tail(self, distance: float) -> float:
        if self.error == 0.0:  # a constant: no doubt on either side, and none about a tie
            return 0.0 if distance > 0.0 else 1.0
        return t_below(self.num_blocks - 1, -distance / self.error)


def mean_interval(values: npt.ArrayLike) -> MeanInterval | None:
    """The mean of a series [T] and its 95 % interval; None below 5 blocks, or where sums overflow.

    NaN and Inf are left out. b_1 … b_k are means of consecutive blocks of L ≥ 2τ measurements, and
    the interval is Student's with k − 1 degrees of freedom on s²(b)/k · f(kL)/f(L), where f(m) =
    m Var(mean of m)/σ² = τ − 2φ(1 − φ^m)/(m(1 − φ)²) of the AR(1) process with this τ: neighbouring
    blocks still share a little, 25 % of the variance at L = 2τ.
    """
    x = array(values)
    x = x[np.isfinite(x)]
    if x.size < MIN_BLOCKS:
        return None
    tau = _time(x)
    length = math.ceil(2.0 * tau)
    num_blocks = x.size // length
    if num_blocks < MIN_BLOCKS:
        return None
    blocks = x[x.size - num_blocks * length :].reshape(num_blocks, length).mean(axis=1)
    shared = _growth(tau, num_blocks * length) / _growth(tau, length)
    flat = is_flat(x - x.mean(), x)
    error = 0.0 if flat else math.sqrt(float(blocks.var(ddof=1)) / num_blocks * shared)
    mean = float(x.mean())
    if not math.isfinite(mean + error):  # sums of values near 1e308
        return None
    width = _quantile(num_blocks - 1) * error
    return MeanInterval(
        mean=mean,
        low=mean - width,
        high=mean + width,
        error=error,
        num_blocks=num_blocks,
        block=length,
        count=x.size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentMean:
    """A mean of independent values with its 95 % interval, which is missing below 4 of them."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is on that side of zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0.0) - int(self.high < 0.0)

    def __str__(self) -> str:
        ends = "" if self.low is None else f" (95 % interval {self.low:.3g} to {self.high:.3g})"
        return f"{self.mean:.3g}{ends}"


def student(values: npt.ArrayLike, *, tests: int = 1) -> StudentMean:
    """x̄ ± t s/√n of independent values [n]; with several `tests` wider (Bonferroni)."""
    x = array(values)
    mean = float(x.mean()) if len(x) else math.nan
    if len(x) < MIN_SAMPLES or not np.isfinite(x).all():
        return StudentMean(mean=mean, low=None, high=None, count=len(x))
    width = _quantile(len(x) - 1, tests) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return StudentMean(mean=mean, low=mean - width, high=mean + width, count=len(x))


def block_length(values: npt.ArrayLike) -> int:
    """Measurements that make one block of a series, at least 2."""
    x = array(values)
    x = x[np.isfinite(x)]
    return math.ceil(2.0 * _time(x)) if x.size >= MIN_BLOCKS else 2


def holm(p_values: Sequence[float], *, level: float = LEVEL) -> list[bool]:
    """Which hypotheses fall when any wrong fall may happen once in 1/level (Holm 1979)."""
    fallen = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        if p_values[place] * (len(p_values) - rank) >= level:
            break
        fallen[place] = True
    return fallen


def _time(x: Array) -> float:
    """Autocorrelation time; where there is a clear trend, that of the noise around it.

    Not below that of the AR(1) process with the bias of ρ_1 undone: on short series the sum of ρ_k
    is too small.
    """
    if is_flat(x - x.mean(), x):
        return 1.0
    trend = drift(np.arange(x.size), x, min_effect=0.0) if x.size >= MIN_TREND else None
    if trend is not None and trend.significant:
        return noise_time(x, rising=trend.change >= 0.0)
    phi = max(0.0, unbiased_phi(x, free=1.0))
    return max(autocorrelation_time(x), (1.0 + phi) / (1.0 - phi))


def _growth(tau: float, m: int) -> float:
    phi = (tau - 1.0) / (tau + 1.0)
    return tau - 2.0 * phi * (1.0 - phi**m) / (m * (1.0 - phi) ** 2)


def _quantile(freedom: int, tests: int = 1) -> float:
    return t_quantile(freedom, 1.0 - LEVEL / 2.0 / tests)
