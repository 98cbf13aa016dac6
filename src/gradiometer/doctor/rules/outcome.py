"""What came of it: a reward that does not rise, that falls, and steps that go against it.

A flat reward is mostly what follows from something else; arbitration folds it under its cause. Each rule asks for a second
signal: another measure of success, a known maximum, whether the reward ever rose.
"""

from __future__ import annotations

import math

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import (
    Fall,
    at_maximum,
    began_trained,
    detectable_rise,
    fall,
    known_maximum,
    reads,
    rising_elsewhere,
    rose,
    slope,
)
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import progress_of
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import enough, learning, level, outcome, persists, robust_sigma, since, trend
from gradiometer.maths.means import Interval, mean_interval
from gradiometer.maths.series import LEVEL
from gradiometer.records import Finding, Severity
from gradiometer.words import fmt

__all__ = ["reward_declining", "reward_plateau", "update_opposes_reward"]

WORTH_SEEING = 0.2
"""A rise of a fifth is the least that counts as learning (the stagnated run's own success criterion); a test that would
have missed it may not call a reward flat. Where the maximum is known, a fifth of the way to it."""
DECLINE = 0.1
"""A reward a tenth below its earlier level has lost more than evaluation luck; less is a plateau."""
GAIN_LOST = 0.25
"""Of what the run had gained: for rewards with a large offset, where a tenth of the level is more than the whole gain."""
OPPOSED = 0.3
"""Mean over mean absolute predicted change: near 1 with a wrong sign, near 0 where steps swing about an optimum."""
SURE = 0.001
"""Level of the test of a wrong sign: it accuses every step of the run, and steps about an optimum average near zero."""
NEARLY_ALL = 0.8
"""Of the batches: the sign of a correlation that has no interval."""
MIN_STEPS = 10
"""Probed steps below which five blocks of two cannot be had."""
HEALTHY_DECADES = 1.0
"""Norms within a decade of their start: nothing a gradient's size would show."""
MIN_WINDOWED = 9
"""Three windows of three measurements."""


WRONG_SIGN = (
    "The sign of the loss, of the advantages or of the reward is wrong: every norm looks healthy and every step makes the "
    "policy worse."
)
SIGN_FIXES = (
    "Optimizers minimise: the policy loss is -(advantages * log_prob).mean(); check for a missing or a second minus.",
    "Check advantages = returns - values, not values - returns, and that a cost is not used as a reward.",
)


@rule("reward-plateau")
def reward_plateau(chart: Chart) -> Verdict:
    """The reward did not rise over the last half of the run, by a test that would have seen a rise worth having."""
    reward = outcome(chart)
    if reward is None:
        return unlogged("reward-plateau", "reward")
    half = reward.finite.last(0.5)
    found = slope(half)
    if found is None or found.p_value is None:
        return too_short(
            "reward-plateau", reward, "its last half must be worth 8 independent blocks of two for a trend"
        )
    falling = found.significant and -found.change >= DECLINE * abs(level(half))
    if (found.significant and found.change > 0.0) or falling or at_maximum(chart, reward):
        return None
    if rising_elsewhere(chart, int(half.steps[0])):
        return None
    best, height, seen = known_maximum(chart, reward), level(half), detectable_rise(half, found)
    gap = None if best is None else best - height
    worth = max(WORTH_SEEING * abs(height), robust_sigma(half.values)) if gap is None else WORTH_SEEING * gap
    if found.change > worth / 2:
        return None  # it may well be rising, only too slowly for this many measurements
    if seen > worth:
        why = f"too noisy: over the last half only a rise above {fmt(seen)} would be seen, and {fmt(worth)} matters"
        return Skipped(rule="reward-plateau", why=why, metric=reward.metric.name)
    risen = rose(reward)
    learnt = risen or rising_elsewhere(
        chart, int(reward.finite.steps[0])
    )  # where noise hides what a held-out score shows
    short_of = gap is not None and gap > WORTH_SEEING * (gap + height - level(reward.first(0.1)))
    serious = short_of or not (learnt or began_trained(chart))
    return _plateau(half, seen=seen, p_value=found.p_value, best=best, risen=risen, serious=serious)


