"""How much a gradient estimate varies from draw to draw, and between the instances.

R replicates of a gradient over the same instances, which are taken in units u of n_u instances.
g_ru is the gradient of unit u in replicate r, G_r = Σ n_u g_ru/N that of them all. A bar is a mean
over replicates. Per unit only two numbers are needed, so memory does not grow with instances, and
intervals resample units, never the few replicates:

    v_u = Σ_r ‖g_ru − ḡ_u‖²/(R − 1),      s_u = ‖ḡ_u‖²

Torch-free. Products of the G_r come from `maths.vectors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradiometer.maths.gram import MIN_UNITS, jackknife_width, sign_flip_p_value
from gradiometer.maths.means import StudentMean, student

__all__ = [
    "Interval",
    "SignalShare",
    "Units",
    "mean_cosine",
    "replicate_trace",
    "signal_share",
    "signal_sq",
    "variance_ratio",
]

Floats = NDArray[np.float64]
EXACT_REPLICATES = 12  # up to here all 2^(R-1) sign vectors are tried: 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval; no ends where there are too few units to tell."""

    value: float
    low: float | None = None
    high: float | None = None

    def over(self, divisor: float) -> Interval:
        """The same in another unit."""
        low, high = (None if end is None else end / divisor for end in (self.low, self.high))
        return Interval(value=self.value / divisor, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """What is left of units: counts n [U], within v [U], mean squares s [U], and ‖Ḡ‖² of all."""

    counts: Floats
    within: Floats
    mean_sq: Floats
    total_sq: float
    replicates: int

    @property
    def sampling_trace(self) -> Interval:
        """tr Cov of G over samples, the instances being fixed: Σ n_u² v_u/N²."""
        return _jackknifed(self.counts * self.within, self.counts).over(float(self.counts.sum()))

    @property
    def instance_trace(self) -> float | None:
        """tr Cov of G over instances, without that of samples; signed. None with one unit.

        Σ n_u ‖ḡ_u − Ḡ‖²/(U − 1) has expectation σ²_instance + Σ n_u v_u/(U R); divided by N it is
        of the mean.
        """
        units = len(self.counts)
        if units < 2:
            return None
        size = float(self.counts.sum())
        spread = float((self.counts * self.mean_sq).sum() - size * self.total_sq) / (units - 1)
        sampling = float((self.counts * self.within).mean()) / self.replicates
        return (spread - sampling) / size


def signal_sq(products: ArrayLike) -> float | None:
    """‖E G‖², unbiased, from products [R, R]: Σ_{r≠s} <G_r, G_s>/(R(R − 1)); None with one."""
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
    """tr Cov of one estimator over another's on the same units: a jackknife of its logarithm."""
    counts = first.counts
    above, below = counts**2 * first.within, counts**2 * second.within
    if not (above.sum() > 0 and below.sum() > 0):
        return Interval(value=float("nan"))
    value = math.log(above.sum() / below.sum())
    if len(counts) < MIN_UNITS:
        return Interval(value=math.exp(value))
    with np.errstate(divide="ignore", invalid="ignore"):
        without = np.log((above.sum() - above) / (below.sum() - below))
    return _around(value, jackknife_width(without))


def _around(logarithm: float, width: float) -> Interval:
    """An interval on a logarithm's scale; no ends where one unit has all the variance."""
    if not math.isfinite(width):
        return Interval(value=math.exp(logarithm))
    low, high = (math.exp(min(logarithm + end, 700.0)) for end in (-width, width))
    return Interval(value=math.exp(logarithm), low=low, high=high)


def _jackknifed(values: Floats, weights: Floats) -> Interval:
    """Σ w x/Σ w over units, x ≥ 0, with an interval that stays above zero."""
    value = float((weights * values).sum() / weights.sum())
    if len(values) < MIN_UNITS or not value > 0:
        return Interval(value=value)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = np.log(((weights * values).sum() - weights * values) / (weights.sum() - weights))
    return _around(math.log(value), jackknife_width(without))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalShare:
    """What replicates have in common: ‖E g‖² as a share of E‖g‖²."""

    share: StudentMean
    p_value: float
    """Of "their mean is zero", by sign flips."""

    @property
    def snr(self) -> float:
        """‖E g‖² over the noise's power."""
        return self.share.mean / (1.0 - self.share.mean) if self.share.mean < 1.0 else math.inf


def signal_share(vectors: ArrayLike) -> SignalShare:
    """Σ_{r≠s} <g_r, g_s>/(R(R − 1)) over the mean of ‖g_r‖², from the replicates [R, k]."""
    x = np.asarray(vectors, np.float64)
    products, count = x @ x.T, len(x)
    share = _share(products)
    left_out = [_share(np.delete(np.delete(products, r, 0), r, 1)) for r in range(count)]
    # Pseudo-values of the jackknife: their mean is unbiased to first order, their spread is that of
    # the estimate.
    pseudo = student([count * share - (count - 1) * other for other in left_out])
    shift = share - pseudo.mean
    low, high = (None if end is None else end + shift for end in (pseudo.low, pseudo.high))
    return SignalShare(
        share=StudentMean(mean=share, low=low, high=high, count=count),
        p_value=sign_flip_p_value(products, exact=EXACT_REPLICATES),
    )


def _share(products: Floats) -> float:
    count, power = len(products), float(np.trace(products))
    if power <= 0.0 or count < 2:
        return 0.0
    return (float(products.sum()) - power) / (count - 1) / power
