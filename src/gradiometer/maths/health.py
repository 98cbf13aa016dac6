"""How ill a gradient looks, from 0 to 1: severities against its own history, and one glance.

Health is for people to look at. A band around a tensor's own history calls a run that was broken
from its first step healthy, so no finding rests on it. What is called Esper's here is of the
gradient collector of that trainer, and kept so that its numbers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gradiometer.maths.trends import array

__all__ = [
    "DECADES",
    "Band",
    "State",
    "band",
    "concentration",
    "depth_imbalance",
    "exploding_severity",
    "has_exploding",
    "has_vanishing",
    "health",
    "imbalances",
    "robust_level",
    "scores",
    "severities",
    "state_of",
    "vanishing_severity",
]

Array = npt.NDArray[np.float64]
State = Literal["finite", "nonfinite", "missing", "frozen"]

DECADES = 6.0
"""Decades beyond its threshold where a severity is 1: 1e-8 and 1e-20 are different illnesses."""

BAND_SIGMAS = 5.0
"""Half width of the band. Tails are heavy: at 3σ a few hundred tensors flag one at every step."""

SIGMA_FLOOR = 0.1
"""Decades. A norm that hardly moved may first move by a quarter: the band is never below ×3."""

MIN_OBSERVATIONS = 20
"""The MAD of so many errs by a quarter, and the first steps of a run are its least typical."""

FALLBACK_LOW = 1e-10
"""Until there is a history. Healthy PPO passes under Esper's 1e-7: a clipped surrogate, an
advantage near 0, an entropy bonus of coefficient 1e-4 on a late policy. At this norm Adam's ε of
1e-8 leaves under 1 % of a step."""

FALLBACK_HIGH = 1e4
"""Until there is a history. Norms follow the scale of the reward: returns in the hundreds make a
squared value loss pass Esper's 100 in its first steps. Above this float16 gradients are near
their 65504."""

IMBALANCE_ALLOWANCE = 3.0
"""Decades between layers that cost nothing. Early layers are naturally smaller, and small initial
policy heads (gain 0.01) add two decades; AutoTrainer's ratio of 70 (1.85 decades) is for supervised
networks."""

IMBALANCE_SPAN = 3.0
"""Decades beyond the allowance until the imbalance is 1: at six in all the squares are twelve
apart, and a float32 norm over both no longer holds the smaller one."""

VANISHING_WEIGHT = 1.0
"""All tensors gone: nothing is learnt and nothing is left of health."""

EXPLODING_WEIGHT = 1.6
"""Vanishing wastes steps, this undoes them: Esper's 0.8 against 0.5, kept as a ratio."""

IMBALANCE_WEIGHT = 0.3
"""Worth a look, no more: Adam cancels a constant scale of each tensor."""


class Band(NamedTuple):
    """Norms between which a tensor is its usual self, each [P]."""

    low: Array
    high: Array


def vanishing_severity(norm: npt.ArrayLike, threshold: npt.ArrayLike) -> Array:
    """How far below its threshold τ a norm n is: clip((log10 τ − log10 n)/6, 0, 1).

    A norm of 0 has severity 1; one that is not finite has 0, being no small one.
    """
    return severities(_log10(norm), _log10(threshold), 0.0)[0]


def exploding_severity(norm: npt.ArrayLike, threshold: npt.ArrayLike) -> Array:
    """How far a norm n is above τ: clip((log10 n − log10 τ)/6, 0, 1); 1 when it is not finite."""
    return severities(_log10(norm), 0.0, _log10(threshold))[1]


def severities(
    log10_norm: Array, log10_low: Array | float, log10_high: Array | float
) -> tuple[Array, Array]:
    """Both of them, from logarithms."""
    finite = log10_norm < math.inf  # and no NaN
    log10_norm = np.where(finite, log10_norm, 0.0)
    vanishing = np.minimum(np.maximum((log10_low - log10_norm) / DECADES, 0.0), 1.0)
    exploding = np.minimum(np.maximum((log10_norm - log10_high) / DECADES, 0.0), 1.0)
    return np.where(finite, vanishing, 0.0), np.where(finite, exploding, 1.0)


def _log10(x: npt.ArrayLike) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(array(x))


def band(log10_history: npt.ArrayLike, count: npt.ArrayLike) -> Band:
    """Median ± 5 robust σ of log10 n_p over each tensor's history [T, P], `count` [P] rows long.

    Only the first `count` rows are read, so that a buffer may be longer than its content; NaNs and
    −inf (norms of 0) are left out. Below 20 observations the band is 1e-10 to 1e4.
    """
    history = array(log10_history)
    filled = np.arange(history.shape[0])[:, None] < array(count)
    median, sigma, seen = robust_level(np.where(filled, history, math.nan))
    known = seen >= MIN_OBSERVATIONS
    with np.errstate(over="ignore"):
        low = np.where(known, 10.0 ** (median - BAND_SIGMAS * sigma), FALLBACK_LOW)
        high = np.where(known, 10.0 ** (median + BAND_SIGMAS * sigma), FALLBACK_HIGH)
    return Band(low=low, high=high)


