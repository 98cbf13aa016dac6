"""Two modules side by side: a grafted one, the seed, in a host; and why the seed's is smaller.

An intensity is ‖g‖/√P, the RMS element of a module's gradient, so that modules of different size
can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gradiometer.maths.health import BAND_SIGMAS, MIN_OBSERVATIONS, robust_level
from gradiometer.maths.trends import Array, array

__all__ = ["PairReading", "Verdict", "ratio", "read_pair"]

Verdict = Literal[
    "balanced", "dormant", "saturated", "host-learning-fast", "loss-not-reaching", "not-measured"
]

EPSILON = 1e-8
"""Esper's, added to the host's intensity: a host that stands still gives no infinite ratio."""

MAX_RATIO = 10.0
"""Esper's clamp: beyond it the host stands still, and how much more says nothing."""

LOW_RATIO = 0.1
"""Below it the host learns ten times as hard as the seed (Esper's `host_dominating`)."""

SILENT_RATIO = 0.01
"""Below it the seed is called silent, not small (Esper's `seed_is_dormant`)."""

MOVE_DECADES = 1.0
"""What modules must move apart to have moved: log-norms wander by some tenths of a decade."""

ACTIVE_SHARE = 0.1
"""Share of earlier steps at a comparable level that makes a seed an active one."""

MIN_ACTIVE = 3
"""Fewer active steps are a spike in any history."""

NO_PATH = "No path leads from the loss to the seed."
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
            raise ValueError(
                f"the {name} has {count} parameters; a ratio needs at least one in each module"
            )
    return _ratio(seed_norm / math.sqrt(seed_count), host_norm / math.sqrt(host_count))


def _ratio(seed_intensity: float, host_intensity: float) -> float:
    return min(seed_intensity / (host_intensity + EPSILON), MAX_RATIO)


def read_pair(
    seed_history: npt.ArrayLike, host_history: npt.ArrayLike, *, seed_reached: bool
) -> PairReading:
    """Why the seed's gradient is small beside the host's, from intensities [T], now last.

    NaN stands for a step without a measurement. A ratio below 0.1 is, in this order:
    `loss-not-reaching` (no path in the graph), `saturated` (was comparable to the host, and fell by
    a decade or most of one), `host-learning-fast` (was comparable, and the host rose), `balanced`
    after all (was comparable, and neither has moved), `dormant` (never was).
    """
    seed, host = _aligned(seed_history, host_history)
    seed_now, host_now = _now(seed), _now(host)
    verdict, reason = _judged(seed, host, seed_now, host_now, seed_reached)
    known = None if seed_now is None or host_now is None else _ratio(seed_now, host_now)
    return PairReading(
        ratio=None if verdict == "not-measured" else known,
        verdict=verdict,
        reason=reason,
        seed_intensity=seed_now,
        host_intensity=host_now,
    )


def _judged(
    seed: Array, host: Array, seed_now: float | None, host_now: float | None, seed_reached: bool
) -> tuple[Verdict, str]:
    if host_now is None or (seed_now is None and seed_reached):
        either = "either module" if host_now is None else "the seed"
        what = either if seed_now is None else "the host"
        return "not-measured", f"There is no finite measurement of {what} at this step."
    if seed_now is None:
        return "loss-not-reaching", NO_PATH
    if seed_now == 0.0 and host_now == 0.0 and seed_reached:
        return "not-measured", "Both gradients are 0 at this step: nothing to compare."
    now = _ratio(seed_now, host_now)
    if now >= LOW_RATIO:
        return "balanced", f"The seed's intensity is {now:.2g} of the host's."
    if not seed_reached:
        return "loss-not-reaching", NO_PATH
    kept = np.isfinite(seed[:-1]) & np.isfinite(host[:-1])
    return _explain(seed_now, host_now, seed[:-1][kept], host[:-1][kept])


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
            how = f"by a factor of {10.0**fall:.3g}" if seed_now > 0.0 else "to 0"
            return "saturated", f"The seed was as active as the host and has fallen {how}."
        if moved or _far_above(host_now, host):
            why = f"The host rose {10.0**rise:.3g} times; the seed is near its usual level."
            return "host-learning-fast", why
        why = f"The ratio is {now:.2g}, a little low; neither module has left its usual level."
        return "balanced", why
    size = "next to nothing beside" if now < SILENT_RATIO else "less than a tenth of"
    never = f"and hardly ever was more in {seed.size} earlier steps"
    earlier = never if seed.size else "at the first measured step"
    return "dormant", f"The seed's gradient is {size} the host's, {earlier}."


def _far_above(now: float, history: Array) -> bool:
    """Whether a module is 5 robust σ above its history, in log10; not before 20 measurements."""
    median, sigma, seen = robust_level(np.log10(history[history > 0.0])[:, None])
    return bool(seen[0] >= MIN_OBSERVATIONS and _log(now) > median[0] + BAND_SIGMAS * sigma[0])


def _log(x: float) -> float:
    return math.log10(max(x, TINY))


def _median_log(x: Array) -> float:
    return _log(float(np.median(x)))


def _now(history: Array) -> float | None:
    return float(history[-1]) if history.size and math.isfinite(history[-1]) else None


def _aligned(seed_history: npt.ArrayLike, host_history: npt.ArrayLike) -> tuple[Array, Array]:
    seed, host = array(seed_history), array(host_history)
    if seed.shape != host.shape or seed.ndim != 1:
        raise ValueError(
            "the histories of seed and host must be one series each, step by step; got shapes"
            f" {seed.shape} and {host.shape}. Put NaN where a module was not measured"
        )
    return seed, host
