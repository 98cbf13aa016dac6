"""What became of the reward: the second signal of the rules on balance, exploration and critics.

`signs.learning` asks whether the reward rises along the run; a policy that learnt in its first tenth and stands since is flat
to it. Here the end is compared with the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Skipped
from gradiometer.doctor.signs import near_best, number, outcome, told_best, trend
from gradiometer.maths import trends
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__ = ["MIN_REWARDS", "Progress", "key_of", "no_outcome", "number", "progress_of", "shown"]

MIN_REWARDS = 8
"""Below, Mann–Kendall cannot reach its level, so a reward that rises could not be told from one that does not."""
CERTAIN = 2.0
"""Standard errors by which the reward must have moved from its start to have moved."""
LARGE = 1.5
"""Times its spread: a reward that moved so far has moved, however slowly it wanders."""
STANDS = 0.2
"""Of all that was gained: less than that from one quarter to the next is standing still; a straight rise gives 0.25."""

State: TypeAlias = Literal["best", "gained", "flat", "fell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What became of the reward."""

    state: State
    """At the known maximum; clearly above its start; neither; clearly below."""
    reward: Series
    start: float
    end: float
    best: float | None
    """The known maximum, where the run wrote it down."""

    @property
    def then(self) -> str:
        """What it did, to go on a sentence with."""
        if self.state == "gained":
            return f"stands at {fmt(self.end)}"
        return f"{'fell' if self.state == 'fell' else 'did not rise'}: {fmt(self.start)} to {fmt(self.end)}"

    @property
    def stuck(self) -> bool:
        """Nothing was gained."""
        return self.state in ("flat", "fell")

    @property
    def standing(self) -> bool:
        """Something was gained, but hardly any of it from the third quarter to the last; not at the known maximum."""
        quarter = max(2, len(self.reward) // 4)
        third, last = self.reward.values[-2 * quarter : -quarter], self.reward.values[-quarter:]
        with np.errstate(over="ignore", invalid="ignore"):
            return self.state == "gained" and float(last.mean() - third.mean()) <= STANDS * (self.end - self.start)

    @property
    def evidence(self) -> Evidence:
        """What the reward reads at both ends."""
        words = {"best": "at its maximum", "gained": "has risen", "flat": "has not risen", "fell": "has fallen"}
        known = "" if self.best is None else f"; the maximum is {fmt(self.best)}"
        reading = f"{words[self.state]}: {fmt(self.start)} at the start, {fmt(self.end)} at the end{known}"
        return shown(self.reward, reading)


def progress_of(chart: Chart) -> Progress | None:
    """Whether the reward is above where it started, also when it rose early and stands since; None when nobody can tell.

    The mean of the last fifth against that of the first fortieth (who learns fast has learnt by then). The scale is the
    spread σ within quarters of the run: two standard errors σ√(τ(1/n₁ + 1/n₂)), at most 1.5 σ; or a trend that
    Mann–Kendall sees.
    """
    reward = outcome(chart)
    if reward is None or len(reward.finite) < MIN_REWARDS:
        return None
    reward = reward.finite
    first, last = max(3, len(reward) // 40), max(3, len(reward) // 5)
    with np.errstate(over="ignore", invalid="ignore"):  # rewards of 1e300 are somebody's bug, not ours
        values = np.clip(reward.values, *np.percentile(reward.values, [2, 98]))
        start, end = float(values[:first].mean()), float(values[-last:].mean())
        rest = np.concatenate([part - part.mean() for part in np.array_split(values, 4)])
        spread = float(rest.std())
        error = spread * math.sqrt(trends.autocorrelation_time(rest) * (1 / first + 1 / last))
        direction = trend(reward, min_change=0.5 * spread).direction
    if not math.isfinite(start + end + spread + error):  # nor can anybody else tell what they did
        return None
    moved = max(min(LARGE * spread, CERTAIN * error), 1e-9 * max(abs(start), abs(end)))
    best = told_best(chart)
    state: State = "flat"
    if best is not None and near_best(end, best, start):
        state = "best"
    elif end - start > moved or (direction == "rises" and end > start):
        state = "gained"
    elif start - end > moved or direction == "falls":
        state = "fell"
    return Progress(state=state, reward=reward, start=start, end=end, best=best)


def shown(series: Series, reading: str, *, first_step: int | None = None) -> Evidence:
    """Evidence that spans the series."""
    if not len(series):
        return Evidence(series=series.name, reading=reading)
    first = int(series.steps[0]) if first_step is None else first_step
    return Evidence(series=series.name, reading=reading, first_step=first, last_step=int(series.steps[-1]))


def no_outcome(id: str, chart: Chart) -> Skipped:
    """The second signal is missing, or too short."""
    reward = outcome(chart)
    if reward is None:
        return unlogged(id, "reward")
    return too_short(id, reward, MIN_REWARDS)


def key_of(series: Series, keys: dict[str, str], ours: str) -> str:
    """What the trainer the log came from calls a setting."""
    return next((key for library, key in keys.items() if library in series.library), ours)
