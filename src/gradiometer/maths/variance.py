"""How much a gradient estimate varies from one draw of its samples to the next, and between the instances it averages.

R replicates of a gradient over the same instances, which are taken in units u of n_u instances. g_ru is the gradient of
unit u in replicate r, G_r = Σ n_u g_ru/N that of them all. A bar is a mean over replicates. Per unit only two numbers
are needed, so memory does not grow with instances, and intervals resample units, never the few replicates:

    v_u = Σ_r ‖g_ru − ḡ_u‖²/(R − 1),      s_u = ‖ḡ_u‖²

Torch-free. Products of the G_r come from `maths.vectors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "MIN_UNITS",
    "Interval",
    "Units",
    "jackknife_width",
    "mean_cosine",
    "replicate_trace",
    "signal_sq",
    "variance_ratio",
]

Floats = NDArray[np.float64]
MIN_UNITS = 4
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval; no ends where there are too few units to tell."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """What is left of the units: counts n [U], within v [U], mean squares s [U], and ‖Ḡ‖² of them all."""

    counts: Floats
    within: Floats
    mean_sq: Floats
    total_sq: float
    replicates: int

    @property
    def sampling_trace(self) -> Interval:
        """tr Cov of G over samples, the instances being fixed: Σ n_u² v_u/N²."""
        per_instance = _jackknifed(self.counts * self.within, self.counts)
        size = float(self.counts.sum())
        return Interval(
            value=per_instance.value / size,
            low=None if per_instance.low is None else per_instance.low / size,
            high=None if per_instance.high is None else per_instance.high / size,
        )

    @property
    def instance_trace(self) -> float | None:
        """tr Cov of G over instances, samples averaged out; signed, for it is a difference. None with one unit.

        Σ n_u ‖ḡ_u − Ḡ‖²/(U − 1) has expectation σ²_instance + Σ n_u v_u/(U R); divided by N it is of the mean.
        """
        units = len(self.counts)
        if units < 2:
            return None
        size = float(self.counts.sum())
        spread = float((self.counts * self.mean_sq).sum() - size * self.total_sq) / (units - 1)
        sampling = float((self.counts * self.within).mean()) / self.replicates
        return (spread - sampling) / size


def signal_sq(products: ArrayLike) -> float | None:
    """‖E G‖² from the products of the replicates [R, R], unbiased: Σ_{r≠s} <G_r, G_s>/(R(R − 1)); None with one."""
    matrix = np.asarray(products, np.float64)
    count = len(matrix)
    return None if count < 2 else float((matrix.sum() - np.trace(matrix)) / (count * (count - 1)))


def replicate_trace(products: ArrayLike) -> float | None:
    """tr Cov of G from the replicates themselves: Σ_r ‖G_r − Ḡ‖²/(R − 1); None with one."""
    matrix = np.asarray(products, np.float64)
    count = len(matrix)
    return None if count < 2 else float((np.trace(matrix) - matrix.sum() / count) / (count - 1))


def mean_cosine(products: ArrayLike) -> float | None:
    """Mean cosine over pairs of replicates; None with one, or when a replicate is zero."""
    matrix = np.asarray(products, np.float64)
    lengths = np.sqrt(np.diagonal(matrix))
    if len(matrix) < 2 or not (lengths > 0).all():
        return None
    cosine = matrix / np.outer(lengths, lengths)
    return float(cosine[np.triu_indices(len(matrix), 1)].mean())


def variance_ratio(first: Units, second: Units) -> Interval:
    """tr Cov of one estimator over that of another on the same units: a jackknife of the logarithm over units."""
    counts = first.counts
    above, below = counts**2 * first.within, counts**2 * second.within
    if not (above.sum() > 0 and below.sum() > 0):
        return Interval(value=float("nan"), low=None, high=None)
    value = math.log(above.sum() / below.sum())
    if len(counts) < MIN_UNITS:
        return Interval(value=math.exp(value), low=None, high=None)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = np.log((above.sum() - above) / (below.sum() - below))
    return _around(value, jackknife_width(without))


def _around(logarithm: float, width: float) -> Interval:
    """An interval on the scale of the logarithm, of what is positive; no ends where one unit has all the variance."""
    if not math.isfinite(width):
        return Interval(value=math.exp(logarithm), low=None, high=None)
    low, high = (math.exp(min(logarithm + end, 700.0)) for end in (-width, width))
    return Interval(value=math.exp(logarithm), low=low, high=high)


def _jackknifed(values: Floats, weights: Floats) -> Interval:
    """Σ w x/Σ w over units, x ≥ 0, with an interval that stays above zero."""
    value = float((weights * values).sum() / weights.sum())
    if len(values) < MIN_UNITS or not value > 0:
        return Interval(value=value, low=None, high=None)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = np.log(((weights * values).sum() - weights * values) / (weights.sum() - weights))
    return _around(math.log(value), jackknife_width(without))


def jackknife_width(without: Floats) -> float:
    """Half of the 95 % interval, from the delete-one-unit values and Student's t."""
    from scipy.special import stdtrit  # 40 ms to import

    count = len(without)
    if not np.isfinite(without).all():
        return math.nan
    error = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) * error
