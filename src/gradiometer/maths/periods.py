"""Oscillation: the dominant period of a log-norm, told from the wandering of an autocorrelated series.

Plain numpy: the training loop imports this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from gradiometer.maths.series import LEVEL, MAX_PHI, Array, array, is_flat, ordered, unbiased_phi

__all__ = ["Period", "dominant_period"]

MIN_PERIOD_POINTS = 32
"""Below this the whitening fit and the three cycles take most of what the series has."""

MIN_CYCLES = 3.0
"""What came back fewer than three times within the window is a bend, not a period."""

OVERSAMPLING = 2.0
"""Frequencies per independent frequency: the peak of a sine between two of them keeps 81 % of its power or more."""

MAX_PERIOD_POINTS = 1024
"""The waves are a matrix of points × points; this one has 16 MB."""

NEIGHBOURS = 12
"""Frequencies on each side that tell the level of the noise: wide enough to see past the peak of a sine (± 2), narrow
enough to follow what AR(1) does not fit (slow wandering under white noise, a bent trend: wrong 22 % of the time without)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The strongest oscillation of a log-norm, and whether it stands out of red noise."""

    steps: float
    amplitude: float
    """Decades, from the middle to the crest."""
    p_value: float
    significant: bool


def dominant_period(steps: npt.ArrayLike, log10_norms: npt.ArrayLike) -> Period | None:
    """The strongest oscillation of a log-norm without its linear trend; None below 32 points or without variation.

    The series is whitened with its AR(1) fit, e_i = (x_i − φ^δ_i x_{i−1})/√(1 − φ^2δ_i), δ_i the gap in median gaps, so
    that red noise shows no peak and a stretched cadence is allowed. The Lomb–Scargle power of e (Zechmeister and Kürster
    2009) is taken between three cycles in the window and half the median rate, and divided by the level around it where
    that is high. The period is good to a quarter of a cycle over the window. Of more than 1024 points the newest count.
    """
    t, y = ordered(steps, log10_norms)
    t, y = t[-MAX_PERIOD_POINTS:] - t[-1:], y[-MAX_PERIOD_POINTS:]
    if t.size < MIN_PERIOD_POINTS:
        return None
    x = y - y.mean()
    time = t - t.mean()
    x -= (x @ time) / (time @ time) * time
    if is_flat(x, y):
        return None
    white = _whitened(t, x)
    frequencies, power = _lomb_scargle(t[1:], white)
    score = power / np.maximum(_level_around(power), 1.0)
    peak = int(np.argmax(score))
    p_value = _peak_probability(float(score[peak]), points=white.size, frequencies=score.size)
    frequency = float(frequencies[peak])
    amplitude = _amplitude(t, x, frequency)
    return Period(steps=1.0 / frequency, amplitude=amplitude, p_value=p_value, significant=p_value < LEVEL)


def _whitened(t: Array, x: Array) -> Array:
    """Innovations of the AR(1) process fitted to x [T]: [T−1], white and of one variance whatever the gaps."""
    gap = np.diff(t)
    gap /= np.median(gap)
    phi = unbiased_phi(x, free=2.0)
    if phi <= 0.0:  # to and fro is what we are looking for, not a background to take away
        return x[1:]
    memory = _phi_of_gaps(phi, gap) ** gap
    return array((x[1:] - memory * x[:-1]) / np.sqrt(1.0 - memory * memory))


def _phi_of_gaps(rho: float, gap: Array) -> float:
    """φ in (0, 1) with mean(φ^gap) = ρ: for even gaps ρ itself, otherwise by bisection."""
    if float(np.ptp(gap)) < 1e-9:
        return rho
    low, high = 0.0, MAX_PHI
    for _ in range(24):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(np.mean(middle**gap)) < rho else (low, middle)
    return low


def _lomb_scargle(t: Array, x: Array) -> tuple[Array, Array]:
    """Frequencies [K] and what a sine of each takes off the variance of x, in units where white noise is Exp(1)."""
    n = x.size
    spacing = 1.0 / (OVERSAMPLING * float(t[-1] - t[0]))
    first, last = math.ceil(MIN_CYCLES * OVERSAMPLING), int(0.5 / float(np.median(np.diff(t))) / spacing + 1e-6)
    last = min(last, int(OVERSAMPLING * n))  # bursts with long pauses: no more frequencies than points can tell apart
    # Powers of one wave are the waves of all frequencies, at a tenth of the price of as many sines.
    waves = np.vander(np.exp(2j * np.pi * spacing * t), last + 1, increasing=True)[:, first:]
    x = x - x.mean()
    # einsum, not @: BLAS would wake its threads for this, which cost 10 ms beside a busy training loop.
    xw = np.einsum("t,tk->k", x, waves)
    mean = waves.mean(axis=0)
    square = np.einsum("tk,tk->k", waves, waves)
    cc = 0.5 * (n + square.real) - n * mean.real**2
    ss = 0.5 * (n - square.real) - n * mean.imag**2
    cs = 0.5 * square.imag - n * mean.real * mean.imag
    determinant = cc * ss - cs * cs
    # At half the sampling rate sine and cosine are one wave: no system of two to solve.
    two = determinant > 1e-3 * n * n / 4.0
    both = (xw.real**2 * ss + xw.imag**2 * cc - 2.0 * xw.real * xw.imag * cs) / np.where(two, determinant, 1.0)
    one = (xw.real**2 + xw.imag**2) / (cc + ss)
    power = 0.5 * np.where(two, both, one) / (float(x @ x) / (n - 1))
    return spacing * np.arange(first, last + 1, dtype=np.float64), power


def _level_around(power: Array) -> Array:
    """Level of the noise at each frequency from the median of its neighbours: 1 where the whitening was right."""
    padded = np.pad(power, NEIGHBOURS, mode="reflect")
    return array(np.median(sliding_window_view(padded, 2 * NEIGHBOURS + 1), axis=1) / math.log(2.0))


def _peak_probability(score: float, *, points: int, frequencies: int) -> float:
    """Chance that the highest of the frequencies reaches the score in white noise of unknown variance."""
    single = max(0.0, 1.0 - 2.0 * score / (points - 1)) ** (0.5 * (points - 3))
    return -math.expm1(frequencies * math.log1p(-single)) if single < 1.0 else 1.0


def _amplitude(t: Array, x: Array, frequency: float) -> float:
    """√(a² + b²) of the least-squares a cos + b sin."""
    angle = 2.0 * np.pi * frequency * t
    waves = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return math.hypot(*np.linalg.lstsq(waves, x, rcond=1e-6)[0].tolist())
