"""Critics and baselines: one that explains nothing, one that knows its own reward, one that runs away, wrong targets.

Explained variance is undefined where returns do not vary, low in every first rollout, and flattered by bootstrapped targets;
so none of it counts before a warm-up, and none of it accuses while the reward rises.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import Progress, key_of, number, progress_of, shown
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import level, persists, since, trend
from gradiometer.doctor.values import (
    MIN_SERIES,
    TARGET_KEYS,
    beyond_reach,
    bounded,
    leaked,
    loss_fell,
    loss_grows,
    momentum,
    unvaried,
    warm,
)
from gradiometer.maths.means import Interval, mean_interval
from gradiometer.maths.series import LEVEL
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["baseline_leak", "critic_diverges", "critic_explains_nothing", "returns_wrong"]

MIN_POINTS = 20
"""Measurements of explained variance, the warm-up among them."""
NOTHING = 0.1
"""Explained variance; 0 is a constant's (SB3's documentation: below 0 is worse than that), and 0.1 nobody's use."""

LEAK_NEAR = 0.5
"""Of the explained variance expected of a leak, on either side; halfway down lies a baseline without one."""
MIN_LEAK = 0.02
"""Explained variance gained by the update below which it is rounding or the critic's honest progress on one batch."""

UNRELATED = 0.3
"""Correlation of last states' targets with the rewards they come from: near 1 by construction (A. Jones)."""
RELATED = 0.7
"""The same, at which the last states may be called right."""
CARRIED = 0.5
"""Of that, at least, one state before the last: the discount of a single step takes little of it."""

VF_KEYS = {
    "SB3": "vf_coef, n_epochs and learning_rate",
    "CleanRL": "--vf-coef, --update-epochs and --learning-rate",
    "verl": "critic.optim.lr and critic.ppo_epochs",
}


def _excused(progress: Progress | None, value_loss: Series | None) -> bool:
    """No second signal: the reward is at its best; or, where there is none, the value loss falls or is not there."""
    if progress is not None:
        return progress.state == "best"
    return value_loss is None or trend(value_loss).direction in ("falls", None)


@rule("critic-explains-nothing", needs=("explained_variance",))
def critic_explains_nothing(chart: Chart) -> Verdict:
    """After the warm-up the critic's values explain no more of the returns than a constant would.

    A warning when the reward stands or, where no reward is known, the value loss does not fall; information when the policy
    learns all the same. A moving average explains nothing by design: that is `baseline-leak`'s to look at.
    """
    id = "critic-explains-nothing"
    series, value_loss = chart.get("explained_variance"), chart.get("value_loss")
    assert series is not None
    if len(series.finite) < MIN_POINTS:
        return too_short(id, series, MIN_POINTS)
    if why := unvaried(chart):
        return Skipped(rule=id, why=why, metric="explained_variance")
    if value_loss is None and momentum(chart) is not None:
        return None
    explained = bounded(warm(series))
    interval, progress = mean_interval(explained.values), progress_of(chart)
    usual = interval.high if interval is not None else float(np.percentile(explained.last(0.5).values, 90))
    low = persists(explained, lambda x: x <= NOTHING) and usual < NOTHING
    if not low or _excused(progress, value_loss):
        return None
    learns = progress is not None and not progress.stuck
    if learns and (value_loss is None or loss_fell(value_loss)):
        return None
    keys = key_of(series, VF_KEYS, "vf_coef, the critic's learning rate, epochs")
    read, rising = level(explained), progress is not None and learns and not progress.standing
    evidence = [_reading(series, explained, interval)]
    evidence += [_loss_evidence(value_loss)] if value_loss is not None else []
    evidence += [progress.evidence] if progress is not None else []
    return Finding(
        id=id,
        title=f"The critic explains {round(100 * read)} % of the returns' variance: no better than a constant",
        severity="info" if rising else "warn",
        basis="statistical" if interval is not None else "heuristic",
        since_step=since(explained, lambda x: x <= NOTHING) or int(explained.steps[0]),
        block="critic" if chart.get("grad/<block>/norm/raw", block="critic") is not None else None,
        evidence=tuple(evidence),
        cause="Advantages are as noisy as the returns themselves: the critic does not learn (no gradient, too small a step, a "
        "detached head), or its targets cannot be predicted from what it sees.",
        fix=(
            f"check that the value loss reaches the critic's weights, then its step size: {keys}",
            "scale rewards or normalise returns so that value targets are of order one",
            "until it explains something, a mean over the batch or the group is the better baseline",
        ),
        confirm="Fit the critic alone on one kept rollout for a hundred steps: explained variance there must go above 0.5. If "
        "not, the wiring or the targets are at fault; if so, its learning rate in training.",
        references=("failure catalogue F36", "SB3 logger documentation", "A. Jones, Debugging RL"),
    )


