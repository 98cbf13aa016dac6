"""Gradient noise: its scale, which is how large a batch has to be before noise is as small as
signal, and the cosines that noise alone gives.

B_noise = tr Σ / |G|², from the squared norms of gradients at two batch sizes. Both terms are
unbiased and noisy, either can come out negative, and the mean of their ratios means nothing: they
are averaged over updates first, then divided.

Reference: McCandlish, Kaplan, Amodei et al. (2018), An Empirical Model of Large-Batch Training,
appendix A.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "MIN_COSINES",
    "CosineBand",
    "NoiseScale",
    "NoiseState",
    "SignalNoise",
    "cosine_band",
    "from_parts",
    "from_ranks",
    "noise_scale",
    "student_95",
    "two_point",
    "update",
]

MIN_UPDATES = 8
BETA = 0.95
MIN_COSINES = 20
COVERED = 0.95
NORMAL_95 = 1.6448536269514722  # the one-sided 95 % quantile of the normal distribution


class SignalNoise(NamedTuple):
    """|G|² and tr Σ per sample, of one update: unbiased, so either may be negative."""

    signal_sq: float
    noise_trace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseState:
    """Exponential means over updates, not yet divided by `weight`, the sum 1 − βⁿ of their weights.

    `weight_sq` is the sum of squared weights, and `ema_signal_sq` the mean of squares of |G|²:
    together they say how uncertain the mean signal is.
    """

    updates: int = 0
    weight: float = 0.0
    weight_sq: float = 0.0
    ema_signal: float = 0.0
    ema_noise: float = 0.0
    ema_signal_sq: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """B_noise, None while it cannot be told, and what it exceeds at about 95 %; both in the unit of
    the batches that were given."""

    value: float | None
    lower_bound: float | None
    updates: int


def two_point(small_sq: float, big_sq: float, small_batch: float, big_batch: float) -> SignalNoise:
    """|G|² and tr Σ from squared norms of gradients averaged over two batch sizes.

    E|G_B|² = |G|² + tr Σ/B at both sizes:
    |G|² = (B_b|G_b|² − B_s|G_s|²)/(B_b − B_s),    tr Σ = (|G_s|² − |G_b|²)/(1/B_s − 1/B_b)
    """
    if not 0 < small_batch < big_batch:
        raise ValueError(
            f"the batches must be 0 < small < big, found {small_batch} and {big_batch}."
        )
    signal_sq = (big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)
    noise_trace = (small_sq - big_sq) / (1 / small_batch - 1 / big_batch)
    return SignalNoise(signal_sq, noise_trace)


def from_parts(part_sq_norms: Sequence[float], mean_sq: float, part_batch: float) -> SignalNoise:
    """The same from m ≥ 2 independent parts of equal size: micro-batches, ranks or halves.

    `part_sq_norms` [m] are the |g_i|² of mean gradients over `part_batch` samples each, `mean_sq`
    is |Σ g_i/m|².
    """
    m = len(part_sq_norms)
    if m < 2:
        raise ValueError(
            f"noise shows between at least 2 parts, found {m}: split the batch into micro-batches."
        )
    return two_point(math.fsum(part_sq_norms) / m, mean_sq, part_batch, m * part_batch)


def from_ranks(
    own_sq: float,
    average_sq: float,
    *,
    ranks: int,
    parts: int,
    averaged: int,
    part_batch: float,
) -> SignalNoise:
    """The same from a rank's own gradient, as its last backward left it, and the average.

    A step is `parts` backward passes of `part_batch` samples on each of R ranks. In the rank's own
    gradient g the first `averaged` of them were averaged over the ranks already (0 inside no_sync).
    With m parts, a of them averaged, and the variance V = tr Σ/B of one:

    E|g|² = m²|G|² + V (m − a + a/R),    E|ḡ|² = m²|G|² + V m/R
    """
    alone = parts - averaged
    if ranks < 2 or alone < 1 or averaged < 0:
        raise ValueError(
            "a rank's own gradient needs another rank and a part that is not averaged, found"
            f" {ranks} ranks and {averaged} of {parts} parts averaged."
        )
    variance = (own_sq - average_sq) / (alone * (1 - 1 / ranks))
    signal_sq = (average_sq - variance * parts / ranks) / parts**2
    return SignalNoise(signal_sq, variance * part_batch)


def update(
    state: NoiseState, signal_sq: float, noise_trace: float, beta: float = BETA
) -> NoiseState:
    """The state after one more pair; a pair that is not finite leaves it as it was."""
    if not (math.isfinite(signal_sq) and math.isfinite(noise_trace)):
        return state

    def ema(old: float, new: float) -> float:
        return beta * old + (1 - beta) * new

    return NoiseState(
        updates=state.updates + 1,
        weight=ema(state.weight, 1.0),
        weight_sq=beta**2 * state.weight_sq + (1 - beta) ** 2,
        ema_signal=ema(state.ema_signal, signal_sq),
        ema_noise=ema(state.ema_noise, noise_trace),
        ema_signal_sq=ema(state.ema_signal_sq, signal_sq**2),
    )


def noise_scale(state: NoiseState) -> NoiseScale:
    """B_noise = mean tr Σ / mean |G|², from 8 updates on; a HIGH value asks for larger batches.

    No value while either mean is ≤ 0. The lower bound needs only the noise to be positive: |G|² ≤
    max(mean, 0) + t·se at 95 %, so B_noise ≥ mean tr Σ / (max(mean |G|², 0) + t·se). Measured, it
    is wrong in 0 to 6 % of runs. "B_noise is at least the batch" would be no bound: |G|² comes out
    negative by chance at any noise scale.
    """
    if state.updates < MIN_UPDATES or state.ema_noise <= 0:
        return NoiseScale(value=None, lower_bound=None, updates=state.updates)
    signal, noise = state.ema_signal / state.weight, state.ema_noise / state.weight
    # |G|² is never negative, so a mean far below 0 is bad luck and no evidence of even more noise:
    # hence the max.
    largest_signal = max(signal, 0.0) + signal_margin(state)
    return NoiseScale(
        value=noise / signal if signal > 0 else None,
        lower_bound=noise / largest_signal if largest_signal > 0 else None,
        updates=state.updates,
    )


def cosine_band(cosines: ArrayLike) -> float | None:
    """Half width of the band around 0 that holds 95 % of cosines between gradients of noise alone.

    For noise of covariance Σ such a cosine has the variance tr Σ²/(tr Σ)², one over the effective
    dimension. A policy of 5,000 weights may have 5 of them, and no look at the elements of one
    gradient tells. But cosines of consecutive steps do: what they have in common is signal, and
    what is new from one to the next is noise. With z = atanh(cos), whose spread hardly depends on
    the signal (Fisher), the half width is tanh of the 95 % quantile of |z_t − z_{t−1}|/√2.

    `cosines` are of consecutive measurements, oldest first. None for fewer than 20. The quantile is
    the ⌈0.95 (n + 1)⌉-th of n, so that the coverage is right for few of them too.
    """
    found = np.asarray(cosines, dtype=np.float64)
    return CosineBand(max(len(found), 1), found.tolist()).half_width()


class CosineBand:
    """The same of the last `length` cosines, kept in order as they come."""

    def __init__(self, length: int, cosines: Iterable[float] = ()) -> None:
        self.cosines: deque[float] = deque(maxlen=length)
        self._steps: deque[float] = deque()
        self._ordered: list[float] = []
        """The steps |z_t − z_{t−1}|, smallest first."""
        for cosine in cosines:
            self.add(cosine)

    def add(self, cosine: float) -> None:
        """The next one; the oldest goes."""
        if self.cosines:
            step = abs(_fisher(cosine) - _fisher(self.cosines[-1]))
            step = math.inf if math.isnan(step) else step  # it has a place in an order
            self._steps.append(step)
            insort(self._ordered, step)
        self.cosines.append(cosine)
        if len(self._steps) >= len(self.cosines):
            del self._ordered[bisect_left(self._ordered, self._steps.popleft())]

    def half_width(self) -> float | None:
        """That of `cosine_band`."""
        if len(self.cosines) < MIN_COSINES:
            return None
        number = len(self._ordered)
        place = min(math.ceil(COVERED * (number + 1)), number) - 1
        return math.tanh(self._ordered[place] / math.sqrt(2))


def _fisher(cosine: float) -> float:
    bound = 1.0 - sys.float_info.epsilon
    return math.atanh(min(max(cosine, -bound), bound))


def signal_margin(state: NoiseState) -> float:
    """t·se of the mean signal, updates being independent: se² = v Σw², v the weighted variance."""
    sum_sq = state.weight_sq / state.weight**2
    if sum_sq >= 1:  # β = 0 keeps one update, and one has no spread
        return math.inf
    spread = max(state.ema_signal_sq / state.weight - (state.ema_signal / state.weight) ** 2, 0.0)
    variance = spread / (1 - sum_sq)
    return student_95(1 / sum_sq - 1) * math.sqrt(variance * sum_sq)


def student_95(freedom: float) -> float:
    """Student's one-sided 95 % quantile, by Fisher's expansion; within 0.2 % from 6 freedoms on.

    Importing scipy.stats for it would cost the training loop a second.
    """
    z, v = NORMAL_95, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
