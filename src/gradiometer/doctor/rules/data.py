"""What goes into the policy: observations it can use, transitions whose parts belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Look, Sign, Stays, declare, seen
from gradiometer.doctor.proofs import Way, looked, told
from gradiometer.doctor.rule import CannotSay, Skipped, Verdict, finding, too_short
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import enough, level, persists, reads, since
from gradiometer.maths.means import mean_interval
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("data")
OBSERVED = "observation/<statistic>"


def _observed(statistic: str) -> Callable[[RunData], list[Series]]:
    """One statistic of the observations, where it is long enough."""

    def chosen(run: RunData) -> list[Series]:
        there = run.every(OBSERVED)
        long = [x for x in there if enough(x, limits.min_points)]
        if not long:
            raise CannotSay(too_short(there, limits.min_points, metric=OBSERVED))
        return [x for x in long if x.parts["statistic"] == statistic]

    return chosen


def _far(run: RunData, sign: Sign) -> Sign:
    """Beyond what pixels reach, no first layer was made for it: worth a line also where it is
    learned from."""
    return replace(sign, role="usual") if level(sign.series) > limits.beyond else sign


declare(
    "observation-scale",
    """
    cause: Large inputs saturate tanh units and make the first layer's gradient as many times larger
      than the others', so one learning rate cannot fit both.
    fix: Normalise observations with running statistics: VecNormalize(env, norm_obs=True) in SB3,
      gymnasium.wrappers.NormalizeObservation in CleanRL.
    fix: Or scale known ranges by hand: pixels / 255, positions / arena size.
    confirm: Train for a tenth of the run with observations divided by their standard deviation and
      compare the reward.
    see: arXiv 2006.05990, observation normalisation
    see: RLExplorer's observation check
    [constant]
    cause: The policy sees nearly the same input whatever happens, so it can only learn one answer
      for all states. A wrapper returns a constant, the buffer is never filled, or normalisation
      divides by far too much.
    fix: Print two observations of one episode at the place where they enter the policy; they must
      differ.
    fix: Check the observation wrapper and that running statistics are updated
      (VecNormalize(training=True) in SB3).
    confirm: Feed the policy random observations of unit variance for one batch: its outputs must
      now differ.
    see: RLExplorer's observation check
    """,
    about="Observations hardly vary or lie far outside [−10, 10].",
    family="data",
    metric=OBSERVED,
    over=_observed("max_abs"),  # pixels may lie far outside and be learned from
    sign=Stays(above=("data/max_observation",)),
    title="Observations reach {level}, far outside [−10, 10]",
    role="harmless",
    beside=_far,
    also=(
        Look(
            metric=OBSERVED,
            over=_observed("std"),
            sign=Stays(below=("data/min_spread", "data/no_spread")),
            title="Observations hardly vary: their standard deviation is {level}",
            role="plain",
            words="constant",
        ),
    ),
)


STORED = {
    "first": Way(
        title="Every sample has the first observation of its episode",
        fix=("Replace the observation after each step: obs = next_obs",),
    ),
    "one": Way(
        title="Every sample has one and the same observation, that the environment never showed",
        fix=("Store what the environment shows; look for a factor of 0, or a normalisation",),
    ),
    "action": Way(
        title="Values of other actions are trained than those that were taken",
        fix=("Gather the values with the stored actions: q(obs).gather(1, actions)",),
    ),
    "next": Way(
        title="Samples hold the same observation twice: the next one is not stored",
        fix=("Store what the step returned as the next observation, before obs is replaced",),
    ),
    "next-values": Way(
        title="The values that are trained are those of the next observations",
        fix=("Train V(obs) towards the target, not V(next_obs)",),
    ),
    "rewards": Way(
        title="Answers have the rewards of the answers beside them",
        fix=("Return rewards in the order of the completions: one for each, none left out",),
    ),
    "others": Way(
        title="Samples have actions of other samples beside their observations",
        fix=("Index observations, actions, rewards and ends with the same indices",),
    ),
    "": Way(
        title="Samples hold the observation after their action, not the one before",
        fix=("Store the observation that the action was chosen for, and then replace it",),
    ),
}


@seen(
    "misaligned-data",
    """
    cause: A transition is stored from parts of different steps, so each action gets the credit of
      another one. Usual places: a buffer that writes the reward before its index moves on, an
      auto-reset that returns the next episode's observation, a frame skip that keeps the wrong
      reward.
    fix: Store (observation, action, reward, done) of one env.step call together, before the
      observation is replaced.
    fix: With auto-resetting vector environments take the last observation from
      info['final_observation'].
    confirm: Train on an environment whose reward is its observed bit (Jones's probe environments 3
      and 5): a right buffer solves it in a few hundred steps.
    see: A. Jones, Debugging Reinforcement Learning Systems
    see: RLMutation (mutations M, R, Ra)
    [unrelated]
    cause: The target of a last state is its reward and nothing else. Either the done mask is
      missing or rewards lie a step off; reward_lag would tell which.
    fix: Log reward_lag, the shift at which rewards correlate most with actions.
    confirm: Compare the stored reward of each last transition with what env.step returned.
    see: A. Jones, Debugging Reinforcement Learning Systems
    """,
    title="Rewards and the actions that earned them are stored {far} apart",
)
def misaligned_data(run: RunData) -> Sign | Verdict:
    """Rewards belong to another step than their actions, or targets ignore how episodes end."""
    if stored := told(run, "misaligned-data", STORED, slice(-1, None)):
        return stored
    lag, ends = run.get("reward_lag"), run.get("terminal_correlation")
    series = lag or ends
    if series is None:
        if looked(run, "misaligned-data"):
            return None
        why = (
            "no reward_lag in this log: log the shift at which rewards correlate most with actions"
            " as reward_lag"
        )
        return Skipped(why=why, metric="reward_lag")
    if not enough(series, limits.min_points):
        return too_short(series, limits.min_points)
    if lag is None or series is not lag:
        return _unrelated(series)
    sign = shifted(lag)
    if sign is None or ends is None or not len(ends.finite):
        return sign
    middle = fmt(level(ends.last(0.5)))
    more = reads(ends.last(0.5), f"median {middle}; near 1 when targets see how episodes end")
    return replace(sign, more=(more,))


def shifted(lag: Series) -> Sign | None:
    """The same lag, other than 0, at most measurements of the last half."""
    half = lag.finite.last(0.5)
    shifts, counts = np.unique(np.rint(half.values), return_counts=True)
    shift, share = float(shifts[counts.argmax()]), float(counts.max()) / len(half)

    def holds(x: float) -> bool:
        return bool(np.rint(x) == shift)

    if shift == 0.0 or share < limits.agreeing or not persists(lag, holds):
        return None
    reading = f"{shift:+.0f} in {share:.0%} of the last half's measurements; 0 when aligned"
    far = f"{abs(shift):.0f} step" + ("" if abs(shift) == 1 else "s")
    begun = since(lag, holds)
    return Sign(series=lag, strength="strong", since=begun, reading=reading, said={"far": far})


def _unrelated(ends: Series) -> Verdict:
    mean = mean_interval(ends.last(0.5).values)
    if mean is None or mean.low < -limits.no_correlation or mean.high > limits.no_correlation:
        return None
    reading = (
        f"mean {fmt(mean.mean)}, 95 % interval {fmt(mean.low)} to {fmt(mean.high)} over the last"
        " half; near 1 when right"
    )
    return finding(
        "Last states' value targets do not follow their rewards (correlation"
        f" {fmt(mean.mean)}): data may be misaligned",
        reads(ends.finite.last(0.5), reading),
        strength="strong",
        role="note",
        basis="statistical",
        since_step=since(ends, lambda x: abs(x) < limits.unrelated),
        words="unrelated",
    )
