"""Whether the end of a noisy series lies above its start, whatever the shape of the way there.

A curve of rewards may rise at once and stand, creep, leap late or climb in stairs, and its noise
may be independent (evaluations), remember a hundred measurements (a mean over 100 episodes) or have
tails of a thousand times its median. One score for all of them:

    z = max over windows a, b of (mean of the last b − mean of the first a)/error(a, b),

with a from 1/40 to 1/2 and b from 1/10 to 1/2 of the series. The error is the smaller of two, each
of which is an upper bound where it applies:

- of a random walk, σ_d √(n − (a + b)/2), σ_d the spread of first differences. Any stationary noise
  and any average of it wanders less than that, so it holds however long the memory is;
- of stationary noise, √(σ²τ(1/a + 1/b)), where its memory τ is known to be short: from the residual
  of the best monotone curve, or within pieces of the run six times longer than τ. A moving average
  over w shows in its first differences, which have a correlation of −1/2 at lag w and nowhere else;
  then τ = w and σ² = w σ_d²/2, whatever the trend.

Tails are cut three spreads outside of the tenth and ninetieth percentile. The same is done with
ranks, for noise that grows with the reward; of fewer than 25 values, or 100 with tails, ranks alone
count. Where values have one sign and their noise is seen to grow with them, as the returns of a
task that ends when it fails, the same is done with their logarithms, whose noise is as large at the
start as at the end. `CERTAIN` was chosen on simulated flat series: `tests/maths/test_gains.py` has
the error rates; docs/mathematics.md has those of the states (`tests/doctor/test_state_rates.py`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradiometer.maths.trends import (
    Array,
    array,
    autocorrelation,
    autocorrelation_time,
    monotone,
    unbiased_phi,
)

__all__ = ["CERTAIN", "LIKELY", "MIN_VALUES", "Gain", "gain", "stands_apart", "without_tails"]

CERTAIN = 3.4
"""Of z: fewer than 2 % of flat series reach it, whatever their noise (tests)."""
CERTAIN_OF_MANY, MANY = 3.2, 60.0
"""The same where they are worth 60 independent values: the noise itself is known well."""
CERTAIN_OF_FEW, FEW = 4.5, 16
"""The same for fewer than 16 values, whose spread itself is a guess."""
NO_DOUBT = 1e9
"""z where there is no noise."""
LIKELY = 2.0
"""Of z: below, nothing speaks for a rise."""
MIN_VALUES = 8
MOST_VALUES = 2048
"""Longer series are averaged down to this: what is left has a shorter memory, too."""
STARTS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5)
ENDS = (0.1, 0.2, 0.35, 0.5)
TAILS = 3.0
FREE = 0.7
"""AR(1) coefficient of the noise, with 1.75 standard errors, below which it is known to forget."""
MIN_FREE = 25
"""Values from which that can be told; fewer must be independent, or beat a random walk."""
LONG = 800
"""Values from which a residual worth 12 independent ones shows the memory of the noise itself."""
APART, APART_OF_FEW = 6.0, 11.0
"""Spreads of a quiet half between start and end that no noise of that half makes; below 40."""
FORGETS = 0.4
"""AR(1) coefficient of a half that shows all of its noise."""
FEW_HALVES = 40
MIN_LEVELS = 5
"""Different values in a half: of two the spread says nothing."""
RATIO, GROWS = 4.0, 2.0
"""Of the largest value to the smallest, and of the noise at large values to that at the smallest
eighth: from there on a scale of ratios is asked too."""
HALF_LEVEL = 100
"""Below, the monotone curve takes up to a third of the variance of the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The end of a series against its start."""

    score: float
    """z, above `CERTAIN` where it rose."""
    start: float
    """Mean of the first measurements, as many as tell most."""
    end: float
    """Mean of the last ones."""
    error: float
    """Standard error of the difference of the first fifth and the last third."""
    noise: float
    """Standard deviation of one measurement about the course; NaN where its memory is unknown."""
    memory: float
    """Measurements that are worth an independent one; infinite where nobody can tell."""
    count: int

    @property
    def certain(self) -> bool:
        """Whether it rose, beyond what its noise does by itself."""
        if self.count >= MANY * self.memory:
            return self.score >= CERTAIN_OF_MANY
        return self.score >= (CERTAIN if self.count >= FEW else CERTAIN_OF_FEW)


def gain(
    values: npt.ArrayLike, *, independent: bool = False, window: float | None = None
) -> Gain | None:
    """The rise of a series [T]; None below 8 finite values. `independent`: each was measured anew;
    `window`: each is known to be a mean over what so many of them have seen.

    For a fall ask for the gain of −x.
    """
    x = array(values)
    x = x[np.isfinite(x)]
    if x.size < MIN_VALUES:
        return None
    memory = 1 if independent else None if window is None else math.ceil(window / _block(x))
    size = float(np.abs(x).max()) or 1.0  # squares of 1e±200 would leave the range of floats
    cut = without_tails(x / size)
    y = _shortened(cut)
    noise = _noise(y, memory)
    score, first, last = _best_windows(y, noise)
    ranks = _shortened(_ranks(x))
    by_rank = _best_windows(ranks, _noise(ranks, memory))
    edge = x.size // 10  # where a fast learner begins, or a late one ends, is no tail
    heavy = bool((cut != x / size)[edge : x.size - edge].any())
    if x.size < MIN_FREE or (x.size < HALF_LEVEL and heavy):
        score, first, last = by_rank
    elif x.size >= HALF_LEVEL and not noise.settles:
        score, first, last = max((score, first, last), by_rank)
    if x.size >= MIN_FREE and (ratios := _on_a_ratio_scale(y)) is not None:
        by_ratio = _best_windows(ratios, _noise(ratios, memory))
        score, first, last = max((score, first, last), by_ratio)
    if _without_noise(x):
        score = math.copysign(NO_DOUBT, float(x[-1] - x[0]))
    start, end = float(y[:first].mean()), float(y[-last:].mean())
    tau = noise.memory
    return Gain(
        score=score if end > start else min(score, 0.0),
        start=start * size,
        end=end * size,
        error=noise.error(max(1, y.size // 5), max(1, y.size // 3)) * size,
        noise=math.nan if noise.end is None else math.sqrt(noise.end) * size,
        memory=tau * x.size / y.size,
        count=x.size,
    )


def stands_apart(values: npt.ArrayLike) -> bool:
    """Whether one half is quiet about its own line, forgets at once, and start and end lie six of
    its spreads apart: a reward that leapt early or late and stands, which a random walk with its
    first differences could have done, and a noise like that of the half could not.
    """
    x = array(values)
    x = x[np.isfinite(x)]
    if x.size < MIN_FREE:
        return False
    way = float(x[-max(3, x.size // 10) :].mean() - x[: max(3, x.size // 5)].mean())
    needed = APART if x.size >= FEW_HALVES else APART_OF_FEW
    return any(_explains_little(half, way / needed) for half in np.array_split(x, 2))


def _explains_little(half: Array, most: float) -> bool:
    """Whether the noise of these values about their line forgets, and has at most that spread."""
    if np.unique(half).size < MIN_LEVELS:
        return False
    time = np.arange(half.size) - 0.5 * (half.size - 1)
    residual = half - half.mean() - time * float(time @ half) / float(time @ time)
    spread = float(residual.std()) * math.sqrt(half.size / (half.size - 2))
    stays = float(half.std()) <= 2.5 * most  # the line itself explains little of the way
    return spread <= most and stays and unbiased_phi(residual, free=2.0) <= FORGETS


def _without_noise(x: Array) -> bool:
    """Whether it goes one way only, over several levels."""
    steps = np.diff(x)
    one_way = bool((steps >= 0.0).all()) or bool((steps <= 0.0).all())
    return x.size >= FEW and one_way and int((steps != 0.0).sum()) >= 3


def without_tails(x: Array) -> Array:
    """x with what lies three spreads outside of its 10th and 90th percentile moved in there."""
    low, high = np.percentile(x, [10, 90])
    spread = high - low
    return np.clip(x, low - TAILS * spread, high + TAILS * spread) if spread > 0.0 else x


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """What moves a series that goes nowhere."""

    count: int
    start: float | None
    """Variance of one measurement at the start; None where the memory is not known."""
    end: float | None
    memory: float
    step: float
    """Variance of one step of the random walk that wanders as it does."""
    settles: bool
    """Whether the first half is much rougher than the second, as an average that still fills."""
    settling: float
    """What the first eighth moved beyond that: an average over few episodes settles."""
    wandering: float
    """Variance of what a tenth of the series falls below the one before."""

    def error(self, first: int, last: int) -> float:
        """Standard error of the mean of the last ones minus that of the first."""
        variance = self.step * (self.count - 0.5 * (first + last)) + self.settling
        if self.start is not None and self.end is not None:
            stationary = self.start * min(1.0, self.memory / first)
            stationary += self.end * min(1.0, self.memory / last)
            variance = min(variance, max(stationary, self.wandering))
        return math.sqrt(max(variance, 0.0))


def _best_windows(y: Array, noise: _Noise) -> tuple[float, int, int]:
    starts, ends = ([max(3, round(share * y.size)) for share in each] for each in (STARTS, ENDS))
    before = {first: float(y[:first].mean()) for first in starts}
    after = {last: float(y[-last:].mean()) for last in ends}
    best = (-math.inf, 1, 1)
    for first, last in itertools.product(starts, ends):
        if first + last > y.size:
            continue
        rise = after[last] - before[first]
        error = noise.error(first, last)
        score = rise / error if error > 0.0 else math.copysign(NO_DOUBT, rise) if rise else 0.0
        best = max(best, (score, first, last))
    return best


def _noise(y: Array, known_memory: int | None) -> _Noise:
    steps = np.diff(y)
    leaps = _without_leaps(steps)
    step, half, eighth = float(leaps.var()), leaps.size // 2, max(2, y.size // 8)
    # only what goes down again: a reward that leaps up at once has learned, not settled
    moved = 2.0 * float((np.minimum(steps[:eighth] - np.median(steps), 0.0) ** 2).sum())
    settling = max(0.0, moved - eighth * step)
    independent = known_memory == 1
    settles = not independent and float(leaps[:half].var()) > 4.0 * float(leaps[half:].var())
    window = _window(leaps) if known_memory is None else known_memory
    start, end, memory = None, None, math.inf
    if window > 1 and y.size >= 4 * window:
        start = end = 0.5 * window * step
        memory = float(window)
        settles = True
    else:
        known = [
            _around_monotone(y, leaps, independent=independent),
            _within_pieces(y, settles=settles),
        ]
        there = [each for each in known if each is not None]
        if there:
            start, end, memory = min(there, key=lambda each: each[0] * each[2])
    return _Noise(
        count=y.size,
        start=start if start is None or not settles else start + settling,
        end=end,
        memory=memory,
        step=step * max(1.0, _memory(_about_course(leaps))),
        settles=settles,
        settling=settling,
        wandering=_wandering(y),
    )


def _without_leaps(steps: Array) -> Array:
    """Differences about their median, cut at four robust spreads: a leap is no noise."""
    centred = steps - np.median(steps)
    spread = 1.4826 * float(np.median(np.abs(centred))) or float(centred.std())
    return array(np.clip(centred, -4.0 * spread, 4.0 * spread))


def _about_course(steps: Array) -> Array:
    """Differences without the slope of their eighth: a rise that bends is no memory."""
    if steps.size < HALF_LEVEL:
        return steps
    return np.concatenate([part - np.median(part) for part in np.array_split(steps, 8)])


def _window(steps: Array) -> int:
    """The length of the moving average that has these differences; 1 if it is none."""
    n = steps.size
    if n < 24 or not steps.any():
        return 1
    lags = np.arange(n // 2 + 1)
    rho = autocorrelation(steps)[: lags.size] * n / (n - lags)
    lag = int(np.argmin(rho[2:])) + 2
    return lag if rho[lag] < -0.3 and rho[lag] < -4.0 / math.sqrt(n - lag) else 1


def _memory(x: Array) -> float:
    phi = max(0.0, unbiased_phi(x, free=1.0))
    return max(autocorrelation_time(x), (1.0 + phi) / (1.0 - phi))


def _around_monotone(
    y: Array, steps: Array, *, independent: bool
) -> tuple[float, float, float] | None:
    """Variance at start and end and memory of what the best rising curve leaves."""
    n = y.size
    residual, levels = y - monotone(y), math.log(n) + 1.0
    phi = max(0.0, unbiased_phi(residual, free=levels))
    seen = autocorrelation_time(residual)
    tau = 1.0 if independent else max(seen, (1.0 + phi) / (1.0 - phi))
    phi = max(0.0, 1.0 + 2.0 * float(autocorrelation(steps)[1])) + 1.75 / math.sqrt(n)
    forgets = phi <= FREE
    if not ((independent or (n >= MIN_FREE and forgets)) and n >= 5.0 * tau):
        # an average is smooth, which no AR(1) process is: long enough, its memory shows itself
        tau = 2.0 * seen
        if n < LONG or n < 12.0 * tau:
            return None
    variance = max(float(residual.var()), 0.01 * float(y.var())) * n / max(n - levels * tau, n / 5)
    variance *= 1.5 if n < HALF_LEVEL else 1.0
    ends = [float(part.var()) for part in np.array_split(residual, 4)]
    return max(variance, ends[0]), max(variance, ends[-1]), tau


def _within_pieces(y: Array, *, settles: bool) -> tuple[float, float, float] | None:
    """The same of pieces of the run, the shortest that are six times longer than the memory."""
    if y.size < HALF_LEVEL:
        return None
    for count in (8, 4, 2, 1):
        pieces, length = np.array_split(y, count), y.size // count
        tau = float(np.median([_memory(piece) for piece in pieces]))
        if 6.0 * tau <= length:
            break
    if 8.0 * tau > y.size:
        return None
    variances = np.array([piece.var(ddof=1) for piece in pieces])
    # the piece with a leap in it says nothing about the noise
    kept = np.sort(variances)[:-1] if count >= 4 and length >= 12 else variances
    usual = max(float(kept.mean()), 0.02 * float(y.var()))
    unseen = 1.0 / max(1.0 - tau / length, 0.2)
    # what a fast learner gains in the first piece is no noise either
    learns = 1.5 * float((pieces[0] - monotone(pieces[0])).var())
    first = float(variances[0]) if settles else learns
    start, end = max(usual, first), max(usual, float(variances[-1]))
    return start * unseen, end * unseen, tau


def _wandering(y: Array) -> float:
    count = min(10, y.size // 3)
    if count < 2:
        return 0.0
    moved = np.diff([part.mean() for part in np.array_split(y, count)])
    falls = 2.0 * float((np.minimum(moved, 0.0) ** 2).sum()) / (count - 1)
    return max(falls, 0.5 * float(_without_leaps(moved).var())) if count > 3 else falls


def _on_a_ratio_scale(y: Array) -> Array | None:
    """±log|y| of values of one sign whose noise grows with their size; None of all others."""
    size = np.abs(y)
    if not (float(y.min()) > 0.0 or float(y.max()) < 0.0) or size.max() < RATIO * size.min():
        return None
    course = monotone(y)
    residual = (y - course)[np.argsort(course * np.sign(y), kind="stable")]
    small = max(4, y.size // 8)
    low, high = float(residual[:small].std()), float(residual[small:].std())
    return array(np.sign(y) * np.log(size)) if high >= GROWS * low else None


def _block(y: Array) -> int:
    """Values that are averaged into one, of a long series."""
    return -(-y.size // MOST_VALUES)


def _shortened(y: Array) -> Array:
    block = _block(y)
    count = y.size // block
    return y if block == 1 else y[y.size - count * block :].reshape(count, block).mean(axis=1)


def _ranks(x: Array) -> Array:
    """Ranks over their number; equal values share their mean rank."""
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    return array((np.cumsum(counts) - 0.5 * (counts - 1))[which] / x.size)
