"""What a series of measurements does over time: its level, its drift, its period, and what moves with it.

Gradient norms are strongly autocorrelated, and every textbook test of a trend assumes they are not. Each verdict here
therefore first asks how many independent observations the series is worth. Plain numpy: the training loop imports this
module, and `scipy.special` alone would add some 0.3 s to the start of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

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
    "theil_sen",
]

Array = npt.NDArray[np.float64]

LEVEL = 0.01
"""A verdict is wrong once in a hundred: a run has a handful of blocks and is read a few dozen times."""

MIN_BLOCKS = 8
"""Mann–Kendall on fewer values than this can hardly reach the level: of 7, only the two most orderly of 21 scores do."""

MIN_DRIFT_DECADES = 0.3
"""A factor of two over the window. Adam cancels it, a clip hardly notices it, and nobody changes a run because of it."""

MAX_PAIRWISE = 512
"""Above this many points all pairs are too many (131 thousand slopes, 2 ms); half a series apart is where slopes are surest."""

MIN_PERIOD_POINTS = 32
"""Below this the whitening fit and the three cycles take most of what the series has."""

MIN_CYCLES = 3.0
"""What came back fewer than three times within the window is a bend, not a period."""

OVERSAMPLING = 2.0
"""Frequencies per independent frequency: the peak of a sine between two of them keeps 81 % of its power or more."""

MIN_CORRELATION_POINTS = 8
"""Rank correlations of fewer points are too coarse to judge."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The strongest oscillation of a log-norm, and whether it stands out of red noise."""

    steps: float
    amplitude: float
    """Decades, from the middle to the crest."""
    p_value: float
    significant: bool


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
    for value in np.asarray(values, dtype=np.float64).tolist():
        state = ema_update(state, value, beta)
        means.append(state[0] if state[1] > 0.0 else math.nan)
    return np.array(means, dtype=np.float64)


def autocorrelation_time(x: npt.ArrayLike) -> float:
    """How many consecutive values are worth one independent value: τ = 1 + 2 Σ_{k≥1} ρ_k, at least 1.

    The sum ends with the first pair ρ_2m + ρ_2m+1 that is not positive (Geyer 1992, initial positive sequence). Counted
    in measurements, whatever their spacing; NaNs are dropped; a constant has τ = 1.
    """
    x = np.asarray(x, dtype=np.float64)
    rho = _autocorrelation(x[np.isfinite(x)])
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    ended = np.flatnonzero(pairs <= 0.0)
    return max(1.0, 2.0 * float(pairs[: ended[0] if ended.size else None].sum()) - 1.0)


def _autocorrelation(x: Array) -> Array:
    """ρ_k of x [T] at lags 0 … T−1 (biased estimate, so that it dies out); of a constant 1, 0, 0, …"""
    centred = x - x.mean() if x.size else x
    if x.size < 2 or _is_flat(centred, x):
        return np.eye(1, max(2, x.size))[0]
    spectrum = np.fft.rfft(centred, n=_power_of_two(2 * x.size))
    covariance = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[: x.size]
    return covariance / covariance[0]


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _is_flat(residual: Array, x: Array) -> bool:
    """Whether what is left of x is rounding error."""
    return float(np.abs(residual).max()) <= 1e-12 * float(np.abs(x).max())


def theil_sen(steps: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Median of the slopes between all pairs of points; NaN when no two points differ in their step.

    Up to 29 % of the points may be anything. Points with a NaN are dropped. Above 512 points only pairs half a series
    apart are used (Theil's incomplete method).
    """
    t, y = _finite(steps, y)
    return _theil_sen(t, y)


def _theil_sen(t: Array, y: Array) -> float:
    n = t.size
    if n > MAX_PAIRWISE:
        half = n // 2
        run, rise = t[n - half :] - t[:half], y[n - half :] - y[:half]
    else:
        # Every pair once: i with i+1, …, i+n//2, counted round the end; for even n the farthest ones come twice.
        partner = sliding_window_view(np.concatenate([t, t[: n // 2]]), n // 2 + 1)
        run = (partner[:, 1:] - t[:, None]).ravel()
        partner = sliding_window_view(np.concatenate([y, y[: n // 2]]), n // 2 + 1)
        rise = (partner[:, 1:] - y[:, None]).ravel()
    raise NotImplementedError


def _finite(t: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array]:
    t, y = np.asarray(t, dtype=np.float64), np.asarray(y, dtype=np.float64)
    kept = np.isfinite(t) & np.isfinite(y)
    return t[kept], y[kept]