def _reading(series: Series, warm: Series, interval: Interval | None) -> Evidence:
    """The level after the warm-up, with its interval where there is one."""
    between = f", mean {fmt(interval.mean)} in [{fmt(interval.low)}, {fmt(interval.high)}]" if interval else ""
    first = int(warm.steps[0]) if len(warm) else None
    return shown(series, f"median {fmt(level(warm))} after the warm-up{between}", first_step=first)


def _loss_evidence(value_loss: Series) -> Evidence:
    direction = trend(value_loss).direction or "has no clear trend"
    reading = (
        f"{direction}: {fmt(level(value_loss.first(0.1)))} at the start, {fmt(level(value_loss.last(0.2)))} at the end"
    )
    return shown(value_loss, reading)


@rule("baseline-leak", needs=("explained_variance",))
def baseline_leak(chart: Chart) -> Verdict:
    """The baseline contains the rewards it is subtracted from.

    With the explained variance from before the update at hand this is a test. From the explained variance alone it is a
    suspicion: what a moving average with this momentum would show on noise that it has already seen.
    """
    series, before = chart.get("explained_variance"), chart.get("explained_variance_before")
    assert series is not None
    if before is not None:
        return _measured_leak(series, before)
    beta = momentum(chart)
    if beta is None:
        return unlogged("baseline-leak", "explained_variance_before")
    explained = bounded(warm(series))
    expected, without = leaked(beta), -(1.0 - beta) / (1.0 + beta)
    near = persists(explained, lambda x: abs(x - expected) <= LEAK_NEAR * expected)
    if near is None:
        return too_short("baseline-leak", series, MIN_POINTS)
    progress = progress_of(chart)
    if not near or progress is None or not progress.stuck:
        return None
    return Finding(
        id="baseline-leak",
        title=f"Explained variance {fmt(level(explained))} is what a baseline that contains its own reward shows on pure noise",
        severity="info",
        basis="heuristic",
        since_step=int(explained.steps[0]),
        evidence=(
            _reading(series, explained, mean_interval(explained.values)),
            Evidence(
                series=series.name,
                reading=f"momentum {fmt(beta)}: {fmt(expected)} on independent rewards if the average already contains "
                f"them, {fmt(without)} if it does not",
            ),
            progress.evidence,
        ),
        cause="A suspicion, from explained variance alone: the moving average is updated with the reward and only then "
        "subtracted from it. Such a number is no sign that the baseline knows anything.",
        fix=_LEAK_FIX,
        confirm="Log explained_variance_before, computed with the baseline as it was before the update: if it is near "
        f"{fmt(without)}, the baseline leaks.",
        references=("FORMULAS 5: EV = 1 − β²(1 + (1−β)/(1+β))",),
    )


_LEAK_FIX = (
    "advantage = reward − baseline first, baseline.update(reward) after it",
    "report explained variance with the baseline that was subtracted",
)


