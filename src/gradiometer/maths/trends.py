"""What a series of measurements does over time: its level, its drift, and what moves with it (its period: periods.py).

Gradient norms are strongly autocorrelated, and every textbook test of a trend assumes they are not. Each verdict here
therefore first asks how many independent observations the series is worth. Plain numpy: the training loop imports this
module, and `scipy.special` alone would add some 0.3 s to the start of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradiometer.maths.periods import Period, dominant_period
from gradiometer.maths.series import (
    LEVEL,
    Array,
    array,
    autocorrelation,
    autocorrelation_time,
    finite_pairs,
    is_flat,
    ordered,
    unbiased_phi,
)

__all__ = [
    "EMA_START",
    "Correlation",
    "Drift",
    "Period",
    "autocorrelation_time",
    "correlation",
    "dominant_period",
    "drift",
    "ema",
    "ema_update",
    "noise_time",
    "theil_sen",
]

MIN_VALUES = 8
"""On fewer values Mann–Kendall hardly reaches the level: of 7, at most one pair of the 21 may be out of order.
Rank correlations are as coarse."""

MIN_DRIFT_DECADES = 0.3
"""A factor of two over the window. Adam cancels it, a clip hardly notices it, and nobody changes a run because of it."""

MAX_PAIRWISE = 512
"""Points above which all pairs are too many (131 thousand slopes); half a series apart is where slopes are surest."""

MIN_EFFECTIVE = 5.0
"""Independent pairs below which there is no verdict: Fisher's test needs more than 3, and its number is an estimate."""

EMA_START = (0.0, 0.0)
"""The state of an average that has seen nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A trend of a log-norm, and whether it is more than the wandering of an autocorrelated series."""

    slope: float
    """Decades per 1000 steps."""
    change: float
    """Decades over the window, along the slope."""
    p_value: float | None
    """None when the series is worth fewer than 8 independent blocks: no verdict."""
    significant: bool
    num_blocks: int
    block: int
    """Measurements in a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's ρ of two series, judged on the number of independent observations they are worth."""

    rho: float
    p_value: float | None
    """None when both series wander so slowly that any two such series would correlate."""
    significant: bool
    num_effective: float


def ema_update(state: tuple[float, float], value: float, beta: float) -> tuple[float, float]:
    """One step of a bias-corrected average; the state is (mean, weight), and starts as `EMA_START`.

    w' = β w + (1−β), mean' = (β w mean + (1−β) x)/w'. A value that is not finite is left out: it would stay for ever.
    """
    mean, weight = state
    if not math.isfinite(value):
        return state
    kept = beta * weight
    weight = kept + (1.0 - beta)
    return (kept * mean + (1.0 - beta) * value) / weight, weight


def ema(values: npt.ArrayLike, beta: float) -> Array:
    """Bias-corrected exponential moving average of a series [T]; NaN until the first finite value."""
    state = EMA_START
    means = []
    for value in array(values).tolist():
        state = ema_update(state, value, beta)
        means.append(state[0] if state[1] > 0.0 else math.nan)
    return np.array(means, dtype=np.float64)