def _plateau(half: Series, *, seen: float, p_value: float, best: float | None, risen: bool, serious: bool) -> Finding:
    height = level(half)
    of = "" if best is None else f" of at most {fmt(best)}"
    past = ", after it had risen" if risen else ", and it never rose"
    return Finding(
        id="reward-plateau",
        title=f"The reward is flat at {fmt(height)}{of} over the last half of the run{past}",
        severity="warn" if serious else "info",
        basis="statistical",
        since_step=int(half.steps[0]),
        evidence=(
            reads(
                half,
                f"no trend (p = {fmt(p_value)}) at {fmt(height)}; a rise of {fmt(seen)} over this window would have been "
                "seen in four of five such runs",
            ),
        ),
        cause="Either this is all the task allows, or the gradient carries no signal about the reward any more. Nothing else "
        "in this log explains it."
        if risen
        else "The updates do not improve the policy. Nothing else in this log explains it.",
        fix=(
            "Write the best possible return down as max_reward among the run's facts: success must not be mistaken for this.",
            "Split the loss with meter.terms(...) and run gradiometer audit: both show a term that never reaches the policy.",
        ),
        confirm="Compare with a policy of random actions: a trained policy no better than that has learned nothing.",
        references=("Mann 1945, Kendall 1975 on block means",),
    )


@rule("reward-declining")
def reward_declining(chart: Chart) -> Verdict:
    """The last third of the reward lies clearly below an earlier third, and stays there."""
    reward = outcome(chart)
    if reward is None:
        return unlogged("reward-declining", "reward")
    found = fall(reward)
    if found is None:
        return too_short("reward-declining", reward, "each third must be worth 5 independent blocks of two")
    if not _fell(reward, found) or at_maximum(chart, reward):
        return None
    if rising_elsewhere(chart, int(reward.finite.last(0.5).steps[0])):
        return None
    midway = found.before - found.size / 2
    which = "first" if found.from_start else "middle"
    return Finding(
        id="reward-declining",
        title=f"The reward fell from {fmt(found.before)} to {fmt(found.after)}",
        severity="warn",
        basis="statistical",
        since_step=since(reward, lambda x: x < midway),
        evidence=(
            reads(
                reward.last(1 / 3),
                f"mean {fmt(found.after)} against {fmt(found.before)} in the {which} third (p = {fmt(found.p_value)}, "
                f"{found.num_blocks} blocks)",
            ),
        ),
        cause="The updates made the policy worse than it was: steps too large, a critic or reference that went astray, data "
        "that does not come from this policy, or an update in the wrong direction.",
        fix=(
            "Go back to the checkpoint before the fall and halve the learning rate.",
            "Log approx_kl, clip_fraction, explained_variance and gradient norms: they tell these causes apart.",
        ),
        confirm="Resume from before the fall with the learning rate divided by ten: if the reward still falls, it is the "
        "direction and not the size of the steps.",
    )


def _fell(reward: Series, found: Fall) -> bool:
    gain = found.before - level(reward.first(0.1))
    enough_lost = found.size >= DECLINE * abs(found.before) or (gain > 0.0 and found.size >= GAIN_LOST * gain)
    midway = found.before - found.size / 2
    visible = found.size >= robust_sigma(reward.last(1 / 3).values)
    stays = persists(reward.last(1 / 3), lambda x: x < midway)
    return found.p_value < LEVEL and enough_lost and visible and bool(stays)


@rule("update-opposes-reward")
def update_opposes_reward(chart: Chart) -> Verdict:
    """Steps that raise a held-out loss: a test that sees a wrong sign, as does reward_gain. Without them, a reward that falls
    from the very start under healthy norms is a suspicion."""
    predicted, realised = chart.get("step/predicted"), chart.get("step/realised")
    probed = predicted if predicted is not None else realised
    if probed is None:
        gain = chart.get("reward_gain")
        if gain is not None and enough(gain, MIN_STEPS):
            return _lowers_what_earned(chart, gain)
        return _falls_from_start(chart) or unlogged("update-opposes-reward", "step/predicted")
    mean = mean_interval(probed.values) if enough(probed, MIN_STEPS) else None
    if mean is None:
        return too_short(
            "update-opposes-reward", probed, f"{MIN_STEPS} probed steps, 5 independent blocks of two, needed"
        )
    if mean.p_above(0.0) >= SURE or mean.mean < OPPOSED * float(np.abs(probed.finite.values).mean()):
        return None
    other = None if predicted is None or realised is None else mean_interval(realised.values)
    if other is not None and other.mean <= 0.0:
        return None  # the loss falls in truth: the prediction is what is off
    learns = learning(chart)
    certain = (other is not None and other.p_above(0.0) < LEVEL) or learns is False
    return _opposed(probed, mean, realised if other else None, other, severity=_how_bad(learns, certain=certain))