def _measured_leak(series: Series, before: Series) -> Verdict:
    """A test on the difference, step by step."""
    common, at, at_before = np.intersect1d(series.steps, before.steps, return_indices=True)
    gained = np.clip(series.values[at], -1.0, 1.0) - np.clip(before.values[at_before], -1.0, 1.0)
    interval = mean_interval(gained)
    if interval is None:
        why = f"explained_variance_before: {int(np.isfinite(gained).sum())} points beside explained_variance, too few"
        return Skipped(rule="baseline-leak", why=why, metric="explained_variance_before")
    if interval.p_above(MIN_LEAK) >= LEVEL:
        return None
    return Finding(
        id="baseline-leak",
        title=f"The baseline contains its own reward: updating it explains {fmt(interval.mean)} more of the variance",
        severity="warn",
        basis="statistical",
        since_step=int(common[0]),
        evidence=(
            shown(series, f"median {fmt(level(series))}"),
            shown(before, f"median {fmt(level(before))}: {fmt(interval.low)} to {fmt(interval.high)} less (95 %)"),
        ),
        cause="The baseline is updated with a reward before it is subtracted from it, so part of the advantage is taken away "
        "and the gradient is biased towards zero.",
        fix=_LEAK_FIX,
        confirm="Subtract the baseline before updating it: both explained variances must agree.",
        references=("FORMULAS 5",),
    )


@rule("critic-diverges")
def critic_diverges(chart: Chart) -> Verdict:
    """Values or value loss run away from what can be earned, while the reward does not rise. NaN and Inf prove it."""
    given = [chart.get(name) for name in ("q_value", "value_mean", "value_loss")]
    there = [series for series in given if series is not None]
    if not there:
        return unlogged("critic-diverges", "value_loss")
    broken = next((series for series in there if len(series) >= 3 and not np.isfinite(series.values[-3:]).any()), None)
    if broken is not None and len(broken.finite):
        return _not_finite(broken)
    long = [series.finite for series in there if len(series.finite) >= MIN_SERIES]
    if not long:
        return too_short("critic-diverges", there[0], MIN_SERIES)
    progress = progress_of(chart)
    values = [series for series in long if series.metric.name != "value_loss"]
    for series in values or long:  # where the values themselves are known, the loss need not be asked
        found = beyond_reach(chart, series, progress) if values else loss_grows(chart, series)
        if found is not None and (progress is None or progress.stuck):
            return _diverging(series, found, progress)
    return None


def _not_finite(series: Series) -> Finding:
    last = series.finite
    return Finding(
        id="critic-diverges",
        title=f"The critic's numbers are no longer finite: {series.metric.name} after step {int(last.steps[-1])}",
        severity="critical",
        basis="proved",
        since_step=int(series.steps[series.steps > last.steps[-1]][0]),
        evidence=(shown(series, f"{fmt(float(last.values[-1]))} at step {int(last.steps[-1])}, then NaN or Inf"),),
        cause="A value or its target overflowed; every advantage made from it is worthless.",
        fix=_DIVERGE_FIX,
        confirm="Go back to a checkpoint before that step and log the largest value target: it grows until it overflows.",
        references=("failure catalogue F39",),
    )


_DIVERGE_FIX = (
    "lower the critic's learning rate, clip its gradient, use a Huber loss",
    "bootstrap from a target network that lags (Polyak τ = 0.005, or a copy every 1,000 to 10,000 updates)",
    "take the smaller of two critics, and mask the bootstrap where the episode ended",
)


def _diverging(series: Series, found: tuple[str, int | None], progress: Progress | None) -> Finding:
    seen, step = found
    what = "value loss" if series.metric.name == "value_loss" else "values"
    return Finding(
        id="critic-diverges",
        title=f"The critic runs away: {what} {seen}",
        severity="warn",
        basis="statistical" if what == "value loss" else "heuristic",
        since_step=step,
        evidence=(shown(series, seen), *((progress.evidence,) if progress else ())),
        cause="Targets are made from the critic's own values, so errors feed on themselves; or rewards are on another scale "
        "than the critic was made for.",
        fix=(*_DIVERGE_FIX, f"settings: {key_of(series, TARGET_KEYS, 'target update interval, tau, learning rate')}"),
        confirm="Freeze the targets for a thousand updates: the values must settle. If they do, the bootstrap feeds itself.",
        references=("failure catalogue F39", "van Hasselt et al. 2016", "van Hasselt et al. 2018, the deadly triad"),
    )


