"""A series of measurements as it comes: steps out of order, NaNs, and values that remember the ones before.

Plain numpy: the training loop imports this module.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = [
    "LEVEL",
    "MAX_PHI",
    "Array",
    "array",
    "autocorrelation",
    "autocorrelation_time",
    "finite_pairs",
    "is_flat",
    "ordered",
    "unbiased_phi",
]

Array = npt.NDArray[np.float64]

LEVEL = 0.01
"""A verdict may be wrong once in a hundred: a run has a handful of blocks and is read a few dozen times."""

MAX_PHI = 0.995
"""A memory of 200 measurements. Nearer to 1 a window cannot tell, and the whitening would divide by zero."""


def array(x: npt.ArrayLike) -> Array:
    """Whatever holds numbers, in float64."""
    return np.asarray(x, dtype=np.float64)


def finite_pairs(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array]:
    """Two series of one length, without the places where either is not finite."""
    a, b = array(x), array(y)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"two series of one length are needed, got shapes {a.shape} and {b.shape}")
    kept = np.isfinite(a) & np.isfinite(b)
    return a[kept], b[kept]


def ordered(steps: npt.ArrayLike, values: npt.ArrayLike) -> tuple[Array, Array]:
    """The points without a NaN, by step; of two at one step (a resumed run) the later one."""
    t, y = finite_pairs(steps, values)
    if not np.all(t[1:] > t[:-1]):
        order = np.argsort(t, kind="stable")
        t, y = t[order], y[order]
        last = np.append(t[1:] > t[:-1], True)[: t.size]
        t, y = t[last], y[last]
    return t, y


def autocorrelation_time(x: npt.ArrayLike) -> float:
    """How many consecutive values are worth one independent value: τ = 1 + 2 Σ_{k≥1} ρ_k, at least 1.

    The sum ends with the first pair ρ_2m + ρ_2m+1 that is not positive (Geyer 1992, initial positive sequence). Counted
    in measurements, whatever their spacing; NaNs are dropped; a constant has τ = 1.
    """
    series = array(x)
    rho = autocorrelation(series[np.isfinite(series)])
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    ended = np.flatnonzero(pairs <= 0.0)
    return max(1.0, 2.0 * float(pairs[: ended[0] if ended.size else None].sum()) - 1.0)


def autocorrelation(x: Array) -> Array:
    """ρ_k of x [T] at lags 0 … T−1 (biased estimate, so that it dies out); of a constant 1, 0, 0, …"""
    centred = x - x.mean() if x.size else x
    if x.size < 2 or is_flat(centred, x):
        return array(np.eye(1, max(2, x.size))[0])
    padded = 1 << (2 * x.size - 1).bit_length()
    covariance = np.fft.irfft(np.abs(np.fft.rfft(centred, n=padded)) ** 2)[: x.size]
    return array(covariance / covariance[0])


def is_flat(residual: Array, x: Array) -> bool:
    """Whether what is left of x is rounding error."""
    return float(np.abs(residual).max()) <= 1e-12 * float(np.abs(x).max())


def unbiased_phi(residual: Array, *, free: float) -> float:
    """ρ_1 of a residual [n] with the bias of fitting `free` parameters undone, at most 0.995."""
    n = residual.size
    centred = residual - residual.mean()
    power = float(centred @ centred)
    if not 0.0 < power < math.inf:  # too small, or too large, to be squared
        return 0.0
    rho = float(centred[1:] @ centred[:-1]) / power
    if rho <= 0.0:
        return rho
    return min((n * rho + free) / max(n - free - 2.0, 1.0), MAX_PHI)
