"""The size of the policy's step: too large, ratios that explode, a clip that holds most samples.

KL divergences are compared with regard to their estimator: k2 and k3 are never negative, k1 is signed and noisy around a small
value, and where a rollout is used for a single step all three are exactly 0 by construction, which says nothing. A large step
accuses only with a reward that falls or goes nowhere, a small one only below the maximum. What drifts from a reference or from
the data is in stepsize_drift.py, what does not move at all in stepsize_frozen.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import suffers
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import key_of, number, progress_of, shown
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import level, near_best, persists, since
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["ppo_clip_saturated", "ratio_explosion", "step_too_large"]

MIN_POINTS = 9
"""Three windows of three: what `persists` needs."""

HIGH_KL = 0.02
"""Nats (public log doctors); twice Spinning Up's target of 0.01. With a reward that falls it is enough."""
LARGE_KL = 0.05
"""A typical ratio of e^0.3, beyond PPO's clip of 1.2: most samples of a typical batch are outside."""
WILD_KL = 1.0
"""Ratios of e^1.4 and more: what was collected says little about the policy that is trained (Schulman: 10 is too much)."""
STOPS_AT = 1.5
"""Times target_kl: where SB3 and Spinning Up stop the epochs of a rollout."""
LARGE_UPDATE = 1e-2
"""‖Δw‖/‖w‖ of all weights; the catalogue's upper edge."""
JUMP = 0.5
"""The same of one step: half of what the network was is gone. Measured, and no matter of statistics."""
FAR_KL, LOST = 0.2, 0.5
"""Nats of one rollout, ten times the usual limit, and the share of the reward that was lost with it."""
WINDOWS, MOST, SOME = 6, 3, 2
"""Disjoint windows of a run, and in how many the median must be too high. They need not be the last: a step that was too
large early leaves a policy without entropy, whose KL is then small."""

EXPLODED = 10.0
"""The meter's own limit of π/π_old; PPO stops paying beyond 1.2."""
REPEATED = 3
"""Steps with such ratios before they are a state: among a million tokens one may be so by chance."""

SATURATED, HALF = 0.3, 0.4
"""Share of clipped samples (public log doctors); the second counts without a reward to look at."""
LOPSIDED, NOTICEABLE = 3.0, 0.05
"""Low clips over high ones (public log doctors), and the share from which their ratio is not a ratio of a few samples."""

STEP_KEYS = {
    "SB3": "learning_rate, n_epochs, clip_range and target_kl",
    "CleanRL": "--learning-rate, --update-epochs and --target-kl",
    "TRL": "learning_rate and num_iterations (num_ppo_epochs)",
    "verl": "actor_rollout_ref.actor.optim.lr and .ppo_epochs",
}