def robust_level(log10_history: npt.ArrayLike) -> tuple[Array, Array, npt.NDArray[np.intp]]:
    """Median, σ = max(1.4826 MAD, 0.1) and number of the finite values in each column of [T, P].

    A column without any has median NaN.
    """
    history = array(log10_history)
    history = np.where(np.isfinite(history), history, math.nan)
    seen = np.count_nonzero(~np.isnan(history), axis=0)
    median = _column_medians(history, seen)
    deviation = _column_medians(np.abs(history - median), seen)
    return median, np.fmax(1.4826 * deviation, SIGMA_FLOOR), seen


def _column_medians(x: Array, seen: npt.NDArray[np.intp]) -> Array:
    """Medians of each column without its NaNs: sorting puts them last; `nanmedian` is slow."""
    if x.shape[0] == 0:
        return np.full(x.shape[1], math.nan)
    ordered = np.sort(x, axis=0)
    columns = np.arange(x.shape[1])
    below, above = np.maximum(seen - 1, 0) // 2, np.minimum(seen // 2, x.shape[0] - 1)
    return array(0.5 * (ordered[below, columns] + ordered[above, columns]))


def depth_imbalance(layer_rms: npt.ArrayLike) -> float:
    """How unequal layers are: clip((log10(max/min) − 3)/3, 0, 1) over their RMS gradients [L].

    A layer of exactly 0 among others makes it 1, the limit of ever smaller ones; layers that are
    not finite are left out.
    """
    rms = array(layer_rms)
    rms = rms[np.isfinite(rms)]
    return float(imbalances(rms.min(), rms.max())) if rms.size else 0.0


def imbalances(smallest: npt.ArrayLike, largest: npt.ArrayLike) -> Array:
    """The same of several sets of layers, by their least and largest RMS gradient [B]; 0 of a set
    without any, where both are NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.log10(array(largest)) - np.log10(array(smallest))
        # fmax: a NaN, of no layers, becomes 0
        return np.minimum(np.fmax((decades - IMBALANCE_ALLOWANCE) / IMBALANCE_SPAN, 0.0), 1.0)


def health(
    vanishing: npt.ArrayLike,
    exploding: npt.ArrayLike,
    imbalance: float,
    *,
    any_nonfinite: bool,
    any_gradient: bool,
) -> float | None:
    """One glance at all tensors: max(0, 1 − mean vanishing − 1.6 mean exploding − 0.3 imbalance).

    Severities are [P], of the tensors that have a gradient. 0 when any element is not finite; None
    when there is no gradient at all, which is no sign of health.
    """
    v, e = array(vanishing), array(exploding)
    if not any_gradient or v.size == 0:
        return None
    return float(scores(v.mean(), e.mean(), imbalance, any_nonfinite))


def scores(
    vanishing: npt.ArrayLike,
    exploding: npt.ArrayLike,
    imbalance: npt.ArrayLike,
    nonfinite: npt.ArrayLike,
) -> Array:
    """The same for many blocks at once, from the mean severities of each, [B]."""
    loss = (
        VANISHING_WEIGHT * array(vanishing)
        + EXPLODING_WEIGHT * array(exploding)
        + IMBALANCE_WEIGHT * array(imbalance)
    )
    return np.where(nonfinite, 0.0, np.minimum(np.maximum(1.0 - loss, 0.0), 1.0))


def state_of(members: Iterable[State]) -> State:
    """The first of nonfinite, finite, missing that any member is in, otherwise frozen."""
    found = set(members)
    order: tuple[State, ...] = ("nonfinite", "finite", "missing")
    return next((state for state in order if state in found), "frozen")


def concentration(block_energies: npt.ArrayLike) -> float | None:
    """How evenly the squared norms e_b are spread over B blocks: −Σ p ln p / ln B with p = e/Σe.

    1 when all blocks are equal, 0 when one has everything; None for one block, no energy, or one
    that is not finite.
    """
    energies = array(block_energies)
    largest = float(energies.max()) if energies.size > 1 else 0.0
    if not 0.0 < largest < math.inf:  # a NaN is none of these
        return None
    share = energies / largest  # before the sum, which could overflow
    share = share[share > 0.0]
    share /= share.sum()
    return min(1.0, max(0.0, -float(share @ np.log(share)) / math.log(energies.size)))


def has_vanishing(norms: npt.ArrayLike, threshold: npt.ArrayLike = FALLBACK_LOW) -> bool:
    """Whether any norm has a vanishing severity: where this is so, health is below 1."""
    return bool(np.any(vanishing_severity(norms, threshold) > 0))


def has_exploding(norms: npt.ArrayLike, threshold: npt.ArrayLike = FALLBACK_HIGH) -> bool:
    """Whether any norm has an exploding severity: where this is so, health is below 1."""
    return bool(np.any(exploding_severity(norms, threshold) > 0))