@rule("returns-wrong")
def returns_wrong(chart: Chart) -> Verdict:
    """Value targets that do not belong to the rewards: at the last state, one state before it, or as far as EV can tell."""
    id = "returns-wrong"
    terminal, before = chart.get("terminal_correlation"), chart.get("penultimate_correlation")
    if terminal is None:
        return _worse_than_constant(chart)
    unrelated = persists(warm(terminal), lambda x: x < UNRELATED)
    if unrelated is None:
        return too_short(id, terminal, MIN_SERIES)
    last = warm(terminal)
    if unrelated:
        title = f"Targets of last states hardly correlate with their rewards ({fmt(level(last))})"
        cause = "The value of the next episode's first state leaks into the last target: the done mask is missing, or rewards "
        found = _wrong(
            title, cause + "lie a step off.", (_reading(terminal, last, mean_interval(last.values)),), _MASK_FIX
        )
        always = level(terminal.finite.first(0.2)) < UNRELATED
        return replace(found, since_step=int(terminal.finite.steps[0])) if always else found
    if before is None or not persists(last, lambda x: x > RELATED):
        return None
    bound = CARRIED * level(last)
    if not persists(warm(before), lambda x: x < bound):
        return None
    earlier = fmt(level(warm(before)))
    title = f"Rewards are not carried back: correlation {fmt(level(last))} at last states, {earlier} one before"
    cause = "Returns stop at the step that paid: they are summed in the wrong direction, or the discount is applied as zero."
    fix = ("sum returns from the last step to the first: R = r + γ·(1 − done)·R", "check γ and λ as the code sees them")
    return _wrong(title, cause, (shown(terminal, fmt(level(last))), shown(before, earlier)), fix)


_MASK_FIX = (
    "multiply the bootstrap by (1 − terminated); a time limit is not a termination",
    "check that reward t belongs to action t: print one short episode",
)


def _wrong(title: str, cause: str, evidence: tuple[Evidence, ...], fix: tuple[str, ...]) -> Finding:
    return Finding(
        id="returns-wrong",
        title=title,
        severity="warn",
        basis="heuristic",
        since_step=evidence[0].first_step,
        evidence=evidence,
        cause=cause,
        fix=fix,
        confirm="A probe environment of two steps with a reward at the end: the values must become γ and 1.",
        references=("failure catalogue F9, F10", "A. Jones, Debugging RL: terminal and penultimate correlation"),
    )


def _worse_than_constant(chart: Chart) -> Verdict:
    """EV below zero with a value loss that does not fall: all that can be said without the correlations, as information."""
    unknown = unlogged("returns-wrong", "terminal_correlation")
    series, loss, progress = chart.get("explained_variance"), chart.get("value_loss"), progress_of(chart)
    if series is None or loss is None or len(series.finite) < MIN_POINTS or progress is None or unvaried(chart):
        return unknown
    explained = bounded(warm(series))
    interval = mean_interval(explained.values)
    if interval is None or interval.high >= 0.0 or not persists(explained, lambda x: x < 0.0) or not progress.stuck:
        return unknown
    if trend(loss).direction in ("falls", None):
        return unknown
    gamma = number(chart.fact("gamma", "discount"))
    known = f"γ is {fmt(gamma)}; " if gamma is not None else ""
    said = f"{known}whether last states are at fault only terminal_correlation can tell: log it"
    found = _wrong(
        f"The critic is worse than a constant (EV {fmt(level(explained))}) and its loss does not fall: look at its targets",
        f"Targets may blow up or not belong to their states (γ, n-step, done mask, reward scale). {said}.",
        (_reading(series, explained, interval), _loss_evidence(loss), progress.evidence),
        _MASK_FIX,
    )
    return replace(found, severity="info", basis="statistical", references=("failure catalogue F14, F36",))