def _windows(series: Series, limit: float) -> int | None:
    """In how many of six disjoint windows of the run the median is above the limit; None when it is too short."""
    values = series.finite.values
    if len(values) < MIN_POINTS:
        return None
    return sum(float(np.median(part)) > limit for part in np.array_split(values, min(WINDOWS, len(values) // 3)))


def _first_above(series: Series, limit: float) -> int | None:
    """The first step of a stretch of three above the limit."""
    above = series.finite.values > limit
    runs = np.flatnonzero(above[:-2] & above[1:-1] & above[2:]) if len(above) >= 3 else np.array([], dtype=np.int64)
    return int(series.finite.steps[runs[0]]) if len(runs) else None


@rule("step-too-large")
def step_too_large(chart: Chart) -> Verdict:
    """The policy moves too far in a step (F15): KL or update ratio above its limit, and a reward that falls or goes nowhere.

    A KL of more than a nat, with weights that jump or most samples clipped, needs no reward to be too large.
    """
    kl, update = chart.get("approx_kl"), chart.get("grad/<block>/update_ratio", block="all")
    if kl is None and update is None:
        return unlogged("step-too-large", "approx_kl")
    if (jump := _jumped(chart, update)) is not None:
        return jump
    if all(series is None or len(series.finite) < MIN_POINTS for series in (kl, update)):
        return too_short("step-too-large", next(x for x in (kl, update) if x is not None), MIN_POINTS)
    target = number(chart.fact("target_kl", "desired_kl"))
    limit = HIGH_KL if target is None or target <= 0.0 else STOPS_AT * target
    high = _large(kl, limit, MOST)
    much = high if target is not None else _large(kl, LARGE_KL, MOST)
    moved, wild = _large(update, LARGE_UPDATE, MOST), _wild(chart, kl, update)
    evidence = [x for x in (high, moved) if x is not None]
    if not evidence and not wild:
        return None
    progress = progress_of(chart)
    fell, stuck = suffers(progress), progress is not None and progress.stuck
    if fell is not None and evidence:
        return _too_large(kl or update, (*evidence, fell), severity="warn")
    if stuck and progress is not None and (much is not None or moved is not None):
        return _too_large(kl or update, (*evidence, progress.evidence), severity="warn")
    if wild:
        return _too_large(kl or update, wild, severity="warn")
    if progress is None and much is not None:
        return _too_large(kl, (much,), severity="info")
    return None


def _jumped(chart: Chart, update: Series | None) -> Finding | None:
    """One step that put another network in the place of this one, after which the reward fell or never rose."""
    if update is None or not (update.finite.values >= JUMP).any():
        return _thrown_off(chart)
    step = int(update.finite.steps[np.argmax(update.finite.values >= JUMP)])
    progress = progress_of(chart)
    if progress is None:
        return None
    before, later = progress.reward.until(step), progress.reward.since(step).values
    start = level(before.last(0.2)) if len(before) else progress.start
    if progress.best is not None and near_best(progress.end, progress.best, start):
        return None
    lowest = min((float(np.median(part)) for part in np.array_split(later, WINDOWS) if len(part)), default=np.inf)
    thrown = lowest < start - abs(start)
    if not (progress.stuck or thrown):
        return None
    most = float(update.finite.values.max())
    reached = f"went from {fmt(start)} to {fmt(lowest)} and ends at {fmt(progress.end)}"
    reading = f"one step moved the weights by {most:.0%} of their size"
    return replace(
        _too_large(update, (shown(update.finite, reading, first_step=step), progress.evidence), severity="critical"),
        title=f"One step moved the weights by {most:.0%} of their size, and the reward {reached}",
        basis="proved",
    )


def _thrown_off(chart: Chart) -> Finding | None:
    """A reward that was lost at one stroke and never came back, just after the policy had gone far from what collected."""
    kl, progress = chart.get("approx_kl"), progress_of(chart)
    if kl is None or progress is None or len(progress.reward) < 2 * MIN_POINTS:
        return None
    values, steps = progress.reward.values, progress.reward.steps
    far = [int(step) for step in kl.finite.steps[kl.finite.values > FAR_KL]]
    at = int(np.searchsorted(steps, far[0], side="right")) if far else 0
    if not far or at >= len(values) // 2:
        return None
    before, after = float(values[: max(at, 1)].mean()), values[at + 1 :]
    lost = before - float(np.percentile(after, 90))
    if lost < LOST * max(abs(before), 1e-12) or lost <= 2.0 * float(np.std(after)):
        return None
    peak = float(kl.finite.values.max())
    evidence = (shown(kl.finite, f"{fmt(peak)} at its peak", first_step=far[0]), progress.evidence)
    return replace(
        _too_large(kl, evidence, severity="critical"),
        title=f"After a KL of {fmt(peak)} the reward fell from {fmt(before)} to {fmt(float(np.median(after)))} and stayed",
        basis="statistical",
    )


def _large(series: Series | None, limit: float, needed: int) -> Evidence | None:
    """The series as evidence, where it is above the limit in enough windows."""
    if series is None or (_windows(series, limit) or 0) < needed:
        return None
    above = float((series.finite.values > limit).mean())
    named = f" ({series.estimator})" if series.estimator else ""
    reading = f"median {fmt(level(series))}{named}, above {fmt(limit)} in {fmt(100 * above)} % of the measurements"
    return shown(series.finite, reading, first_step=_first_above(series, limit))


def _wild(chart: Chart, kl: Series | None, update: Series | None) -> tuple[Evidence, ...]:
    """A KL above a nat in two windows, with weights that jumped or a clip that held most samples."""
    found, clipped = _large(kl, WILD_KL, SOME), chart.get("clip_fraction")
    seconds = (_large(update, LARGE_UPDATE, 1), _large(clipped, HALF, 1))
    second = tuple(x for x in seconds if x is not None)
    return () if found is None or not second else (found, *second)


def _too_large(series: Series | None, evidence: tuple[Evidence, ...], *, severity: Severity) -> Finding:
    key = "the learning rate and the epochs over a rollout"
    return Finding(
        id="step-too-large",
        title=f"The policy moves too far in a step: {evidence[0].series} {evidence[0].reading}",
        severity=severity,
        basis="heuristic",
        since_step=evidence[0].first_step,
        evidence=evidence,
        cause="The gradient holds near the policy that collected the data; further out it is a guess.",
        fix=(f"Lower {key if series is None else key_of(series, STEP_KEYS, key)} by 3 to 10 times",
             "Stop the epochs of a rollout at a target KL of 0.01 to 0.02; clip gradients near their median norm"),
        confirm="Line-search the next step: scale the update by 1, 1/3, 1/10 and compare the held-out objective; train 50 "
        "updates with a third of the learning rate.",
        references=("Spinning Up PPO: target_kl 0.01", "SB3 PPO: target_kl", "J. Schulman, Nuts and Bolts of Deep RL"),
    )  # fmt: skip


@rule("ratio-explosion")
def ratio_explosion(chart: Chart) -> Verdict:
    """Policy ratios above 10, or infinite: PPO's clip does not bound them where the advantage is negative.

    Once is information, and so are a few while the reward rises.
    """
    largest, events = chart.get("ratio/<statistic>", statistic="max"), chart.events("ratio-explosion")
    if largest is None and not events:
        return unlogged("ratio-explosion", "ratio/<statistic>")
    seen = {event.step: number(event.detail.get("ratio")) or np.inf for event in events}
    if largest is not None:
        out = (largest.values > EXPLODED) | np.isposinf(largest.values)
        seen |= dict(zip(largest.steps[out].tolist(), largest.values[out].tolist(), strict=True))
    if not seen:
        return None
    progress, top, first = progress_of(chart), max(seen.values()), min(seen)
    gained = progress is not None and not progress.stuck
    severe = (len(seen) >= REPEATED and not gained) or np.isinf(top) or suffers(progress) is not None
    name = "event ratio-explosion" if largest is None else largest.name
    reading = f"above {fmt(EXPLODED)} at {len(seen)} steps, the largest {fmt(top)}"
    worst = max(seen, key=lambda step: seen[step])
    many = "1 step" if len(seen) == 1 else f"{len(seen)} steps"
    return Finding(
        id="ratio-explosion",
        title=f"A policy ratio of {fmt(top)} at step {worst}; {many} above {fmt(EXPLODED)}",
        severity="warn" if severe else "info",
        basis="heuristic",
        since_step=first,
        evidence=(Evidence(series=name, reading=reading, first_step=first, last_step=max(seen)),
                  *(() if progress is None else (progress.evidence,))),
        cause="The policy left the one that collected the data, or the two log-probs are not of the same thing (mask, "
        "temperature, dropout); with a negative advantage the loss grows with the ratio and no clip stops it.",
        fix=("Fewer epochs over a rollout, a smaller learning rate, fresher data", "Clip both ways (dual clip, verl: "
             "actor_rollout_ref.actor.clip_ratio_c=3) and clamp the log ratio to ±20"),
        confirm="Before the first update of a rollout the ratio must be 1 for every sample: if not, the log-probs differ.",
        references=("arXiv 1912.09729: dual clip",),
    )  # fmt: skip


@rule("ppo-clip-saturated")
def ppo_clip_saturated(chart: Chart) -> Verdict:
    """PPO's clip holds a third of the samples or more, or mostly one side (F23), and the reward falls or goes nowhere."""
    clipped = chart.get("clip_fraction")
    low, high = chart.get("clip_fraction_low"), chart.get("clip_fraction_high")
    if clipped is None and (low is None or high is None):
        return unlogged("ppo-clip-saturated", "clip_fraction")
    held = None if clipped is None else persists(clipped, lambda x: x >= SATURATED)
    uneven = _uneven(low, high)
    if held is None and uneven is None and clipped is not None:
        return too_short("ppo-clip-saturated", clipped, MIN_POINTS)
    if not held and uneven is None:
        return None
    progress = progress_of(chart)
    harm = suffers(progress) or (progress.evidence if progress is not None and progress.stuck else None)
    alone = progress is None and clipped is not None and held and level(clipped.last(0.5)) >= HALF
    if harm is None and not alone:
        return None
    series, evidence = clipped if held and clipped is not None else low, [] if uneven is None else [uneven]
    assert series is not None
    start = since(series, lambda x: x >= (SATURATED if held else NOTICEABLE))
    if held:
        evidence.insert(0, shown(series, f"median {fmt(level(series.last(0.5)))} over the last half", first_step=start))
    share, side = fmt(100 * level(series.last(0.5))), "" if held else ", mostly from below"
    return Finding(
        id="ppo-clip-saturated",
        title=f"The clip of PPO holds {share} % of the samples{side}",
        severity="info" if harm is None else "warn",
        basis="heuristic",
        since_step=start,
        evidence=(*evidence, *(() if harm is None else (harm,))),
        cause="A clipped sample has no gradient: later epochs and minibatches learn from the few that are left. Mostly low "
        "clips say that the policy unlearns more than it learns.",
        fix=(f"Lower {key_of(series, STEP_KEYS, 'the learning rate or the epochs over a rollout')}",
             "Raise the clip range if it is below 0.1; with many low clips look at the sign and the mean of the advantages"),
        confirm="Train 50 updates with one epoch a rollout: clip_fraction falls below 0.1 and the reward should move.",
        references=("arXiv 1707.06347", "arXiv 2503.14476: clip-higher"),
    )  # fmt: skip


def _uneven(low: Series | None, high: Series | None) -> Evidence | None:
    if low is None or high is None or not persists(low, lambda x: x >= NOTICEABLE):
        return None
    at, other = level(low.last(0.5)), level(high.last(0.5))
    if not at >= LOPSIDED * other:
        return None
    return shown(low, f"{fmt(at)} of the samples clipped from below, {fmt(other)} from above, over the last half")
