"""What became of the thing that is trained for: its known maximum, whether it ever rose, how far it fell, and what a flat
stretch could have hidden. Shared by the rules on outcomes and data; tests as in `maths.trends` and `maths.means`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.progress import Progress, shown
from gradiometer.doctor.signs import NEAR_BEST, level, near_best, number, robust_sigma, told_best
from gradiometer.maths.means import mean_interval
from gradiometer.maths.series import LEVEL
from gradiometer.maths.trends import Drift, autocorrelation_time, drift
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__ = [
    "Fall",
    "at_maximum",
    "began_trained",
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
    "suffers",
]

CHECKPOINTS = ("start", "resume", "resume_from", "resume_from_checkpoint", "init_from", "init_checkpoint", "load_path")
"""Settings that name the weights a training goes on from."""
SAME_RATIO = 0.01
"""Return over length varies by less than this where each step earns the same: rounding and averaging, nothing else."""
POWER = 0.8
"""The usual power: a rise this large would have been seen in four of five such runs."""
ROSE_SIGMAS = 2.0
"""Standard errors above its start at which a reward has risen. Lenient: the doubt is the run's."""

LOST = 0.3
"""Of what had been gained: a fall that a finding may rest on."""
MIN_STEADY = 27
"""Measurements of which the last third has three windows of three."""
TENTHS, HALF_LOST, CLEARLY = 10, 0.5, 6.0
"""Without a test: medians of tenths of a run, half of what was gained, and six times the jitter from one value to the next."""

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


def began_trained(chart: Chart) -> bool:
    """Whether the settings name a checkpoint the training began with: such a policy may have had nothing left to learn."""
    return isinstance(found := chart.fact(*CHECKPOINTS), str) and found.lower() not in ("", "none", "null", "false")


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
    best = told_best(chart)
    if best is not None:
        return best
    if reward.metric.name in ("success_rate", "val/success_rate"):
        return 1.0
    longest, length = number(chart.fact("max_episode_steps")), chart.get("episode_length")
    if longest is not None and longest > 0.0 and length is not None and length_is_return(chart):
        return longest * level(reward) / level(length)
    return None


def at_maximum(chart: Chart, reward: Series) -> bool:
    """Whether the task is solved: the reward at its known maximum, or a rate or a score within [0, 1] near 1."""
    best = known_maximum(chart, reward)
    if best is not None and near_best(level(reward.last(0.2)), best, level(reward.first(0.1))):
        return True
    scores = (reward, chart.get("success_rate"), chart.get("val/success_rate"), chart.get("val/reward"))
    return any(score is not None and _near_one(score) for score in scores)


def _near_one(score: Series) -> bool:
    values = score.finite.values
    within = len(values) > 0 and float(values.min()) >= 0.0 and float(values.max()) <= 1.0
    return within and level(score.last(0.2)) >= 1.0 - NEAR_BEST


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
    """How far the last third lies below the better third before it; None when the last or both of those are worth fewer
    than 5 blocks.

    Thirds are fixed beforehand: a fall from the highest point would be found in any noise. A third in which it moves has
    few blocks, and the other one will do; where neither has enough, a trend over the whole.
    """
    from scipy.special import stdtr  # 40 ms to import

    first, middle, last = (mean_interval(part) for part in np.array_split(series.finite.values, 3))
    found = []
    for before in (first, middle):
        if before is None or last is None:
            continue
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
    return max(certain or found, key=lambda each: each.size) if found else _steady_fall(series.finite)


def _steady_fall(series: Series) -> Fall | None:
    """A series that falls all along has thirds of few blocks, and a trend."""
    found = slope(series) if len(series) >= MIN_STEADY else None
    if found is None or found.p_value is None or not found.significant or found.change >= 0.0:
        return None
    before, after = (float(part.values.mean()) for part in (series.first(1 / 3), series.last(1 / 3)))
    return Fall(before=before, after=after, p_value=found.p_value, from_start=True, num_blocks=found.num_blocks)


def suffers(progress: Progress | None) -> Evidence | None:
    """The reward that fell: below its start, or well below what it had reached; None when it did not."""
    if progress is None or progress.state == "best":
        return None
    if progress.state == "fell":
        return progress.evidence
    found = fall(progress.reward)
    if found is None:
        return _came_down(progress)
    if found.p_value >= LEVEL or found.size < LOST * max(found.before - progress.start, 0.0):
        return None
    return shown(progress.reward, f"fell from {fmt(found.before)} to {fmt(found.after)}, p {fmt(found.p_value)}")


def _came_down(progress: Progress) -> Evidence | None:
    """A reward that was gained and half lost again, for curves too smooth or too short for a test."""
    values = progress.reward.values
    parts = [float(np.median(part)) for part in np.array_split(values, TENTHS)] if len(values) >= 2 * TENTHS else []
    if progress.state != "gained" or not parts:
        return None
    top, end = max(parts), float(np.median(parts[-2:]))
    jitter = robust_sigma(np.diff(values))
    if top - end < HALF_LOST * (top - progress.start) or top - end < CLEARLY * jitter:
        return None
    return shown(progress.reward, f"rose to {fmt(top)} and came down to {fmt(end)}")


def rising_elsewhere(chart: Chart, start: int) -> bool:
    """Whether another measure of success rises from that step on: a curriculum, or training on the best of many samples."""
    names = ("val/reward", "val/success_rate", "success_rate", "best_reward")
    found = [chart.get(name) for name in names]
    return any(rises(series.since(start)) for series in found if series is not None)


def reads(series: Series, reading: str) -> Evidence:
    """What a series reads over the steps it has."""
    return shown(series.finite, reading)
