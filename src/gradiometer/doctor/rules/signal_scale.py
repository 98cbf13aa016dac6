"""The scale of advantages and rewards: outliers that make the step alone, a missing normalisation, value targets out of reach.

Under Adam and with normalised advantages a constant scale cancels, so a scale is a fault only where something suffers from it:
the reward goes nowhere, the gradient jumps with the outliers, the critic drowns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import key_of, progress_of, shown
from gradiometer.doctor.roles import role_of
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import level, persists, since, trend
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["advantage_outliers", "advantage_scale", "reward_scale"]

MIN_POINTS = 9
"""Three windows of three: what `persists` needs."""

OUTLIER = 10.0
"""Standard deviations. The largest of a million normal advantages lies at 5, of a sparse success once in a hundred at 10."""
SPIKE = 30.0
"""Times its own median. A tiny std in one group made −2075 among advantages of about 2 (NeMo-RL issue 4158)."""
LARGE = 20.0
"""What a spike must reach in itself: normalised advantages in batches of thousands stay below."""
JUMP = 3.0
"""Times its median: a gradient norm that jumped with the advantages."""
REPEATED = 3
"""Steps with outliers before they are a state and not an accident."""

LOUD = 5.0
"""Standard deviation of advantages (public log doctors); 1 when normalised."""
LOSS = 1.0
"""|policy loss|, the same: with normalised advantages and ratios near 1 it is near 0."""
OFF_CENTRE = 0.5
"""|mean| over std: by then most samples are pushed one way whatever they did."""
NORMALISED = (0.1, 2.0)
"""Where the std of normalised advantages lies: 1, less where most groups have no variance, never far above."""

FAR = 10.0
"""Of value targets: outside [−10, 10] a critic that starts near zero has far to go (A. Jones; RLExplorer)."""
TINY = 0.05
"""The same at the other end: rewards a hundred times too small drown in the noise of an untrained critic."""
DROWNING = 100.0
"""Value loss: an error of 10 or more, so the targets lie outside [−10, 10] whatever was logged."""
GREEDY = 0.5
"""Share of the gradient that a value term takes."""
EXPLAINED = "explained_variance"
BLIND = 0.02
"""Explained variance up to which a critic is no better than a constant: it reads 1e-5 where the targets are out of reach."""
DECADE = 10.0
"""Growth of a value loss, last fifth over first."""

NORM_KEYS = {
    "SB3": "normalize_advantage=True",
    "CleanRL": "--norm-adv",
    "TRL": "scale_rewards (or whiten_rewards)",
    "verl": "algorithm.norm_adv_by_std_in_grpo",
}
SCALE_KEYS = {
    "SB3": "VecNormalize(norm_reward=True)",
    "CleanRL": "gym.wrappers.NormalizeReward",
    "TRL": "scale_rewards",
    "verl": "the reward function's scale",
}
NORM_FACTS = ("normalize_advantage", "norm_adv", "norm_adv_by_std_in_grpo", "normalize_advantages", "whiten_advantages")


def _advantages(chart: Chart, statistic: str) -> Series | None:
    found = chart.get("advantages/<statistic>", statistic=statistic)
    return None if found is None or not len(found.finite) else found.finite


def _outliers(largest: Series, std: Series) -> Series:
    """Where the largest advantage is an outlier: its number of standard deviations, or of its own medians; 0 elsewhere."""
    steps, here, there = np.intersect1d(largest.steps, std.steps, assume_unique=True, return_indices=True)
    values, spread = largest.values[here], std.values[there]
    sigmas = np.divide(values, spread, out=np.zeros_like(values), where=spread > 0.0)
    medians = values / max(level(largest), 1e-12)
    spiked = (medians >= SPIKE) & (values >= LARGE)
    return replace(largest, steps=steps, values=np.where(spiked, medians, np.where(sigmas >= OUTLIER, sigmas, 0.0)))


def _jumps(chart: Chart, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Evidence | None:
    """The gradient at those steps, where it is far above its median."""
    norm = chart.get("grad/<block>/norm/raw", block="all")
    if norm is None or not len(norm.finite):
        return None
    norm = norm.finite
    there = norm.values[np.isin(norm.steps, steps)]
    if not len(there) or not np.median(there) >= JUMP * level(norm):
        return None
    return shown(norm, f"{fmt(float(np.median(there)))} at those steps, {fmt(level(norm))} at a typical one")


@rule("advantage-outliers", needs=("advantages/<statistic>",))
def advantage_outliers(chart: Chart) -> Verdict:
    """One sample's advantage makes the step (F13): far out of its batch, or of all other batches.

    Sparse successes and max@k weights look like it: only a gradient that jumps too, or repeated spikes, make it more than
    information.
    """
    largest, std = _advantages(chart, "max_abs"), _advantages(chart, "std")
    if largest is None or std is None:
        return unlogged("advantage-outliers", "advantages/<statistic>")
    found = _outliers(largest, std)
    if len(found) < MIN_POINTS:
        return too_short("advantage-outliers", found, MIN_POINTS)
    steps, count = found.steps[found.values > 0.0], int((found.values > 0.0).sum())
    sizes = largest.values[np.isin(largest.steps, steps)]
    num_spikes = int(((sizes >= LARGE) & (sizes >= SPIKE * level(largest))).sum())
    if count < REPEATED and not num_spikes:
        return None
    jumped, worst = _jumps(chart, steps), fmt(float(sizes.max()))
    sure = jumped is not None or num_spikes >= REPEATED
    if not sure and (progress := progress_of(chart)) is not None and not progress.stuck:
        return None
    reading = f"{count} of {len(found)} steps with outliers; the largest {worst}, median {fmt(level(largest))}"
    return Finding(
        id="advantage-outliers",
        title=f"Single advantages of up to {worst} decide {count} of {len(found)} steps",
        severity="warn" if sure else "info",
        basis="heuristic",
        since_step=int(steps[0]),
        evidence=(
            shown(largest, reading, first_step=int(steps[0])),
            shown(std, f"median {fmt(level(std))}"),
            *(() if jumped is None else (jumped,)),
        ),
        cause="A reward far from the rest, or a division by a tiny standard deviation: a group of almost equal rewards "
        "(leave-one-out std near zero) blows its odd one up.",
        fix=("Add the epsilon to the std, not below it, and skip groups with a std under 1e-3",
             "Clip advantages to ±10 or rewards to a few standard deviations"),
        confirm="Log the group of the largest advantage: its rewards and their std. With advantages clipped to ±10 the "
        "gradient norm loses its spikes.",
        references=("NeMo-RL issue 4158",),
    )  # fmt: skip


def _scales(chart: Chart, std: Series | None, mean: Series | None) -> list[tuple[Evidence, int | None]]:
    """What is wrong with the advantages themselves."""
    found: list[tuple[Evidence, int | None]] = []
    normalised = any(chart.fact(name) is True for name in NORM_FACTS)
    low, high = NORMALISED if normalised else (0.0, LOUD)
    if std is not None:
        for wrong in (lambda x: x > high, lambda x: x < low):
            if persists(std, wrong):
                why = "although they are normalised" if normalised else "normalised ones have 1"
                found.append(
                    (shown(std, f"std {fmt(level(std.last(0.5)))} over the last half; {why}"), since(std, wrong))
                )
    if std is not None and mean is not None:
        steps, here, there = np.intersect1d(mean.steps, std.steps, assume_unique=True, return_indices=True)
        off = np.abs(mean.values[here]) / np.maximum(std.values[there], 1e-12)
        centre = replace(mean, steps=steps, values=off)
        if persists(centre, lambda x: x > OFF_CENTRE) and not _on_its_way(chart):
            reading = f"|mean| is {fmt(level(centre.last(0.5)))} of the std over the last half; 0 when centred"
            found.append((shown(mean, reading), since(centre, lambda x: x > OFF_CENTRE)))
    return found


def _on_its_way(chart: Chart) -> bool:
    """A critic that still comes closer to its returns: what advantages are off by is what it has not learnt yet."""
    loss, value, returns = (
        chart.get("value_loss"),
        chart.get("value_mean"),
        chart.get("returns/<statistic>", statistic="mean"),
    )
    if loss is None or value is None or returns is None or trend(loss).direction != "falls":
        return False
    gaps = [abs(level(part(returns)) - level(part(value))) for part in (_early, _late)]
    return gaps[1] < gaps[0]


def _early(series: Series) -> Series:
    return series.finite.first(0.2)


def _late(series: Series) -> Series:
    return series.finite.last(0.2)


def _loud_loss(chart: Chart) -> tuple[Evidence, int | None] | None:
    """A policy loss that is large; not that of SAC and TD3, which is −Q, nor a sum over samples."""
    loss = chart.get("policy_loss")
    if (
        loss is None
        or "actor_loss" in loss.name
        or chart.has("q_value")
        or chart.fact("reduction", "loss_reduction") == "sum"
    ):
        return None
    if not persists(loss, lambda x: abs(x) > LOSS):
        return None
    reading = f"|policy loss| {fmt(abs(level(loss.last(0.5))))} over the last half; near 0 with normalised advantages"
    return shown(loss, reading), since(loss, lambda x: abs(x) > LOSS)


@rule("advantage-scale")
def advantage_scale(chart: Chart) -> Verdict:
    """Advantages that are not normalised, normalised twice or with the wrong statistics (F11, F12).

    What they are themselves goes before what the loss suggests, and none of it counts while the reward rises: max@k weights
    are never centred.
    """
    std, mean = _advantages(chart, "std"), _advantages(chart, "mean")
    loss = chart.get("policy_loss")
    seen = std if std is not None else None if loss is None else loss.finite
    if seen is None:
        return unlogged("advantage-scale", "advantages/<statistic>")
    if len(seen) < MIN_POINTS:
        return too_short("advantage-scale", seen, MIN_POINTS)
    found = _scales(chart, std, mean)
    if std is None and (loud := _loud_loss(chart)) is not None:
        found = [loud]
    if not found or ((progress := progress_of(chart)) is not None and not progress.stuck):
        return None
    severity: Severity = "info" if progress is None else "warn"
    key = key_of(seen if loss is None else loss, NORM_KEYS, "(A - A.mean())/(A.std() + 1e-8)")
    starts = [start for _, start in found if start is not None]
    return Finding(
        id="advantage-scale",
        title=f"Advantages are off scale: {found[0][0].reading}",
        severity=severity,
        basis="heuristic",
        since_step=min(starts, default=None),
        evidence=(*(evidence for evidence, _ in found), *(() if progress is None else (progress.evidence,))),
        cause="The scale of the advantages sets the size of the policy term against every other term and against the clip; an "
        "offset pushes all samples one way whatever they did.",
        fix=(f"Normalise once, over the batch that is stepped on: {key}",
             "Take mean and std from the same samples the loss uses, after masking; not from the first rollout, not twice"),
        confirm="Print mean and std of the advantages right before the loss: 0 and 1. Train 50 steps so: the reward moves.",
        references=("axon-rl/gem #113", "PipelineRL #54", "arXiv 2006.05990 on advantage normalisation"),
    )  # fmt: skip


def _large(x: float) -> bool:
    return abs(x) > FAR


def _small(x: float) -> bool:
    return abs(x) < TINY


def _drowning(x: float) -> bool:
    return x > DROWNING


def _targets(chart: Chart) -> tuple[Series, Callable[[float], bool]] | None:
    """Value targets outside where a critic learns them, and in which way."""
    looked = [
        (chart.get("returns/<statistic>", statistic="max_abs"), _large),
        (chart.get("returns/<statistic>", statistic="mean"), _large),
        (chart.get("value_mean"), _large),
        (chart.get("returns/<statistic>", statistic="max_abs"), _small),
    ]
    if not chart.has("q_value"):  # there it is a loss of action values, of which the critic's rules know more
        looked.append((chart.get("value_loss"), _drowning))
    found = ((series, wrong) for series, wrong in looked if series is not None and persists(series, wrong))
    return next((pair for pair in found if _is_a_scale(chart, *pair)), None)


def _is_a_scale(chart: Chart, series: Series, wrong: Callable[[float], bool]) -> bool:
    """Whether it was so from the start: targets that grow run away, whatever the rewards' scale. And that they vary at all."""
    if wrong is _large:
        return wrong(level(series.finite.first(0.1)))
    spread = chart.get("returns/<statistic>", statistic="std")
    return wrong is not _small or spread is None or level(spread) > 1e-6 * level(series)


