"""Two modules side by side: a grafted one, the seed, in a host; and why the seed's gradient is the smaller one.

An intensity is ‖g‖/√P, the RMS element of a module's gradient, so that modules of different size can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gradiometer.maths.health import BAND_SIGMAS, MIN_OBSERVATIONS, robust_level

__all__ = ["PairReading", "Verdict", "ratio", "read_pair"]

Array = npt.NDArray[np.float64]
Verdict = Literal["balanced", "dormant", "saturated", "host-learning-fast", "loss-not-reaching", "not-measured"]

EPSILON = 1e-8
"""The source's, added to the host's intensity: a host that stands still does not make the ratio infinite."""

MAX_RATIO = 10.0
"""The source's clamp: beyond it the ratio says that the host stands still, and how much says nothing."""

LOW_RATIO = 0.1
"""Below it the host learns ten times as hard as the seed (the source's `host_dominating`)."""

SILENT_RATIO = 0.01
"""Below it the seed counts as silent rather than small (the source's `seed_is_dormant`). It only changes the words."""

MOVE_DECADES = 1.0
"""What the modules must move apart to have moved: log-norms wander by some tenths, and `LOW_RATIO` is a decade too."""

ACTIVE_SHARE = 0.1
"""Share of earlier steps at a comparable level, at least 3, that make a seed one that was active: a spike is none."""

MIN_ACTIVE = 3
"""Fewer active steps are a spike in any history."""

TINY = 1e-300
"""Stands for an intensity of 0 in logarithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReading:
    """Seed against host now, and what a low ratio comes from."""

    ratio: float | None
    """None when there is nothing to compare."""
    verdict: Verdict
    reason: str
    seed_intensity: float | None
    host_intensity: float | None


def ratio(seed_norm: float, seed_count: int, host_norm: float, host_count: int) -> float:
    """(‖g_s‖/√P_s)/(‖g_h‖/√P_h + 1e-8), at most 10."""
    for name, count in (("seed", seed_count), ("host", host_count)):
        if count < 1:
            raise ValueError(f"the {name} has {count} parameters; a ratio needs at least one in each module")
    return _ratio(seed_norm / math.sqrt(seed_count), host_norm / math.sqrt(host_count))


def _ratio(seed_intensity: float, host_intensity: float) -> float:
    return min(seed_intensity / (host_intensity + EPSILON), MAX_RATIO)


def read_pair(seed_history: npt.ArrayLike, host_history: npt.ArrayLike, *, seed_reached: bool) -> PairReading:
    """Why the seed's gradient is small beside the host's, from their intensities [T] at the measured steps, now last.

    NaN stands for a step without a measurement. A ratio below 0.1 is, in this order: `loss-not-reaching` (no path in the
    graph), `saturated` (was comparable to the host, and fell by a decade or most of one), `host-learning-fast` (was
    comparable, and the host rose), `balanced` after all (was comparable, and neither has moved), `dormant` (never was).
    """
    seed, host = _aligned(seed_history, host_history)
    seed_now, host_now = _now(seed), _now(host)
    if host_now is None or (seed_now is None and seed_reached):
        what = "the host" if seed_now is not None else "the seed" if host_now is not None else "either module"
        return _reading(seed_now, host_now, "not-measured", f"There is no finite measurement of {what} at this step.")
    if seed_now is None:
        return _reading(None, host_now, "loss-not-reaching", "No path leads from the loss to the seed.")
    if seed_now == 0.0 and host_now == 0.0 and seed_reached:
        return _reading(seed_now, host_now, "not-measured", "Both gradients are 0 at this step: nothing to compare.")
    now = _ratio(seed_now, host_now)
    if now >= LOW_RATIO:
        return _reading(seed_now, host_now, "balanced", f"The seed's intensity is {now:.2g} of the host's.")
    if not seed_reached:
        return _reading(seed_now, host_now, "loss-not-reaching", "No path leads from the loss to the seed.")
    kept = np.isfinite(seed[:-1]) & np.isfinite(host[:-1])
    return _reading(seed_now, host_now, *_explain(seed_now, host_now, seed[:-1][kept], host[:-1][kept]))


def _explain(seed_now: float, host_now: float, seed: Array, host: Array) -> tuple[Verdict, str]:
    """Verdict and reason of a low ratio from the earlier intensities of both [T]."""
    active = seed >= LOW_RATIO * (host + EPSILON)
    was_active = np.count_nonzero(active) >= max(MIN_ACTIVE, ACTIVE_SHARE * seed.size)
    now = _ratio(seed_now, host_now)
    if was_active:
        fall = _median_log(seed[active]) - _log(seed_now)
        rise = _log(host_now) - _median_log(host[active])
        moved = fall + rise > MOVE_DECADES
        if fall > MOVE_DECADES or (moved and fall > rise):
            how = f"by {fall:.1f} decades" if seed_now > 0.0 else "to 0"
            return "saturated", f"The seed was as active as the host and has fallen {how}."
        if moved or _far_above(host_now, host):
            return "host-learning-fast", f"The host rose by {rise:.1f} decades; the seed is near its usual level."
        return "balanced", f"The ratio is {now:.2g}, a little low; neither module has left its usual level."
    size = "next to nothing beside" if now < SILENT_RATIO else "less than a tenth of"
    earlier = f"and hardly ever was more in {seed.size} earlier steps" if seed.size else "at the first measured step"
    return "dormant", f"The seed's gradient is {size} the host's, {earlier}."


def _far_above(now: float, history: Array) -> bool:
    """Whether a module is more than 5 robust σ above its own history, in log10; not before 20 measurements."""
    median, sigma, seen = robust_level(np.log10(history[history > 0.0])[:, None])
    return bool(seen[0] >= MIN_OBSERVATIONS and _log(now) > float(median[0] + BAND_SIGMAS * sigma[0]))


def _log(x: float) -> float:
    return math.log10(max(x, TINY))


def _median_log(x: Array) -> float:
    return _log(float(np.median(x)))


def _now(history: Array) -> float | None:
    return float(history[-1]) if history.size and math.isfinite(history[-1]) else None


def _aligned(seed_history: npt.ArrayLike, host_history: npt.ArrayLike) -> tuple[Array, Array]:
    seed, host = np.asarray(seed_history, dtype=np.float64), np.asarray(host_history, dtype=np.float64)
    if seed.shape != host.shape or seed.ndim != 1:
        raise ValueError(
            f"the histories of seed and host must be one series each, step by step; got shapes {seed.shape} and "
            f"{host.shape}. Put NaN where a module was not measured"
        )
    return seed, host


def _reading(seed: float | None, host: float | None, verdict: Verdict, reason: str) -> PairReading:
    value = None if seed is None or host is None or verdict == "not-measured" else _ratio(seed, host)
    return PairReading(ratio=value, verdict=verdict, reason=reason, seed_intensity=seed, host_intensity=host)
