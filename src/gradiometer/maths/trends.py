"""What a series of measurements does over time: level, drift, period, and what moves with it.

Gradient norms are strongly autocorrelated, and every textbook test of a trend assumes they are not.
Each verdict here therefore first asks how many independent observations the series is worth. Plain
numpy: the training loop imports this module, and `scipy.special` alone would add some 0.3 s to the
start of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

__all__ = [
    "EMA_START",
    "LEVEL",
    "Array",
    "Correlation",
    "Drift",
    "Period",
    "array",
    "autocorrelation",
    "autocorrelation_time",
    "correlation",
    "dominant_period",
    "drift",
    "ema_update",
    "finite_pairs",
    "is_flat",
    "monotone",
    "noise_time",
    "ordered",
    "theil_sen",
    "unbiased_phi",
]

Array = npt.NDArray[np.float64]

LEVEL = 0.01
"""A verdict may be wrong once in a hundred: a run has several blocks and is read often."""

MAX_PHI = 0.995
"""A memory of 200 measurements: nearer to 1 a window cannot tell, and whitening divides by 0."""

MIN_VALUES = 8
"""On fewer values Mann–Kendall hardly reaches the level: of 7, at most one pair of the 21 may be
out of order. Rank correlations are as coarse."""

MIN_DRIFT_DECADES = 0.3
"""A factor of two over the window: Adam cancels it, and nobody changes a run because of it."""

MAX_PAIRWISE = 512
"""Points above which all pairs are too many: half a series apart is where slopes are surest."""

MIN_EFFECTIVE = 5.0
"""Independent pairs below which there is no verdict: Fisher's test needs more than 3."""

EMA_START = (0.0, 0.0)
"""The state of an average that has seen nothing."""

MIN_PERIOD_POINTS = 32
"""Below this the whitening fit and the three cycles take most of what the series has."""

MIN_CYCLES = 3.0
"""What came back fewer than three times within the window is a bend, not a period."""

OVERSAMPLING = 2.0
"""Frequencies per independent one: a sine between two of them keeps 81 % of its power or more."""

MAX_PERIOD_POINTS = 1024
"""The waves are a matrix of points × points; this one has 16 MB."""

NEIGHBOURS = 12
"""Frequencies on each side that tell the level of the noise: wide enough to see past the peak of a
sine (± 2), narrow enough to follow what AR(1) does not fit (slow wandering under white noise, a
bent trend: wrong 22 % of the time without)."""


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
    """How many consecutive values are worth an independent one: τ = 1 + 2 Σ_{k≥1} ρ_k, ≥ 1.

    The sum ends with the first pair ρ_2m + ρ_2m+1 that is not positive (Geyer 1992, initial
    positive sequence). Counted in measurements, whatever their spacing; NaNs are dropped; a
    constant has τ = 1.
    """
    series = array(x)
    rho = autocorrelation(series[np.isfinite(series)])
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    ended = np.flatnonzero(pairs <= 0.0)
    return max(1.0, 2.0 * float(pairs[: ended[0] if ended.size else None].sum()) - 1.0)


def autocorrelation(x: Array) -> Array:
    """ρ_k of x [T] at lags 0 … T−1 (biased, so that it dies out); of a constant 1, 0, 0, …"""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A trend of a log-norm, and whether it is more than wandering."""

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
    """Spearman's ρ of two series, judged on how many independent observations they are worth."""

    rho: float
    p_value: float | None
    """None when both series wander so slowly that any two such series would correlate."""
    significant: bool
    num_effective: float


def ema_update(state: tuple[float, float], value: float, beta: float) -> tuple[float, float]:
    """One step of a bias-corrected average; the state is (mean, weight), and starts as `EMA_START`.

    w' = β w + (1−β), mean' = (β w mean + (1−β) x)/w'. A value that is not finite is left out: it
    would stay for ever.
    """
    mean, weight = state
    if not math.isfinite(value):
        return state
    kept = beta * weight
    weight = kept + (1.0 - beta)
    return (kept * mean + (1.0 - beta) * value) / weight, weight