def _lowers_what_earned(chart: Chart, gain: Series) -> Finding | None:
    """The samples that earned most become less likely."""
    values, mean = gain.finite.values, mean_interval(gain.values)
    average, progress = float(values.mean()), progress_of(chart)
    certain = mean is not None and mean.p_below(0.0) < SURE and -average >= OPPOSED * float(np.abs(values).mean())
    # One number that hardly varies has no interval; with a reward that fell its sign is enough.
    fell = progress is not None and progress.state == "fell" and float((values < 0.0).mean()) >= NEARLY_ALL
    if not (certain or fell):
        return None
    return Finding(
        id="update-opposes-reward",
        title=f"Updates lower the probability of what earned most: a correlation of {fmt(average)}",
        severity=_how_bad(learning(chart), certain=True),
        basis="statistical" if certain else "heuristic",
        since_step=since(gain, lambda x: x < 0.0),
        evidence=(
            reads(gain, f"mean {fmt(average)}, below zero in {(values < 0.0).mean():.0%} of {len(values)} batches"),
        ),
        cause=WRONG_SIGN,
        fix=SIGN_FIXES,
        confirm="Negate the policy loss for a few hundred steps: the reward must now rise.",
        references=("failure catalogue F26",),
    )


def _how_bad(learns: bool | None, *, certain: bool) -> Severity:
    """A reward that rises all the same speaks against the held-out loss, not against the steps."""
    if learns:
        return "info"
    return "critical" if certain else "warn"


def _opposed(
    probed: Series, mean: Interval, realised: Series | None, other: Interval | None, *, severity: Severity
) -> Finding:
    reading = "mean {} (95 % interval {} to {}) over {} probed steps; below zero when steps help"
    evidence = [reads(probed, reading.format(fmt(mean.mean), fmt(mean.low), fmt(mean.high), mean.count))]
    if realised is not None and other is not None:
        evidence.append(reads(realised, reading.format(fmt(other.mean), fmt(other.low), fmt(other.high), other.count)))
    return Finding(
        id="update-opposes-reward",
        title=f"Steps raise the held-out loss by {fmt(mean.mean)} each: the update goes against the objective",
        severity=severity,
        basis="statistical",
        since_step=since(probed, lambda x: x > 0.0),
        evidence=tuple(evidence),
        cause=f"{WRONG_SIGN} (If the held-out loss is not what is trained, it is the probe that is wrong.)",
        fix=SIGN_FIXES,
        confirm="Negate the loss for a few hundred steps: the reward must now rise.",
        references=("failure catalogue F26",),
    )


def _falls_from_start(chart: Chart) -> Finding | None:
    reward, norm = chart.get("reward"), chart.get("grad/<block>/norm/raw", block="all")
    if reward is None or norm is None or not bool(np.isfinite(norm.values).all()) or not enough(norm, MIN_WINDOWED):
        return None
    start, end = level(norm.first(1 / 3)), level(norm.last(1 / 3))
    if start <= 0.0 or end <= 0.0 or abs(math.log10(end / start)) > HEALTHY_DECADES:
        return None
    found = fall(reward)
    if found is None or not found.from_start or not _fell(reward, found) or trend(reward).direction != "falls":
        return None
    if at_maximum(chart, reward) or rising_elsewhere(chart, int(reward.finite.steps[0])):
        return None
    return Finding(
        id="update-opposes-reward",
        title=f"The reward fell from its very start, {fmt(found.before)} to {fmt(found.after)}, under healthy gradient norms",
        severity="info",
        basis="heuristic",
        since_step=int(reward.finite.steps[0]),
        evidence=(
            reads(
                reward,
                f"{fmt(found.before)} in the first third, {fmt(found.after)} in the last (p = {fmt(found.p_value)})",
            ),
            reads(norm, f"median {fmt(start)} in the first third, {fmt(end)} in the last"),
        ),
        cause="Training makes the policy steadily worse with gradients of an ordinary size: this is how a wrong sign looks. "
        "It is a suspicion; too large a step can look the same.",
        fix=(
            "Check the sign of the policy loss and of the advantages.",
            "Log step/predicted on a held-out batch: it decides.",
        ),
        confirm="Negate the loss for a few hundred steps: with a wrong sign the reward now rises.",
        references=("failure catalogue F26",),
    )