def _critic_suffers(chart: Chart, targets: Series) -> list[Evidence]:
    """The second signal: the critic's loss runs off, its gradient takes over, or it explains nothing."""
    found: list[Evidence] = []
    loss, explained = chart.get("value_loss"), chart.get(EXPLAINED)
    if loss is not None and loss.name != targets.name and len(loss.finite):
        first, last = (level(part) for part in (loss.finite.first(0.2), loss.finite.last(0.2)))
        grown = last > DECADE * first and trend(loss).direction == "rises"
        if persists(loss, lambda x: x > DROWNING) or grown:
            found.append(shown(loss, f"{fmt(first)} at the start, {fmt(last)} at the end"))
    for share in chart.every("grad/<block>/term/<term>/share"):
        values = share.parts.get("block") == "all" and role_of(share.parts["term"]) == "value"
        if values and persists(share, lambda x: x > GREEDY):
            found.append(shown(share, f"the value term has {fmt(100 * level(share.last(0.5)))} % of the gradient"))
    if explained is not None and persists(explained, lambda x: x <= BLIND):
        found.append(shown(explained, f"median {fmt(level(explained.last(0.5)))} over the last half"))
    return found


@rule("reward-scale")
def reward_scale(chart: Chart) -> Verdict:
    """Value targets far outside [−10, 10], or a hundred times too small (F8), and a critic that suffers from it.

    CartPole without scaling has returns of 100 and learns: only with a reward that goes nowhere is it a warning, or with one
    that stands while the critic explains nothing.
    """
    known = ("returns/<statistic>", "value_mean", "value_loss")
    if not any(chart.has(name) for name in known):
        return unlogged("reward-scale", known[0])
    found = _targets(chart)
    if found is None:
        return None
    targets, wrong = found
    suffers, progress = _critic_suffers(chart, targets), progress_of(chart)
    explained = chart.get(EXPLAINED)
    blind = explained is not None and any(evidence.series == explained.name for evidence in suffers)
    if not suffers or (progress is not None and not progress.stuck and not (progress.standing and blind)):
        return None
    at, key = fmt(level(targets.last(0.5))), key_of(targets, SCALE_KEYS, "divide by a running std of returns")
    evidence = (shown(targets, f"median {at} over the last half"), *suffers)
    return Finding(
        id="reward-scale",
        title=f"Value targets are too {'small' if wrong is _small else 'large'} for the critic: {targets.name} is {at}",
        severity="info" if progress is None else "warn",
        basis="heuristic",
        since_step=since(targets, wrong),
        evidence=evidence if progress is None else (*evidence, progress.evidence),
        cause="Returns this small are below what an untrained critic predicts by chance." if wrong is _small
        else "A critic starts near zero and its loss grows with the square of the returns: it takes the gradient or never "
        "arrives.",
        fix=(f"Scale rewards so that returns lie within [-3, 3]: {key}",
             "Or normalise value targets (PopArt), and keep the critic out of the policy's trunk"),
        confirm=f"Multiply rewards by {'100' if wrong is _small else '0.01'} and train 50 updates: explained_variance rises.",
        references=("A. Jones, Debugging RL, without the agonizing pain", "arXiv 1602.07714 (PopArt)"),
    )  # fmt: skip