def theil_sen(steps: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Median of the slopes (y_j − y_i)/(t_j − t_i) of all pairs; NaN with fewer than two points.

    Up to 29 % of the points may be anything. Points with a NaN are dropped. Above 512 points only
    the pairs half a series apart are used (Theil's incomplete method, 1950).
    """
    t, values = ordered(steps, y)
    half = t.size // 2
    if half == 0:
        return math.nan
    if t.size > MAX_PAIRWISE:
        return float(np.median((values[-half:] - values[:half]) / (t[-half:] - t[:half])))
    slopes = _differences(values)
    slopes /= _gaps((t - t[0]).tobytes())
    return float(np.median(slopes, overwrite_input=True))


def _differences(x: Array) -> Array:
    """x_i − x_j for all i > j, of x [T]: [T(T−1)/2]."""
    return (x[:, None] - x)[_below_diagonal(x.size)]


@lru_cache(maxsize=4)
def _below_diagonal(size: int) -> npt.NDArray[np.bool_]:
    return np.tri(size, k=-1, dtype=np.bool_)


@lru_cache(maxsize=1)
def _gaps(content: bytes) -> Array:
    """The differences of steps: the series of a run have them in common."""
    return _differences(np.frombuffer(content))


def drift(
    steps: npt.ArrayLike, log10_norms: npt.ArrayLike, *, min_effect: float = MIN_DRIFT_DECADES
) -> Drift | None:
    """Which way a log-norm goes over a window [T], and whether it is a trend; None below 8 points.

    The slope is Theil–Sen. The verdict is Mann–Kendall on the means of consecutive blocks at least
    2τ long, at least 8 of them, and needs `min_effect` decades of change over the window.
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
        blocks = y[y.size - num_blocks * length :].reshape(num_blocks, length)
        p_value = _mann_kendall(blocks.mean(axis=1))
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

    A straight line would not do: what it leaves of a bent or a sudden drift is smooth, reads as a
    long autocorrelation time, and the clearest drifts would get no verdict. The fit also takes away
    some of the noise, so τ is not let below that of the AR(1) process with the bias of ρ_1 undone,
    φ = (n ρ_1 + k)/(n − k − 2), k free parameters (Kendall 1954); a monotone fit to noise has about
    ln n + 1 levels.
    """
    residual = y - monotone(y if rising else -y) * (1.0 if rising else -1.0)
    if is_flat(residual, y):
        return 1.0
    phi = max(0.0, unbiased_phi(residual, free=math.log(y.size) + 1.0))
    return max(autocorrelation_time(residual), (1.0 + phi) / (1.0 - phi))


def monotone(y: Array) -> Array:
    """The non-decreasing series nearest to y in the mean square: neighbours are pooled."""
    means, sizes = _pooled(np.ascontiguousarray(y, dtype=np.float64).tobytes())
    return np.repeat(means, sizes)


@lru_cache(maxsize=64)
def _pooled(content: bytes) -> tuple[Array, npt.NDArray[np.int64]]:
    """The levels and how long each is; many rules ask for those of the same series."""
    means: list[float] = []
    sizes: list[int] = []
    for value in np.frombuffer(content).tolist():
        mean, size = value, 1
        while means and means[-1] >= mean:
            pooled = sizes.pop()
            mean = (mean * size + means.pop() * pooled) / (size + pooled)
            size += pooled
        means.append(mean)
        sizes.append(size)
    return np.array(means, dtype=np.float64), np.array(sizes, dtype=np.int64)


def _mann_kendall(x: Array) -> float:
    """Two-sided p of no monotone trend in independent x [n]: normal, corrected for ties.

    S = Σ_{i>j} sign(x_i − x_j), Var S = [n(n−1)(2n+5) − Σ_ties c(c−1)(2c+5)]/18.
    """
    n = x.size
    score = abs(float(np.sign(_differences(x)).sum()))
    ties = np.unique(x, return_counts=True)[1].astype(np.float64)
    tied = float((ties * (ties - 1) * (2 * ties + 5)).sum())
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18.0
    return math.erfc((score - 1.0) / math.sqrt(2.0 * variance)) if score > 1.0 else 1.0


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation | None:
    """Spearman's ρ of two series [T]; None if one is constant, or with fewer than 8 pairs.

    Two slow series correlate by chance, so T shrinks to n = T/(1 + 2 Σ_k (1 − k/T) ρ^x_k ρ^y_k)
    (Bayley and Hammersley 1946) and the test is Fisher's: atanh ρ · √((n − 3)/1.06).
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
    return Correlation(
        rho=rho, p_value=p_value, significant=significant, num_effective=num_effective
    )


def _ranks(x: Array) -> Array:
    """Centred ranks; equal values share their mean rank."""
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks = array((np.cumsum(counts) - 0.5 * (counts - 1))[which])
    return np.subtract(ranks, 0.5 * (x.size + 1))


def _num_effective(x: Array, y: Array) -> float:
    """Independent pairs that two series are worth; lags end where either autocorrelation does."""
    rho_x, rho_y = autocorrelation(x)[1:], autocorrelation(y)[1:]
    ended = np.flatnonzero((rho_x <= 0.0) | (rho_y <= 0.0))
    end = int(ended[0]) if ended.size else rho_x.size
    shrink = 1.0 - np.arange(1, end + 1) / x.size
    return x.size / (1.0 + 2.0 * float((shrink * rho_x[:end] * rho_y[:end]).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The strongest oscillation of a log-norm, and whether it stands out of red noise."""

    steps: float
    amplitude: float
    """Decades, from the middle to the crest."""
    p_value: float
    significant: bool


def dominant_period(steps: npt.ArrayLike, log10_norms: npt.ArrayLike) -> Period | None:
    """The strongest oscillation of a log-norm; None below 32 points or without variation.

    The series is whitened with its AR(1) fit, e_i = (x_i − φ^δ_i x_{i−1})/√(1 − φ^2δ_i), δ_i the
    gap in median gaps, so that red noise shows no peak and a stretched cadence is allowed. The
    Lomb–Scargle power of e (Zechmeister and Kürster 2009) is taken between three cycles in the
    window and half the median rate, and divided by the level around it where that is high. The
    period is good to a quarter of a cycle over the window. Of more than 1024 points the newest
    count.
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
    return Period(
        steps=1.0 / frequency, amplitude=amplitude, p_value=p_value, significant=p_value < LEVEL
    )


def _whitened(t: Array, x: Array) -> Array:
    """Innovations of the AR(1) process fitted to x [T]: [T−1], white whatever the gaps."""
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
    """Frequencies [K] and what each takes off the variance of x, where white noise is Exp(1)."""
    of = _waves(t.tobytes())
    x = x - x.mean()
    # einsum, not @: BLAS would wake its threads, which cost 10 ms beside a busy training loop.
    xc, xs = np.einsum("wkt,t->wk", of.waves, x)
    determinant = of.cc * of.ss - of.cs * of.cs
    # At half the sampling rate sine and cosine are one wave: no system of two to solve.
    two = determinant > 1e-3 * x.size * x.size / 4.0
    both = xc**2 * of.ss + xs**2 * of.cc - 2.0 * xc * xs * of.cs
    both /= np.where(two, determinant, 1.0)
    one = (xc**2 + xs**2) / (of.cc + of.ss)
    return of.frequencies, 0.5 * np.where(two, both, one) / (float(x @ x) / (x.size - 1))


class _Waves(NamedTuple):
    """The waves of all frequencies at some steps, and their products about their means, each
    [K]."""

    frequencies: Array
    waves: Array
    """Cosines and sines, [2, K, T]."""
    cc: Array
    ss: Array
    cs: Array


@lru_cache(maxsize=1)
def _waves(content: bytes) -> _Waves:
    """Of steps that the series of a run have in common, as bytes."""
    t = np.frombuffer(content)
    n = t.size
    spacing = 1.0 / (OVERSAMPLING * float(t[-1] - t[0]))
    first = math.ceil(MIN_CYCLES * OVERSAMPLING)
    last = int(0.5 / float(np.median(np.diff(t))) / spacing + 1e-6)
    last = min(last, int(OVERSAMPLING * n))  # bursts: no more frequencies than points tell apart
    # Powers of one wave are the waves of all frequencies, at a tenth of the price of as many sines.
    powers = np.vander(np.exp(2j * np.pi * spacing * t), last + 1, increasing=True)[:, first:].T
    waves = np.stack([powers.real, powers.imag])
    (c, s), (mean_c, mean_s) = waves, waves.mean(axis=2)
    return _Waves(
        frequencies=spacing * np.arange(first, last + 1, dtype=np.float64),
        waves=waves,
        cc=np.einsum("kt,kt->k", c, c) - n * mean_c**2,
        ss=np.einsum("kt,kt->k", s, s) - n * mean_s**2,
        cs=np.einsum("kt,kt->k", c, s) - n * mean_c * mean_s,
    )


def _level_around(power: Array) -> Array:
    """The noise at each frequency, by the median around it: 1 where the whitening was right."""
    padded = np.pad(power, NEIGHBOURS, mode="reflect")
    windows = sliding_window_view(padded, 2 * NEIGHBOURS + 1)
    return array(np.partition(windows, NEIGHBOURS, axis=1)[:, NEIGHBOURS] / math.log(2.0))


def _peak_probability(score: float, *, points: int, frequencies: int) -> float:
    """Chance that the highest of the frequencies reaches the score in white noise."""
    single = max(0.0, 1.0 - 2.0 * score / (points - 1)) ** (0.5 * (points - 3))
    return -math.expm1(frequencies * math.log1p(-single)) if single < 1.0 else 1.0


def _amplitude(t: Array, x: Array, frequency: float) -> float:
    """√(a² + b²) of the least-squares a cos + b sin."""
    angle = 2.0 * np.pi * frequency * t
    waves = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return math.hypot(*np.linalg.lstsq(waves, x, rcond=1e-6)[0].tolist())
