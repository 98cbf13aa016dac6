"""What a critic's numbers can honestly be, and whether they left it: the arithmetic of the rules on critics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.progress import Progress, number
from gradiometer.doctor.signs import level, outcome, persists, since, trend
from gradiometer.words import fmt

__all__ = [
    "MIN_SERIES",
    "TARGET_KEYS",
    "beyond_reach",
    "bounded",
    "earned",
    "leaked",
    "loss_fell",
    "loss_grows",
    "momentum",
    "never_updated",
    "unvaried",
    "warm",
]

TARGET_KEYS = {"SB3": "target_update_interval and tau", "CleanRL": "--target-network-frequency and --tau"}
"""What sets how a target network follows, by trainer."""

FAR = 10.0
"""Times what can be earned: twice is the over-estimation of max over noisy values (van Hasselt 2010), ten is none."""
GROWTH = 2.0
"""Decades a value loss must have grown: two of a squared error are FAR in the values. A reward that rises excuses it."""
MIN_SERIES = 12
"""Measurements for a trend of a critic's own numbers."""
WARM_UP = 0.2
"""Of the measurements: a healthy critic of cartpole reads EV −0.9 to 0.07 in its first six of forty rollouts."""
CONSTANT = 1e-6
"""Spread of the returns over their size below which they do not vary and explained variance is rounding."""
FALLS_BACK = 0.5
"""Of its largest so far: a target that is copied falls back to zero, one that is averaged settles."""
KEEPS_GROWING = 1.4
"""Last quarter over second quarter. Random walks of the weights give √(3.5/1.5) = 1.5, a settled average 1."""
HAS_GROWN = 2.0
"""Last quarter over first quarter; there √7 = 2.6."""


def earned(chart: Chart, progress: Progress | None) -> float | None:
    """The largest size a value can honestly have: of the episodes' returns, longer where the horizon is (1/(1−γ) steps)."""
    if progress is None:
        return None
    size = float(np.abs(progress.reward.values).max())
    size = max(size, abs(progress.best or 0.0))
    gamma, length = number(chart.fact("gamma", "discount")), chart.get("episode_length")
    if gamma is not None and 0.0 < gamma < 1.0 and length is not None and level(length) > 0.0:
        size *= max(1.0, 1.0 / (1.0 - gamma) / level(length))
    return size * max(1.0, abs(number(chart.fact("reward_scale")) or 1.0))


def beyond_reach(chart: Chart, values: Series, progress: Progress | None) -> tuple[str, int | None] | None:
    """|Q| stays above ten times what can be earned, and came there by growing."""
    most = earned(chart, progress)
    if most is None or most == 0.0:
        return None
    size = replace(values, values=np.abs(values.values))
    start, end = level(size.first(0.1)), level(size.last(0.2))
    if not persists(size, lambda x: x > FAR * most) or end <= 2.0 * start:
        return None
    seen = f"{fmt(start)} at the start, {fmt(end)} at the end, where at most {fmt(most)} was ever earned"
    return seen, since(size, lambda x: x > FAR * most)


def loss_grows(chart: Chart, loss: Series) -> tuple[str, int | None] | None:
    """The value loss grew a hundredfold along a clear trend, and is above the variance of the returns where that is known."""
    positive = loss.values > 0.0
    if int(positive.sum()) < MIN_SERIES:
        return None
    logs = replace(loss, steps=loss.steps[positive], values=np.log10(loss.values[positive]))
    start, end = level(logs.first(0.2)), level(logs.last(0.2))
    if trend(logs, min_change=GROWTH).direction != "rises" or end - start < GROWTH:
        return None
    spread = chart.get("returns/<statistic>", statistic="std")
    if spread is not None and 10.0**end < level(spread.last(0.2)) ** 2:
        return None
    return f"{fmt(10.0**start)} at the start, {fmt(10.0**end)} at the end", since(logs, lambda x: x - start >= GROWTH)


def loss_fell(loss: Series) -> bool:
    """The value loss is on its way down, or at less than half of what it was."""
    return trend(loss).direction == "falls" or level(loss.last(0.2)) < 0.5 * level(loss.first(0.2))


def warm(series: Series) -> Series:
    """Without the warm-up, without NaN."""
    finite = series.finite
    return finite.last(1.0 - WARM_UP) if len(finite) else finite


def bounded(series: Series) -> Series:
    """Shares of variance cut at −1, for one bad rollout can read −1000."""
    return replace(series, values=np.clip(series.values, -1.0, 1.0))


def unvaried(chart: Chart) -> str:
    """Why the explained variance means nothing here; empty when it does mean something."""
    spread = chart.get("returns/<statistic>", statistic="std")
    if spread is not None:
        mean = chart.get("returns/<statistic>", statistic="mean")
        size = abs(level(mean.last(0.5))) if mean is not None else 0.0
        if level(spread.last(0.5)) <= CONSTANT * max(size, CONSTANT):
            return "the returns do not vary, so explained variance is undefined"
    reward = outcome(chart)
    if (
        spread is None
        and reward is not None
        and len(reward.finite)
        and float(np.ptp(reward.finite.last(0.5).values)) == 0.0
    ):
        return "the reward does not vary over the last half, so explained variance may be undefined: log returns/std"
    return ""


def momentum(chart: Chart) -> float | None:
    """The share of its past a moving-average baseline keeps, where the run wrote it down."""
    names = [f"baseline{sign}{name}" for name in ("momentum", "beta", "decay") for sign in "._"]
    beta = number(chart.fact(*names))
    return beta if beta is not None and 0.0 < beta < 1.0 else None


def leaked(beta: float) -> float:
    """EV of i.i.d. rewards under an average that already contains them: 1 − β²(1 + (1−β)/(1+β)), 0.0744 at 0.95."""
    return 1.0 - beta**2 * (1.0 + (1.0 - beta) / (1.0 + beta))


def never_updated(distance: Series) -> bool:
    """Grows along a clear trend to the end, and never falls back: a copy would, and an average settles."""
    n = len(distance)
    top = np.maximum.accumulate(distance.values)
    first, second = level(distance.first(0.25)), level(distance.first(0.5).last(0.5))
    last = level(distance.last(0.25))
    grows = trend(distance).direction == "rises" and last > max(KEEPS_GROWING * second, HAS_GROWN * first)
    return grows and bool((distance.values[n // 4 :] > FALLS_BACK * top[n // 4 :]).all())
