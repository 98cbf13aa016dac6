"""What became of the thing that is trained for: its known maximum, whether it ever rose, how far it fell, and what a flat
stretch could have hidden. Shared by the rules on outcomes and data; tests as in `maths.trends` and `maths.means`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.rule import Skipped, how_to_log
from gradiometer.doctor.signs import level, robust_sigma
from gradiometer.maths.means import mean_interval
from gradiometer.maths.series import LEVEL
from gradiometer.maths.trends import Drift, autocorrelation_time, drift
from gradiometer.records import Evidence

__all__ = [
    "Fall",
    "at_maximum",
    "detectable_rise",
    "fall",
    "held_out",
    "known_maximum",
    "length_is_return",
    "reads",
    "rises",
    "rising_elsewhere",
    "rose",
    "slope",
    "too_short",
    "unlogged",
]

NEAR_MAXIMUM = 0.05
"""A maximum counts as reached within a twentieth of the way from the start: exploration alone costs that much."""
SAME_RATIO = 0.01
"""Return over length varies by less than this where each step earns the same: rounding and averaging, nothing else."""
POWER = 0.8
"""The usual power: a rise this large would have been seen in four of five such runs."""
ROSE_SIGMAS = 2.0
"""Standard errors above its start at which a reward has risen. Lenient: the doubt is the run's."""

