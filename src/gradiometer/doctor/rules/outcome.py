"""What came of it: a reward that stands, falls, is opposed, or is earned in another way than meant.

A flat reward is mostly what follows from something else; arbitration folds it under its cause. Each
rule asks for a second signal: another measure of success, a known maximum, whether the reward ever
rose.
"""

from __future__ import annotations

import math

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.outcome import (
    Outcome,
    at_maximum,
    began_trained,
    detectable_rise,
    known_maximum,
    learning,
    outcome_of,
    rising_elsewhere,
    slope,
    told_best,
    trained_for,
)
from gradiometer.doctor.proofs import Way, known_events, looked, proved_finding
from gradiometer.doctor.replayed import replayed
from gradiometer.doctor.rule import (
    Draft,
    Skipped,
    Verdict,
    finding,
    needed_outcome,
    rule,
    too_short,
    unlogged,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import (
    NORM,
    enough,
    level,
    persists,
    reads,
    robust_sigma,
    since,
    trend,
)
from gradiometer.maths.means import MeanInterval, mean_interval
from gradiometer.maths.trends import LEVEL, Drift
from gradiometer.records import Evidence, Severity
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("outcome")


@rule(
    "reward-plateau",
    """
    cause: {cause} Nothing else in this log explains it.
    fix: Write the best possible return down as max_reward among the run's facts: success must not
      be mistaken for this.
    fix: Split the loss with meter.terms(...) and run gradiometer audit: both show a term that never
      reaches the policy.
    confirm: Compare with a policy of random actions: a trained policy no better than that has
      learned nothing.
    see: Mann 1945, Kendall 1975 on block means
    """,
)
def reward_plateau(run: RunData) -> Verdict:
    """The reward did not rise over the last half, and there was enough data to see a rise."""
    reward = trained_for(run)
    if reward is None:
        return unlogged("reward")
    half = reward.finite.last(0.5)
    found = slope(half)
    if found is None or found.p_value is None:
        return too_short(
            reward, "its last half must be worth 8 independent blocks of two for a trend"
        )
    falling = found.significant and -found.change >= limits.decline * abs(level(half))
    if (found.significant and found.change > 0.0) or falling or at_maximum(run, reward):
        return None
    if rising_elsewhere(run, int(half.steps[0])):
        return None
    best, height, seen = known_maximum(run, reward), level(half), detectable_rise(half, found)
    gap = None if best is None else best - height
    worth = limits.worth_seeing * (gap or 0.0)
    if gap is None:
        worth = max(limits.worth_seeing * abs(height), robust_sigma(half.values))
    if found.change > worth / 2:
        return None  # it may well be rising, only too slowly for this many measurements
    known = outcome_of(run)
    flat = known is not None and known.course == "flat" and known.series.name == reward.name
    if seen > worth and not flat:  # the whole run tells more than its half
        why = f"too noisy: over the last half only a rise above {fmt(seen)} would be seen, and"
        return Skipped(why=f"{why} {fmt(worth)} matters", metric=reward.metric.name)
    risen = known is not None and not known.stuck
    # where noise hides what a held-out score shows
    learnt = risen or rising_elsewhere(run, int(reward.finite.steps[0])) or began_trained(run)
    start = level(reward.first(0.1))
    short_of = gap is not None and gap > limits.worth_seeing * (gap + height - start)
    # a rate of 1 is the end of the scale, which few tasks reach: it counts where somebody said so
    meant = told_best(run) is not None or not risen
    serious = ((short_of and meant) or not learnt) and not (known is not None and known.early)
    return _plateau(half, found, seen=seen, best=best, risen=risen, serious=serious)


def _plateau(
    half: Series, found: Drift, *, seen: float, best: float | None, risen: bool, serious: bool
) -> Draft:
    height, chance = fmt(level(half)), f"p = {fmt(found.p_value or 0.0)}"
    # a fall that is certain and small is no plateau's contradiction, but it is a trend
    fell = f"it fell by {fmt(-found.change)} ({chance}), less than a tenth of its level {height}"
    drifts = fell if found.significant else f"no trend ({chance}) at {height}"
    of = "" if best is None else f" of at most {fmt(best)}"
    past = ", after it had risen" if risen else ", and it never rose"
    power = f"a rise of {fmt(seen)} over this window would have been seen in four of five such runs"
    stalled = (
        "Either this is all the task allows, or the gradient carries no signal about the reward any"
        " more."
    )
    return finding(
        f"The reward is flat at {height}{of} over the last half of the run{past}",
        reads(half, f"{drifts}; {power}"),
        severity="warn" if serious else "info",
        basis="statistical",
        cause=stalled if risen else "The updates do not improve the policy.",
    )


@rule(
    "reward-declining",
    """
    cause: The updates made the policy worse than it was: steps too large, a critic or reference
      that went astray, data that does not come from this policy, or an update in the wrong
      direction.
    fix: Go back to the checkpoint before the fall and halve the learning rate.
    fix: Log approx_kl, clip_fraction, explained_variance and gradient norms: they tell these causes
      apart.
    confirm: Resume from before the fall with the learning rate divided by ten: if the reward still
      falls, it is the direction and not the size of the steps.
    """,
)
def reward_declining(run: RunData) -> Verdict:
    """The reward ended clearly below its start, or lost much of its best, and stays there."""
    found = needed_outcome(run)
    # where it is early, the state says so
    if found.early or not _declined(found) or at_maximum(run, found.series):
        return None
    if rising_elsewhere(run, int(found.series.last(0.5).steps[0])):
        return None
    before = found.top if found.came_down else found.start
    midway, after = 0.5 * (before + found.end), found.series.last(1 / 3)
    when = f"at its best, about step {found.top_step}" if found.came_down else "at the start"
    return finding(
        f"The {found.noun} fell from {fmt(before)} to {fmt(found.end)}",
        reads(after, f"{fmt(found.end)} against {fmt(before)} {when}"),
        basis="statistical",
        since_step=since(found.series, lambda x: x < midway),
    )


def _declined(found: Outcome) -> bool:
    """Whether it fell by more than luck and noise, and is still down."""
    before = found.top if found.came_down else found.start
    size, spread = before - found.end, robust_sigma(found.series.last(1 / 3).values)
    lost = found.fate == "fell" or (found.came_down and found.lost >= limits.gain_lost)
    gained = found.came_down and found.top - found.start >= 3.0 * spread
    enough_lost = size >= limits.decline * abs(before) or (
        gained and found.lost >= limits.gain_lost and size >= 3.0 * found.spread
    )
    midway = 0.5 * (before + found.end)
    stays = persists(found.series.last(1 / 3), lambda x: x < midway, windows=1)
    return lost and enough_lost and size >= spread and stays is not False


OPPOSED = {
    "worst": Way(
        title="The actions that are taken are those that the network values least", words="worst"
    ),
    "rewards": Way(
        title="Values are trained on the opposite of what the environment pays",
        fix=("Store the reward as the environment pays it, without a minus",),
        values={"doubt": "", "loss": "reward"},
    ),
    "told": Way(
        title="The training is paid the opposite of the return that the monitor tells",
        severity="warn",
        words="told",
    ),
    "term": Way(
        title="The actor's loss is subtracted: the update makes it large",
        values={"doubt": "", "loss": "actor's loss"},
    ),
    "": Way(
        title="The actor's loss falls when its critic thinks less of the action",
        values={"doubt": "", "loss": "actor's loss"},
    ),
}


@rule(
    "update-opposes-reward",
    """
    cause: The sign of the loss, of the advantages or of the reward is wrong: every norm looks
      healthy and every step makes the policy worse.{doubt}
    fix: Optimizers minimise: the policy loss is -(advantages * log_prob).mean(); check for a
      missing or a second minus.
    fix: Check advantages = returns - values, not values - returns, and that a cost is not used as a
      reward.
    confirm: Negate the {loss} for a few hundred steps: the reward must now rise.
    see: F26
    [from-the-start]
    cause: Training makes the policy steadily worse with gradients of an ordinary size: this is how
      a wrong sign looks. It is a suspicion; too large a step can look the same.
    fix: Check the sign of the policy loss and of the advantages.
    fix: Log step/predicted on a held-out batch: it decides.
    confirm: Negate the loss for a few hundred steps: with a wrong sign the reward now rises.
    see: F26
    [told]
    cause: Between the monitor of the environment, whose returns are logged, and the training the
      reward gets another sign. The training makes the logged return as small as it can.
    fix: Take the minus out of the wrapper, the buffer or the step that changes the reward.
    fix: If the environment pays a cost and is turned into a reward on purpose, put the monitor
      outside of that wrapper, so that what is logged is what is trained.
    confirm: Print the reward of a step as the environment returns it and as the buffer holds it.
    see: F26
    [worst]
    cause: What the network has learned is turned round when it acts: the worse an action
      is, the rather it is taken. The network then learns about bad actions only.
    fix: Take the action of the largest value: argmax over the actions, not argmin
    confirm: Print the values of a few observations beside the actions that are taken there.
    """,
)
def update_opposes_reward(run: RunData) -> Verdict:
    """Updates raise a held-out loss or lower reward_gain: the sign is wrong. Without these
    measurements, a reward that falls from the start under healthy norms is a suspicion."""
    events = known_events(run, "update-opposes-reward")
    if learning(run):  # an environment may pay costs, and a program turn them into rewards
        events = [each for each in events if each.detail.get("how") not in ("rewards", "told")]
    if events:
        way = OPPOSED.get(str(events[-1].detail.get("how"))) or OPPOSED[""]
        return proved_finding(events[-1], way)
    if (credited := _opposed_by_credit(run)) is not None:
        recipes = replayed(run)
        # sums over the past, or in the opposite order, fall where the right ones rise
        known = recipes is not None and recipes.wrong is not None and not recipes.wrong.flipped
        return None if known else credited
    predicted, realised = run.get("step/predicted"), run.get("step/realised")
    probed = predicted if predicted is not None else realised
    if probed is None:
        gain = run.get("reward_gain")
        if gain is not None and enough(gain, limits.min_steps):
            return _lowers_what_earned(run, gain)
        recipes = replayed(run)
        if looked(run, "update-opposes-reward") or (recipes is not None and recipes.checked):
            return None  # the graph, or the credit, shows that the sign is right
        return _falls_from_start(run) or unlogged("step/predicted")
    mean = mean_interval(probed.values) if enough(probed, limits.min_steps) else None
    if mean is None:
        least = f"{limits.min_steps} probed steps, 5 independent blocks of two, needed"
        return too_short(probed, least)
    size = float(np.abs(probed.finite.values).mean())
    if mean.p_above(0.0) >= limits.sure or mean.mean < limits.opposed * size:
        return None
    other = None if predicted is None or realised is None else mean_interval(realised.values)
    if other is not None and other.mean <= 0.0:
        return None  # the loss falls in truth: the prediction is what is off
    learns = learning(run)
    certain = (other is not None and other.p_above(0.0) < LEVEL) or learns is False
    return finding(
        f"Steps raise the held-out loss by {fmt(mean.mean)} each: the update goes against the"
        " objective",
        _probed(probed, mean),
        None if realised is None or other is None else _probed(realised, other),
        severity=_how_bad(learns, certain=certain),
        basis="statistical",
        since_step=since(probed, lambda x: x > 0.0),
        doubt=" (If the held-out loss is not what is trained, it is the probe that is wrong.)",
        loss="loss",
    )


def _opposed_by_credit(run: RunData) -> Draft | None:
    """What was paid most is pushed down, from the first updates on."""
    series = run.get("credit/corr_return")
    if series is None or len(series.finite) < limits.min_updates:
        return None
    values = series.finite.values[: int(limits.first_updates)]
    middle = float(np.median(values))
    if middle > limits.opposed_by or float((values < 0).mean()) < limits.nearly_always:
        return None
    reading = f"median {middle:.2f} over the first {len(values)} measured updates"
    return finding(
        f"Updates push down what was paid most: credit and return correlate by {middle:.2f}",
        reads(series, f"{reading}; above 0 in a training that follows its reward"),
        severity="critical",
        basis="statistical",
        doubt="",
        loss="policy loss",
    )


def _lowers_what_earned(run: RunData, gain: Series) -> Draft | None:
    """The samples that earned most become less likely."""
    values, mean = gain.finite.values, mean_interval(gain.values)
    average, below, progress = float(values.mean()), (values < 0.0).mean(), outcome_of(run)
    size = limits.opposed * float(np.abs(values).mean())
    certain = mean is not None and mean.p_below(0.0) < limits.sure and -average >= size
    # One number that hardly varies has no interval; with a reward that fell its sign is enough.
    fell = progress is not None and progress.course == "fell" and below >= limits.nearly_all
    if not (certain or fell):
        return None
    reading = f"mean {fmt(average)}, below zero in {below:.0%} of {len(values)} batches"
    return finding(
        f"Updates lower the probability of what earned most: a correlation of {fmt(average)}",
        reads(gain, reading),
        severity=_how_bad(learning(run), certain=True),
        basis="statistical" if certain else "heuristic",
        since_step=since(gain, lambda x: x < 0.0),
        doubt="",
        loss="policy loss",
    )


def _how_bad(learns: bool | None, *, certain: bool) -> Severity:
    """A reward that rises all the same speaks against the held-out loss, not against the steps."""
    if learns:
        return "info"
    return "critical" if certain else "warn"


def _probed(series: Series, mean: MeanInterval) -> Evidence:
    between = f"95 % interval {fmt(mean.low)} to {fmt(mean.high)}"
    return reads(
        series,
        f"mean {fmt(mean.mean)} ({between}) over {mean.count} probed steps; below zero when steps"
        " help",
    )


def _falls_from_start(run: RunData) -> Draft | None:
    reward, norm = run.get("reward"), run.get(NORM, block="all")
    if reward is None or norm is None or not enough(norm, limits.min_windowed):
        return None
    start, end = level(norm.first(1 / 3)), level(norm.last(1 / 3))
    # an explosion is what it is; a norm that fell is what a sure policy has
    sound = bool(np.isfinite(norm.values).all()) and start > 0.0 and end > 0.0
    if not sound or math.log10(end / start) > limits.healthy_decades:
        return None
    found = outcome_of(run)
    if found is None or found.came_down or not _declined(found):
        return None
    if trend(reward).direction != "falls" or at_maximum(run, reward):
        return None
    if rising_elsewhere(run, int(reward.finite.steps[0])):
        return None
    first, last = fmt(found.start), fmt(found.end)
    return finding(
        f"The reward fell from its very start, {first} to {last}, under healthy gradient norms",
        reads(reward, f"{first} at the start, {last} at the end"),
        reads(norm, f"median {fmt(start)} in the first third, {fmt(end)} in the last"),
        strength="strong",
        words="from-the-start",
    )
