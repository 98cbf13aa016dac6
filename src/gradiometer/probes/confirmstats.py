"""Few numbers, honestly: means over seeds or units with Student's interval, and how much of a vector is the same each time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LEVEL", "MIN_SAMPLES", "Estimate", "Signal", "signal_of", "student"]

LEVEL = 0.05
"""Intervals are of 95 %."""
MIN_SAMPLES = 4
"""Below, Student's quantile is above 4 and the spread itself a guess: no interval."""
MOST_FLIPS = 12
"""Vectors up to which every pattern of signs is tried (2048 of them); with more, that many random ones."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its interval, which is missing below 4 samples."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What vectors of the same law have in common: ‖E g‖² as a share of E‖g‖²."""

    share: Estimate
    p_value: float
    """Of "their mean is zero", by sign flips."""

    @property
    def snr(self) -> float:
        """‖E g‖² over the noise's power."""
        return self.share.mean / (1.0 - self.share.mean) if self.share.mean < 1.0 else math.inf


def student(values: npt.ArrayLike, *, tests: int = 1) -> Estimate:
    """The mean of independent values [n] with x̄ ± t s/√n; with several `tests` each interval is wider (Bonferroni)."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < MIN_SAMPLES or not np.isfinite(x).all():
        return Estimate(mean=float(x.mean()) if len(x) else math.nan, low=None, high=None, count=len(x))
    width = _quantile(len(x) - 1, tests) * float(x.std(ddof=1)) / math.sqrt(len(x))
    mean = float(x.mean())
    return Estimate(mean=mean, low=mean - width, high=mean + width, count=len(x))


def signal_of(vectors: Sequence[npt.ArrayLike]) -> Signal:
    """Of R independent vectors [R, k]: Σ_{i≠j}<g_i, g_j>/(R(R−1)) over the mean of ‖g_i‖², with a jackknife interval."""
    x = np.asarray(vectors, dtype=np.float64)
    gram = x @ x.T
    left_out = [_share(np.delete(np.delete(gram, i, 0), i, 1)) for i in range(len(x))]
    share = _share(gram)
    # Pseudo-values of the jackknife: their mean is unbiased to first order, their spread is that of the estimate.
    pseudo = student([len(x) * share - (len(x) - 1) * other for other in left_out])
    shift = share - pseudo.mean
    low, high = (None if end is None else end + shift for end in (pseudo.low, pseudo.high))
    estimate = Estimate(mean=share, low=low, high=high, count=len(x))
    return Signal(share=estimate, p_value=_flip_p(gram))


def _share(gram: Array) -> float:
    count, power = len(gram), float(np.trace(gram))
    if power <= 0.0 or count < 2:
        return 0.0
    return (float(gram.sum()) - power) / (count - 1) / power


def _flip_p(gram: Array) -> float:
    """The share of sign patterns c whose c'Gc is at least that of no flip."""
    count = len(gram)
    if count <= MOST_FLIPS:
        signs = np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=count - 1)])
    else:
        random = np.random.default_rng(0).choice((1.0, -1.0), size=(2 ** (MOST_FLIPS - 1) - 1, count))
        signs = np.concatenate([np.ones((1, count)), random])
    sums = np.einsum("ni,ij,nj->n", signs, gram, signs)
    return float(np.mean(sums >= sums[0] * (1.0 - 1e-12)))


def _quantile(freedom: int, tests: int) -> float:
    from scipy.special import stdtrit  # 40 ms to import

    return float(stdtrit(freedom, 1.0 - LEVEL / 2.0 / tests))