def theil_sen(steps: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Median of the slopes (y_j − y_i)/(t_j − t_i) of all pairs of points; NaN when there are fewer than two.

    Up to 29 % of the points may be anything. Points with a NaN are dropped. Above 512 points only the pairs half a
    series apart are used (Theil's incomplete method, 1950).
    """
    t, values = ordered(steps, y)
    half = t.size // 2
    if half == 0:
        return math.nan
    if t.size > MAX_PAIRWISE:
        return float(np.median((values[-half:] - values[:half]) / (t[-half:] - t[:half])))
    return float(np.median(_differences(values) / _differences(t)))


def _differences(x: Array) -> Array:
    """x_i − x_j for all i > j, of x [T]: [T(T−1)/2]."""
    return (x[:, None] - x)[np.tri(x.size, k=-1, dtype=np.bool_)]


def drift(steps: npt.ArrayLike, log10_norms: npt.ArrayLike, *, min_effect: float = MIN_DRIFT_DECADES) -> Drift | None:
    """Which way a log-norm goes over a window [T], and whether it is a trend; None below 8 points.

    The slope is Theil–Sen. The verdict is Mann–Kendall on the means of consecutive blocks at least 2τ long, at least 8
    of them, and needs `min_effect` decades of change over the window.
    """
    t, y = ordered(steps, log10_norms)
    if t.size < MIN_VALUES:
        return None
    slope = theil_sen(t, y)
    change = slope * float(t[-1] - t[0])
    length = math.ceil(max(2.0 * noise_time(y, rising=slope >= 0.0), y.size / MAX_PAIRWISE))
    num_blocks = y.size // length
    p_value = None
    if num_blocks >= MIN_VALUES:
        p_value = _mann_kendall(y[y.size - num_blocks * length :].reshape(num_blocks, length).mean(axis=1))
    significant = p_value is not None and p_value < LEVEL and abs(change) >= min_effect
    return Drift(
        slope=1000.0 * slope,
        change=change,
        p_value=p_value,
        significant=significant,
        num_blocks=num_blocks,
        block=length,
    )


def noise_time(y: Array, *, rising: bool) -> float:
    """Autocorrelation time of what is left of y when its best monotone curve is taken away.

    A straight line would not do: what it leaves of a bent or a sudden drift is smooth, reads as a long autocorrelation
    time, and the clearest drifts would get no verdict. The fit also takes away some of the noise, so τ is not let below
    that of the AR(1) process with the bias of ρ_1 undone, φ = (n ρ_1 + k)/(n − k − 2), k free parameters (Kendall 1954);
    a monotone fit to noise has about ln n + 1 levels.
    """
    residual = y - _monotone(y if rising else -y) * (1.0 if rising else -1.0)
    if is_flat(residual, y):
        return 1.0
    phi = max(0.0, unbiased_phi(residual, free=math.log(y.size) + 1.0))
    return max(autocorrelation_time(residual), (1.0 + phi) / (1.0 - phi))


def _monotone(y: Array) -> Array:
    """The non-decreasing series nearest to y in the mean square: neighbours out of order are pooled to their mean."""
    means: list[float] = []
    sizes: list[int] = []
    for value in y.tolist():
        mean, size = value, 1
        while means and means[-1] >= mean:
            pooled = sizes.pop()
            mean = (mean * size + means.pop() * pooled) / (size + pooled)
            size += pooled
        means.append(mean)
        sizes.append(size)
    return np.repeat(np.array(means, dtype=np.float64), sizes)


def _mann_kendall(x: Array) -> float:
    """Two-sided p of no monotone trend in independent x [n]: normal approximation, ties and continuity corrected.

    S = Σ_{i>j} sign(x_i − x_j), Var S = [n(n−1)(2n+5) − Σ_ties c(c−1)(2c+5)]/18.
    """
    n = x.size
    score = abs(float(np.sign(_differences(x)).sum()))
    ties = np.unique(x, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18.0
    return math.erfc((score - 1.0) / math.sqrt(2.0 * variance)) if score > 1.0 else 1.0


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation | None:
    """Spearman's ρ of two series [T]; None when either is constant or fewer than 8 pairs are left without a NaN.

    Two slow series correlate by chance, so T shrinks to n = T/(1 + 2 Σ_k (1 − k/T) ρ^x_k ρ^y_k) (Bayley and Hammersley
    1946) and the test is Fisher's: atanh ρ · √((n − 3)/1.06).
    """
    a, b = finite_pairs(x, y)
    if a.size < MIN_VALUES or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return None
    a, b = _ranks(a), _ranks(b)
    rho = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    num_effective = _num_effective(a, b)
    p_value = None
    if num_effective > MIN_EFFECTIVE:
        certain = min(abs(rho), 1.0 - 1e-12)
        p_value = math.erfc(math.atanh(certain) * math.sqrt((num_effective - 3.0) / 1.06 / 2.0))
    significant = p_value is not None and p_value < LEVEL
    return Correlation(rho=rho, p_value=p_value, significant=significant, num_effective=num_effective)


def _ranks(x: Array) -> Array:
    """Centred ranks; equal values share their mean rank."""
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks = array((np.cumsum(counts) - 0.5 * (counts - 1))[which])
    return np.subtract(ranks, 0.5 * (x.size + 1))


def _num_effective(x: Array, y: Array) -> float:
    """Independent pairs that the pairs of two series are worth; the lags end where either autocorrelation does."""
    rho_x, rho_y = autocorrelation(x)[1:], autocorrelation(y)[1:]
    ended = np.flatnonzero((rho_x <= 0.0) | (rho_y <= 0.0))
    end = int(ended[0]) if ended.size else rho_x.size
    shrink = 1.0 - np.arange(1, end + 1) / x.size
    return x.size / (1.0 + 2.0 * float((shrink * rho_x[:end] * rho_y[:end]).sum()))
