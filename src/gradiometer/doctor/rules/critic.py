"""Critics: one that explains nothing, knows its own reward, or runs away; wrong targets.

Explained variance is undefined where returns do not vary, low in every first rollout, and flattered
by bootstrapped targets; so none of it counts before a warm-up, and none of it accuses while the
reward rises.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.outcome import Outcome, became, outcome_of, stuck, suffers, trained_for
from gradiometer.doctor.proofs import BRACES, Way, known_events, looked, proved_finding
from gradiometer.doctor.rule import (
    Draft,
    Skipped,
    Verdict,
    finding,
    needed,
    proof,
    rule,
    too_short,
    unlogged,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import (
    NORM,
    ends,
    level,
    log10,
    newest,
    number,
    persists,
    shown,
    since,
    trend,
)
from gradiometer.doctor.trainers import key_of
from gradiometer.maths.means import MeanInterval, mean_interval
from gradiometer.maths.trends import LEVEL
from gradiometer.records import Event, Evidence
from gradiometer.words import fmt

__all__ = ["leaked"]

limits = thresholds.group("critic")


def _excused(progress: Outcome | None, value_loss: Series | None) -> bool:
    """No second signal: the reward is at its best; or, without one, the value loss falls."""
    if progress is not None:
        return progress.course == "best"
    return value_loss is None or trend(value_loss).direction in ("falls", None)


@rule(
    "critic-explains-nothing",
    """
    cause: Advantages are as noisy as the returns themselves: the critic does not learn (no
      gradient, too small a step, a detached head), or its targets cannot be predicted from what it
      sees.
    fix: check that the value loss reaches the critic's weights, then its step size: {keys}
    fix: scale rewards or normalise returns so that value targets are of order one
    fix: until it explains something, a mean over the batch or the group is the better baseline
    confirm: Fit the critic alone on one kept rollout for a hundred steps: explained variance there
      must go above 0.5. If not, the wiring or the targets are at fault; if so, its learning rate in
      training.
    see: F36
    see: SB3 logger documentation
    see: A. Jones, Debugging RL
    """,
    needs=("explained_variance",),
)
def critic_explains_nothing(run: RunData) -> Verdict:
    """After the warm-up the critic's values explain no more of the returns than a constant would.

    A warning when the reward stands or, where no reward is known, the value loss does not fall;
    information when the policy learns all the same, or has gained much before it stood. A moving
    average explains nothing by design: that is `baseline-leak`'s to look at.
    """
    series = needed(run, "explained_variance", limits.min_points)
    value_loss = run.get("value_loss")
    if why := unvaried(run):
        return Skipped(why=why, metric="explained_variance")
    if value_loss is None and momentum(run) is not None:
        return None
    explained = bounded(warm(series))
    interval, progress = mean_interval(explained.values), outcome_of(run)
    high = float(np.percentile(explained.last(0.5).values, 90))
    usual = high if interval is None else interval.high
    low = persists(explained, lambda x: x <= limits.nothing) and usual < limits.nothing
    if not low or _excused(progress, value_loss):
        return None
    learns = progress is not None and not progress.stuck
    if learns and (value_loss is None or loss_fell(value_loss)):
        return None
    read, rising = level(explained), progress is not None and learns and _does_well(progress)
    known = run.get(NORM, block="critic") is not None
    return finding(
        f"The critic explains {round(100 * read)} % of the returns' variance: no better than "
        "a constant",
        _reading(series, explained, interval),
        None if value_loss is None else _loss_evidence(value_loss),
        became(run),
        severity="info" if rising else "warn",
        basis="statistical" if interval is not None else "heuristic",
        since_step=since(explained, lambda x: x <= limits.nothing) or int(explained.steps[0]),
        block="critic" if known else None,
        keys=key_of(series, "critic", "vf_coef, the critic's learning rate, epochs"),
    )


def _does_well(progress: Outcome) -> bool:
    """It still rises; or it gained much of its own size, and kept it: with this critic."""
    much = progress.way >= limits.learned * progress.unit and suffers(progress) is None
    return much or not progress.standing


def _reading(series: Series, warm: Series, interval: MeanInterval | None) -> Evidence:
    """The level after the warm-up, with its interval where there is one."""
    read, between = f"median {fmt(level(warm))} after the warm-up", ""
    if interval:
        between = f", mean {fmt(interval.mean)} in [{fmt(interval.low)}, {fmt(interval.high)}]"
    first = int(warm.steps[0]) if len(warm) else None
    return shown(series, read + between, first_step=first)


def _loss_evidence(value_loss: Series) -> Evidence:
    direction = trend(value_loss).direction or "has no clear trend"
    first, last = fmt(level(value_loss.first(0.1))), fmt(level(value_loss.last(0.2)))
    return shown(value_loss, f"{direction}: {first} at the start, {last} at the end")


@rule(
    "baseline-leak",
    """
    cause: A suspicion, from explained variance alone: the moving average is updated with the reward
      and only then subtracted from it. Such a number is no sign that the baseline knows anything.
    fix: advantage = reward − baseline first, baseline.update(reward) after it
    fix: report explained variance with the baseline that was subtracted
    confirm: Log explained_variance_before, computed with the baseline as it was before the update:
      if it is near {without}, the baseline leaks.
    see: mathematics: Baseline leak
    [measured]
    cause: The baseline is updated with a reward before it is subtracted from it, so part of the
      advantage is taken away and the gradient is biased towards zero.
    fix: advantage = reward − baseline first, baseline.update(reward) after it
    fix: report explained variance with the baseline that was subtracted
    confirm: Subtract the baseline before updating it: both explained variances must agree.
    see: mathematics: Baseline leak
    """,
    needs=("explained_variance",),
)
def baseline_leak(run: RunData) -> Verdict:
    """The baseline contains the rewards it is subtracted from.

    With the explained variance from before the update at hand this is a test. From the explained
    variance alone it is a suspicion: what a moving average with this momentum would show on noise
    that it has already seen.
    """
    series, before = needed(run, "explained_variance"), run.get("explained_variance_before")
    if before is not None:
        return _measured_leak(series, before)
    beta = momentum(run)
    if beta is None:
        return unlogged("explained_variance_before")
    explained = bounded(warm(series))
    expected, without = leaked(beta), -(1.0 - beta) / (1.0 + beta)
    near = persists(explained, lambda x: abs(x - expected) <= limits.leak_near * expected)
    if near is None:
        return too_short(series, limits.min_points)
    if not near or not stuck(run):
        return None
    said = f"{fmt(expected)} on independent rewards if the average already contains them"
    return finding(
        f"Explained variance {fmt(level(explained))} is what a baseline that contains its own"
        " reward shows on pure noise",
        _reading(series, explained, mean_interval(explained.values)),
        Evidence(
            series=series.name,
            reading=f"momentum {fmt(beta)}: {said}, {fmt(without)} if it does not",
        ),
        became(run),
        severity="info",
        since_step=int(explained.steps[0]),
        without=fmt(without),
    )


def _measured_leak(series: Series, before: Series) -> Verdict:
    """A test on the difference, step by step."""
    common, at, at_before = np.intersect1d(series.steps, before.steps, return_indices=True)
    gained = np.clip(series.values[at], -1.0, 1.0) - np.clip(before.values[at_before], -1.0, 1.0)
    interval = mean_interval(gained)
    if interval is None:
        count, metric = int(np.isfinite(gained).sum()), "explained_variance_before"
        why = f"{metric}: {count} points beside explained_variance, too few"
        return Skipped(why=why, metric=metric)
    if interval.p_above(limits.min_leak) >= LEVEL:
        return None
    less = f"{fmt(interval.low)} to {fmt(interval.high)}"
    return finding(
        f"The baseline contains its own reward: updating it explains {fmt(interval.mean)} "
        "more of the variance",
        shown(series, f"median {fmt(level(series))}"),
        shown(before, f"median {fmt(level(before))}: {less} less (95 %)"),
        basis="statistical",
        since_step=int(common[0]),
        words="measured",
    )


@rule(
    "critic-diverges",
    """
    cause: Targets are made from the critic's own values, so errors feed on themselves; or rewards
      are on another scale than the critic was made for.
    fix: lower the critic's learning rate, clip its gradient, use a Huber loss
    fix: bootstrap from a target network that lags (Polyak τ = 0.005, or a copy every 1,000 to
      10,000 updates)
    fix: take the smaller of two critics, and mask the bootstrap where the episode ended
    fix: settings: {key}
    confirm: Freeze the targets for a thousand updates: the values must settle. If they do, the
      bootstrap feeds itself.
    see: F39
    see: van Hasselt et al. 2016
    see: van Hasselt et al. 2018, the deadly triad
    [not-finite]
    cause: A value or its target overflowed; every advantage made from it is worthless.
    fix: lower the critic's learning rate, clip its gradient, use a Huber loss
    fix: bootstrap from a target network that lags (Polyak τ = 0.005, or a copy every 1,000 to
      10,000 updates)
    fix: take the smaller of two critics, and mask the bootstrap where the episode ended
    confirm: Go back to a checkpoint before that step and log the largest value target: it grows
      until it overflows.
    see: F39
    """,
)
def critic_diverges(run: RunData) -> Verdict:
    """Values, or the value loss, grow far beyond the returns that are possible."""
    names = [*VALUES, "value_loss", "td_error"]
    if run.has("q_value") or run.has("exploration_rate"):
        names.append("loss")  # nothing but a critic is trained
    there = [series for name in names if (series := run.get(name)) is not None]
    if not there:
        return unlogged("value_loss")
    lost = (x for x in there if len(x) >= 3 and not np.isfinite(x.values[-3:]).any())
    broken = next(lost, None)
    if broken is not None and len(broken.finite):
        return _not_finite(broken)
    long = [series.finite for series in there if len(series.finite) >= limits.min_series]
    if not long:
        return too_short(there[0], limits.min_series)
    progress = outcome_of(run)
    # where the values themselves are known, a loss must have grown by more than any returns explain
    known = any(series.metric.name in VALUES for series in long)
    least = limits.past_all if known else limits.growth
    for series in long:
        of_values = series.metric.name in VALUES
        found = beyond_reach(run, series, progress) if of_values else loss_grows(run, series, least)
        if found is not None:
            return _diverging(series, found, progress)
    return None


VALUES = ("q_value", "value_mean")


def _not_finite(series: Series) -> Draft:
    last, step = newest(series), int(series.finite.steps[-1])
    return proof(
        f"The critic's numbers are no longer finite: {series.metric.name} after step {step}",
        shown(series, f"{fmt(last)} at step {step}, then NaN or Inf"),
        since_step=int(series.steps[series.steps > step][0]),
        words="not-finite",
    )


def _diverging(series: Series, found: tuple[str, int | None], progress: Outcome | None) -> Draft:
    seen, step = found
    of_values = series.metric.name in VALUES
    beyond = not of_values and not _of_returns(series, progress)
    return finding(
        f"The critic runs away: {'values' if of_values else 'value loss'} {seen}",
        shown(series, seen),
        progress and progress.evidence,
        strength="strong",
        role="plain" if beyond else "convergence",
        basis="heuristic" if of_values else "statistical",
        since_step=step,
        key=key_of(series, "target", "target update interval, tau, learning rate"),
    )


def _of_returns(loss: Series, progress: Outcome | None) -> bool:
    """Whether the returns of a policy that learns may make it grow: by the square of what they
    grow, and no longer than they do."""
    size = replace(loss.finite, values=np.abs(loss.finite.values))
    far = level(size.last(0.1)) >= 10.0**limits.past_all * level(size.first(0.1))
    half = log10(size).last(0.5)
    grows = trend(half).direction == "rises" and (
        level(half.last(0.2)) - level(half.first(0.2)) >= limits.still_grows
    )
    return not (far or (grows and progress is not None and progress.rests))


@rule(
    "returns-wrong",
    """
    cause: The value of the next episode's first state leaks into the last target: the done mask is
      missing, or rewards lie a step off.
    fix: multiply the bootstrap by (1 − terminated); a time limit is not a termination
    fix: check that reward t belongs to action t: print one short episode
    confirm: A probe environment of two steps with a reward at the end: the values must become γ and
      1.
    see: F9
    see: F10
    see: A. Jones, Debugging RL: terminal and penultimate correlation
    [not-carried]
    cause: Returns stop at the step that paid: they are summed in the wrong direction, or the
      discount is applied as zero.
    fix: sum returns from the last step to the first: R = r + γ·(1 − done)·R
    fix: check γ and λ as the code sees them
    confirm: A probe environment of two steps with a reward at the end: the values must become γ and
      1.
    see: F9
    see: F10
    see: A. Jones, Debugging RL: terminal and penultimate correlation
    [worse-than-constant]
    cause: Targets may blow up or not belong to their states (γ, n-step, done mask, reward scale).
      {known}whether last states are at fault only terminal_correlation can tell: log it.
    fix: multiply the bootstrap by (1 − terminated); a time limit is not a termination
    fix: check that reward t belongs to action t: print one short episode
    confirm: A probe environment of two steps with a reward at the end: the values must become γ and
      1.
    see: F14
    see: F36
    """,
)
def returns_wrong(run: RunData) -> Verdict:
    """Value targets do not match the rewards, at the last state or at the one before it."""
    terminal, before = run.get("terminal_correlation"), run.get("penultimate_correlation")
    if terminal is None:
        return _worse_than_constant(run)
    last = warm(terminal)
    unrelated = persists(last, lambda x: x < limits.unrelated)
    if unrelated is None:
        return too_short(terminal, limits.min_series)
    if unrelated:
        reading = _reading(terminal, last, mean_interval(last.values))
        always = level(terminal.finite.first(0.2)) < limits.unrelated
        return finding(
            f"Targets of last states hardly correlate with their rewards ({fmt(level(last))})",
            reading,
            since_step=int(terminal.finite.steps[0]) if always else reading.first_step,
        )
    bound = limits.carried * level(last)
    if before is None or not persists(last, lambda x: x > limits.related):
        return None
    if not persists(warm(before), lambda x: x < bound):
        return None
    at_last, earlier = fmt(level(last)), fmt(level(warm(before)))
    return finding(
        f"Rewards are not carried back: correlation {at_last} at last states, {earlier} one before",
        shown(terminal, at_last),
        shown(before, earlier),
        words="not-carried",
    )


def _worse_than_constant(run: RunData) -> Verdict:
    """EV below zero and a value loss that does not fall: all there is without the correlations."""
    unknown = unlogged("terminal_correlation")
    series, loss = run.get("explained_variance"), run.get("value_loss")
    if series is None or loss is None or not stuck(run):
        return unknown
    if len(series.finite) < limits.min_points or unvaried(run):
        return unknown
    explained = bounded(warm(series))
    interval = mean_interval(explained.values)
    if interval is None or interval.high >= 0.0 or not persists(explained, lambda x: x < 0.0):
        return unknown
    if trend(loss).direction in ("falls", None):
        return unknown
    gamma = number(run.fact("gamma", "discount"))
    return finding(
        f"The critic is worse than a constant (EV {fmt(level(explained))}) and its loss does not"
        " fall: look at its targets",
        _reading(series, explained, interval),
        _loss_evidence(loss),
        became(run),
        severity="info",
        basis="statistical",
        words="worse-than-constant",
        known=f"γ is {fmt(gamma)}; " if gamma is not None else "",
    )


# The target network


@rule(
    "target-network",
    """
    cause: {cause}
    fix: check {key}, and that the update is called at all
    fix: copy into another module (deepcopy, load_state_dict), never by assignment: target = online
      shares the weights
    confirm: Compare one weight of both networks right before and right after an update of the
      target.
    see: F38
    see: RLExplorer
    see: Mnih et al. 2015
    """,
)
def target_network(run: RunData) -> Verdict:
    """The target network is the online one, or is never updated.

    Proved where the meter compares the weights themselves: two names of one network, a copy that
    is the same before every step or a step behind at most, or one that never changes.
    """
    facts = known_events(run, "target-network")
    if facts or (looked(run, "target-network") and not run.has("target_distance")):
        ways = dict.fromkeys(str(event.detail.get("how")) for event in facts)
        each = ([x for x in facts if str(x.detail.get("how")) == way] for way in ways)
        return map(_proved_target, each)
    series = needed(run, "target_distance", limits.min_distances)
    distance, progress = series.finite, outcome_of(run)
    learns = progress is not None and not progress.stuck
    same = float(np.abs(distance.values).max()) <= limits.equal
    if not same and (learns or not never_updated(distance)):
        return None
    end, title = fmt(level(distance.last(0.1))), "The target network"
    seldom = "; or the distance is only ever measured right after a copy."
    return finding(
        f"{title} equals the online one at all {len(distance)} measurements"
        if same
        else f"{title} is never updated: its distance grows to {end} and never falls back",
        shown(series, f"{fmt(float(distance.values[0]))} at the start, {end} at the end"),
        progress and progress.evidence,
        severity="info" if same and (learns or progress is None) else "warn",
        basis="heuristic" if same else "statistical",
        since_step=int(distance.steps[0]),
        cause=AS_ONLINE[:-1] + seldom if same else AS_AT_FIRST,
        key=key_of(series, "target", "the update interval and τ"),
    )


AS_ONLINE = "Targets move with every update, as if there were no target network."
AS_AT_FIRST = (
    "The values bootstrap from weights as they were at the start, so nothing beyond one step is"
    " ever learnt."
)
TARGET_FACTS = {
    "alias": ("is the trained network itself", "Its name was set to the network, not to a copy."),
    "equal": ("equals the trained network before every step", AS_ONLINE),
    "close": (
        "takes over nearly all of the trained network at each update",
        "The rate of its updates is near 1: τ and 1 − τ (or polyak) may be exchanged. " + AS_ONLINE,
    ),
    "ignored": (
        "is updated and never asked",
        "What the values are trained towards comes from the network that is trained, and moves with"
        " every step.",
    ),
    "never": ("never changes", AS_AT_FIRST),
}
"""How a target fails, as the meter calls it: the end of a title, and the cause."""


def _proved_target(events: list[Event]) -> Draft:
    """One finding for all targets that fail in one way."""
    what, cause = TARGET_FACTS.get(str(events[0].detail.get("how")), TARGET_FACTS["never"])
    others = ", ".join(repr(each.detail.get("target")) for each in events[1:]).translate(BRACES)
    more = f" (the same holds for {others})" if others else ""
    values = {"cause": cause, "key": "the update interval and τ"}
    title = f"The target network {{target!r}} {what}{more}"
    return proved_finding(events[0], Way(title=title, severity="warn", values=values))


def earned(run: RunData, progress: Outcome | None) -> float | None:
    """The largest size a value can honestly have, longer where the horizon 1/(1−γ) is."""
    if progress is None:
        return None
    size = float(np.abs(progress.series.values).max())
    size = max(size, abs(progress.known_best or 0.0))
    gamma, length = number(run.fact("gamma", "discount")), run.get("episode_length")
    if gamma is not None and 0.0 < gamma < 1.0 and length is not None and level(length) > 0.0:
        size *= max(1.0, 1.0 / (1.0 - gamma) / level(length))
    return size * max(1.0, abs(number(run.fact("reward_scale")) or 1.0))


def beyond_reach(
    run: RunData, values: Series, progress: Outcome | None
) -> tuple[str, int | None] | None:
    """|Q| stays above ten times what can be earned, and came there by growing; or it has the sign
    that no reward ever had."""
    most = earned(run, progress)
    if most is None or most == 0.0 or progress is None:
        return None
    highest = (run.get("reward_max") or progress.series).finite.values
    below_zero = len(highest) > 0 and float(highest.max()) < 0.0
    if below_zero and persists(values, lambda x: x > limits.wrong_sign * most):
        seen = f"{fmt(level(values.last(0.5)))} over the last half, where no reward is above zero"
        return seen, since(values, lambda x: x > 0.0)
    size = replace(values, values=np.abs(values.values))
    start, end = level(size.first(0.1)), level(size.last(0.2))
    if not persists(size, lambda x: x > limits.far * most) or end <= 2.0 * start:
        return None
    grown = f"{fmt(start)} at the start, {fmt(end)} at the end"
    seen = f"{grown}, where at most {fmt(most)} was ever earned"
    return seen, since(size, lambda x: x > limits.far * most)


def loss_grows(run: RunData, loss: Series, least: float) -> tuple[str, int | None] | None:
    """The value loss grew by so many decades along a trend, above the returns' variance if
    known."""
    logs = log10(loss)
    if len(logs) < limits.min_series:
        return None
    start, end = ends(logs)
    if trend(logs, min_change=least).direction != "rises" or end - start < least:
        return None
    spread = run.get("returns/<statistic>", statistic="std")
    if spread is not None and 10.0**end < level(spread.last(0.2)) ** 2:
        return None
    seen = f"{fmt(10.0**start)} at the start, {fmt(10.0**end)} at the end"
    return seen, since(logs, lambda x: x - start >= least)


def loss_fell(loss: Series) -> bool:
    """The value loss is on its way down, or at less than half of what it was."""
    return trend(loss).direction == "falls" or level(loss.last(0.2)) < 0.5 * level(loss.first(0.2))


def warm(series: Series) -> Series:
    """Without the warm-up, without NaN."""
    finite = series.finite
    return finite.last(1.0 - limits.warm_up) if len(finite) else finite


def bounded(series: Series) -> Series:
    """Shares of variance cut at −1, for one bad rollout can read −1000."""
    return replace(series, values=np.clip(series.values, -1.0, 1.0))


def unvaried(run: RunData) -> str:
    """Why the explained variance means nothing here; empty when it does mean something."""
    spread = run.get("returns/<statistic>", statistic="std")
    if spread is not None:
        mean = run.get("returns/<statistic>", statistic="mean")
        size = abs(level(mean.last(0.5))) if mean is not None else 0.0
        if level(spread.last(0.5)) <= limits.constant * max(size, limits.constant):
            return "the returns do not vary, so explained variance is undefined"
    reward = trained_for(run)
    if spread is not None or reward is None or not len(reward.finite):
        return ""
    varies = float(np.ptp(reward.finite.last(0.5).values)) != 0.0
    why = "the reward does not vary over the last half, so explained variance may be undefined"
    return "" if varies else f"{why}: log returns/std"


def momentum(run: RunData) -> float | None:
    """The share of its past a moving-average baseline keeps, where the run wrote it down."""
    names = [f"baseline{sign}{name}" for name in ("momentum", "beta", "decay") for sign in "._"]
    beta = number(run.fact(*names))
    return beta if beta is not None and 0.0 < beta < 1.0 else None


def leaked(beta: float) -> float:
    """EV of i.i.d. rewards under an average that holds them: 1 − β²(1 + (1−β)/(1+β))."""
    return 1.0 - beta**2 * (1.0 + (1.0 - beta) / (1.0 + beta))


def never_updated(distance: Series) -> bool:
    """Grows along a trend to the end, never falling back: a copy would, an average settles."""
    n = len(distance)
    top = np.maximum.accumulate(distance.values)
    first, second = level(distance.first(0.25)), level(distance.first(0.5).last(0.5))
    last = level(distance.last(0.25))
    grows = trend(distance).direction == "rises" and last > max(
        limits.keeps_growing * second, limits.has_grown * first
    )
    return grows and bool((distance.values[n // 4 :] > limits.falls_back * top[n // 4 :]).all())
