"""The mean of a series of measurements, with an interval that knows the measurements are not independent.

Student's interval on raw AR(1) measurements with φ = 0.9 covers the true mean in a third of the cases instead of 95 %.
Here neighbours are averaged into blocks at least twice the autocorrelation time long, and the blocks are the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradiometer.maths.series import Array, array, autocorrelation_time, is_flat, unbiased_phi
from gradiometer.maths.trends import drift, noise_time

__all__ = ["LEVEL", "MIN_BLOCKS", "Interval", "block_length", "holm", "mean_interval"]

LEVEL = 0.05
"""Intervals are of 95 %, and tests that belong to them of 5 %."""

MIN_BLOCKS = 5
"""On fewer blocks Student's quantile is above 3 and the autocorrelation time itself is a guess."""

MIN_TREND = 40
"""Measurements below which a slow wandering is too often taken for a trend (8 % of the intervals wrong at 20, φ = 0.95)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
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
        from scipy.special import stdtr  # 40 ms to import

        if self.error == 0.0:  # a constant: no doubt on either side, and none about a tie
            return 0.0 if distance > 0.0 else 1.0
        return float(stdtr(self.num_blocks - 1, -distance / self.error))


def mean_interval(values: npt.ArrayLike) -> Interval | None:
    """The mean of a series [T] and its 95 % interval; None below 5 blocks, or where sums overflow. NaN and Inf are left out.

    b_1 … b_k are means of consecutive blocks of L ≥ 2τ measurements, and the interval is Student's with k − 1 degrees
    of freedom on s²(b)/k · f(kL)/f(L), where f(m) = m Var(mean of m)/σ² = τ − 2φ(1 − φ^m)/(m(1 − φ)²) of the AR(1)
    process with this τ: neighbouring blocks still share a little, 25 % of the variance at L = 2τ.
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
    error = 0.0 if is_flat(x - x.mean(), x) else math.sqrt(float(blocks.var(ddof=1)) / num_blocks * shared)
    mean = float(x.mean())
    if not math.isfinite(mean + error):  # sums of values near 1e308
        return None
    width = _quantile(num_blocks - 1) * error
    return Interval(
        mean=mean,
        low=mean - width,
        high=mean + width,
        error=error,
        num_blocks=num_blocks,
        block=length,
        count=x.size,
    )


def block_length(values: npt.ArrayLike) -> int:
    """Measurements that make one block of a series, at least 2."""
    x = array(values)
    x = x[np.isfinite(x)]
    return math.ceil(2.0 * _time(x)) if x.size >= MIN_BLOCKS else 2


def holm(p_values: Sequence[float], *, level: float = LEVEL) -> list[bool]:
    """Which of several hypotheses fall when any wrong fall among them may happen once in 1/level (Holm 1979)."""
    fallen = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        if p_values[place] * (len(p_values) - rank) >= level:
            break
        fallen[place] = True
    return fallen


def _time(x: Array) -> float:
    """Autocorrelation time; of a series with a clear trend that of the noise around it, for the trend is no noise.

    Not below that of the AR(1) process with the bias of ρ_1 undone: on short series the sum of ρ_k is too small.
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


def _quantile(freedom: int) -> float:
    from scipy.special import stdtrit  # 40 ms to import

    return float(stdtrit(freedom, 1.0 - LEVEL / 2.0))