EARLY = (0.01, 0.05, 0.1, 0.2)
"""Shares of the run within which a fast learner may have learned it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """The last third of a series against the better of the two thirds before it."""

    before: float
    after: float
    p_value: float
    """One-sided, twice the smaller of the two comparisons."""
    from_start: bool
    """Whether the first third was the better one."""
    num_blocks: int

    @property
    def size(self) -> float:
        """How far it fell."""
        return self.before - self.after


def held_out(chart: Chart) -> Series | None:
    """The score on what is not trained on."""
    return chart.get("val/reward") or chart.get("val/success_rate")


def slope(series: Series) -> Drift | None:
    """The trend of a series with any size of change; None below 8 points, without a p-value below 8 blocks."""
    finite = series.finite
    return drift(finite.steps, finite.values, min_effect=0.0)


def rises(series: Series | None) -> bool | None:
    """Whether a series rises by any amount that is not chance; None when nobody can tell."""
    found = None if series is None else slope(series)
    if found is None or found.p_value is None:
        return None
    return found.significant and found.change > 0.0


def known_maximum(chart: Chart, reward: Series) -> float | None:
    """What the task allows at most, where the run wrote it down or the quantity itself is a rate."""
    best = chart.fact("max_reward", "max_return", "reward_threshold")
    if isinstance(best, int | float) and not isinstance(best, bool) and math.isfinite(best):
        return float(best)
    if reward.metric.name in ("success_rate", "val/success_rate"):
        return 1.0
    longest = chart.fact("max_episode_steps")
    if length_is_return(chart) and isinstance(longest, int | float) and longest > 0:
        length = chart.get("episode_length")
        assert length is not None
        return float(longest) * level(reward) / level(length)
    return None


def at_maximum(chart: Chart, reward: Series) -> bool:
    """Whether the task is solved: the reward at its known maximum, or a rate or a score within [0, 1] near 1."""
    best = known_maximum(chart, reward)
    if best is not None:
        way = max(abs(best), best - level(reward.first(0.1)))
        if level(reward.last(0.2)) >= best - NEAR_MAXIMUM * way:
            return True
    scores = (reward, chart.get("success_rate"), chart.get("val/success_rate"), chart.get("val/reward"))
    return any(score is not None and _near_one(score) for score in scores)


def _near_one(score: Series) -> bool:
    values = score.finite.values
    within = len(values) > 0 and float(values.min()) >= 0.0 and float(values.max()) <= 1.0
    return within and level(score.last(0.2)) >= 1.0 - NEAR_MAXIMUM


def length_is_return(chart: Chart) -> bool:
    """Whether each step of an episode earns the same, so that the return is the length (CartPole)."""
    reward, length = chart.get("reward"), chart.get("episode_length")
    if reward is None or length is None:
        return False
    _, mine, theirs = np.intersect1d(reward.finite.steps, length.finite.steps, return_indices=True)
    returns, lengths = reward.finite.values[mine], length.finite.values[theirs]
    if len(mine) < 3 or bool((lengths <= 0).any()) or bool((returns <= 0).any()):
        return False
    ratio = returns / lengths
    middle = float(np.median(ratio))
    return float(np.percentile(np.abs(ratio - middle), 90)) <= SAME_RATIO * middle


def rose(reward: Series) -> bool:
    """Whether a reward ever rose from where it started: along the run, or at once in its first measurements.

    A fast learner is level for nineteen twentieths of the run, which no test of a trend sees.
    """
    if rises(reward):
        return True
    finite = reward.finite
    late = finite.last(0.5).values
    if not len(late):
        return False
    sigma, tau = robust_sigma(late), autocorrelation_time(late)
    for share in EARLY:
        early = finite.values[: max(2, round(share * len(finite)))]
        error = sigma * math.sqrt(min(1.0, tau / len(early)) + min(1.0, tau / len(late)))
        if float(np.median(late) - np.median(early)) > ROSE_SIGMAS * error:
            return True
    return False


def detectable_rise(series: Series, found: Drift) -> float:
    """The rise over the window that its trend test sees in four of five runs like it.

    Of k block means with residual spread s, a change over the window has the standard error s √(12(k−1)/(k(k+1))), and
    the test at α sees t_{1−α/2} + t_{power} of those (Mann–Kendall needs 2 % more data than least squares).
    """
    from scipy.special import stdtrit  # 40 ms to import

    k, values = found.num_blocks, series.finite.values
    means = values[len(values) - k * found.block :].reshape(k, found.block).mean(axis=1)
    place = np.arange(k) - (k - 1) / 2.0
    residual = means - means.mean() - place * float(place @ means) / float(place @ place)
    spread = math.sqrt(float(residual @ residual) / (k - 2))
    error = spread * math.sqrt(12.0 * (k - 1) / (k * (k + 1)))
    return error * float(stdtrit(k - 2, 1.0 - LEVEL / 2.0) + stdtrit(k - 2, POWER))


def fall(series: Series) -> Fall | None:
    """How far the last third lies below the better third before it; None when a third is worth fewer than 5 blocks.

    Thirds are fixed beforehand: a fall from the highest point would be found in any noise.
    """
    from scipy.special import stdtr  # 40 ms to import

    first, middle, last = (mean_interval(part) for part in np.array_split(series.finite.values, 3))
    if first is None or middle is None or last is None:
        return None
    found = []
    for before in (first, middle):
        error = math.hypot(before.error, last.error)
        size, blocks = before.mean - last.mean, min(before.num_blocks, last.num_blocks)
        exact = 0.0 if size > 0.0 else 1.0
        p_value = exact if error == 0.0 else float(stdtr(blocks - 1, -size / error))
        found.append(
            Fall(
                before=before.mean,
                after=last.mean,
                p_value=min(1.0, 2.0 * p_value),
                from_start=before is first,
                num_blocks=blocks,
            )
        )
    certain = [each for each in found if each.p_value < LEVEL]
    return max(certain or found, key=lambda each: each.size)


def rising_elsewhere(chart: Chart, start: int) -> bool:
    """Whether another measure of success rises from that step on: a curriculum, or training on the best of many samples."""
    names = ("val/reward", "val/success_rate", "success_rate", "best_reward")
    found = [chart.get(name) for name in names]
    return any(rises(series.since(start)) for series in found if series is not None)


def unlogged(id: str, template: str) -> Skipped:
    """A rule without its metric."""
    return Skipped(rule=id, why=how_to_log(template), metric=template)


def too_short(id: str, series: Series, needed: str) -> Skipped:
    """A rule whose metric has too few measurements."""
    return Skipped(rule=id, why=f"{len(series.finite)} points of {series.name}; {needed}", metric=series.metric.name)


def reads(series: Series, reading: str) -> Evidence:
    """What a series reads over the steps it has."""
    steps = series.finite.steps
    return Evidence(series=series.name, reading=reading, first_step=int(steps[0]), last_step=int(steps[-1]))
