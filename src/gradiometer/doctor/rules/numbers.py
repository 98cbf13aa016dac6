"""Numbers: gradients that are not finite, explode, vanish, spike, or are exactly zero.

The meter's `health` is never read: a band relative to its own past calls a run that was broken from its first step healthy.
"""

from __future__ import annotations

import math

import numpy as np

from gradiometer.doctor.chart import Chart
from gradiometer.doctor.gradients import (
    NORM,
    SPIKE_WINDOW,
    exploded,
    flat_outcome,
    items,
    jumps,
    layered,
    log10,
    rhythm,
    seen,
    spikes,
    stays,
    stuck,
    vanished,
    where,
    worse_outcome,
)
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.nonfinite import LOSSES, aftermath, nonfinite_steps
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import enough, learning, level, outcome, since, trend
from gradiometer.maths.health import FALLBACK_LOW
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__: list[str] = []

MIN_POINTS = 24
"""Three windows of a sixth with four measurements each are the last half of so many."""
LARGE_STEP = 0.1
"""‖Δw‖/‖w‖ of a tenth a step: healthy is 1e-4 to 1e-2 (TheDeepChecker)."""
MIN_SPIKES = 3
"""Failure catalogue F33: fewer are a batch or two."""
ZERO_INFO, ZERO_WARN, ZERO_ALL, MIN_ZEROS = 0.1, 0.25, 0.99, 5
"""Shares of the steps. Public runs that stalled had 29 % and 88 % (failure catalogue F1)."""


# Not finite


@rule("nonfinite-gradient")
def nonfinite_gradient(chart: Chart) -> Verdict:
    """A NaN or an Inf in a gradient: judged on elements where we measured, on norms and losses where others logged.

    One that reaches the optimizer ends the training. Finite gradients afterwards mean that the trainer skipped the step, as
    verl does with no more than a printed line; under an fp16 loss scale a few such steps are by design.
    """
    events, states = chart.events("nonfinite"), items(chart.table("states"))
    norms = chart.every(NORM) + chart.every("total_grad_norm")
    bad = nonfinite_steps(chart, norms)
    tensors = [str(name) for event in events[:1] for name in event.detail.get("tensors", ())]
    tensors = tensors or [name for name, state in states if state == "nonfinite"]
    if not (bad or events or tensors):
        metric = "grad/<block>/nonfinite"
        if norms or states or any(chart.has(name) for name in (metric, *LOSSES)):
            return None
        return unlogged("nonfinite-gradient", metric)
    first = min([int(steps[0]) for _, steps in bad] + [event.step for event in events], default=None)
    terms = [str(name) for event in events[:1] for name in event.detail.get("terms", ())]
    terms = terms or [series.parts["term"] for series, steps in bad if "term" in series.parts and steps[0] == first]
    block = next((where(series) for series, _ in bad if "block" in series.parts), None)
    place = tensors[0] if tensors else block
    severity, after = aftermath(chart, bad, norms)
    evidence = [seen(s, f"not finite at {len(steps)} of {len(s)} steps", steps=steps) for s, steps in bad[:3]]
    evidence += [
        Evidence(series="nonfinite", reading=e.message, first_step=e.step, last_step=e.step) for e in events[:1]
    ]
    if not evidence:
        evidence = [Evidence(series="states", reading=f"{len(tensors)} parameters nonfinite, first {tensors[0]}")]
    named = (f" of {place}" if place else "") + (f", from the term {terms[0]!r}" if terms else "")
    return Finding(
        id="nonfinite-gradient",
        title=f"NaN or Inf in the gradient{named}" + ("" if first is None else f" at step {first}"),
        severity=severity,
        basis="proved",
        since_step=first,
        block=block,
        evidence=tuple(evidence),
        cause=f"An operation of {'that term' if terms else 'the loss'} left the range of its numbers. {after}",
        fix=(
            "look for the log of 0 or of a masked probability, a division by a zero std, exp of an unbounded log-ratio",
            "in fp16 call scaler.unscale_(optimizer) before the clip, or train in bf16",
            "restart from a checkpoint before that step: weights that met a NaN do not recover",
        ),
        confirm='Run up to that step with gm.watch(..., on_nonfinite="raise", tier="deep"): it stops inside backward.',
        references=(
            "failure catalogue F32",
            "verl dp_actor.py skips such steps",
            "TRL issue 6702",
            "OneTrainer issue 1147",
        ),
    )


# Too large, too small


@rule("exploding-gradient", needs=(NORM,))
def exploding_gradient(chart: Chart) -> Verdict:
    """The norm has grown a hundredfold, or is above 1e4, and stays there, and something suffers from it.

    Growth alone is no fault: gradients grow with the returns of a policy that learns, and Adam cancels their scale.
    """
    norms = [series for series in chart.every(NORM) if enough(log10(series), MIN_POINTS)]
    if not norms:
        return too_short("exploding-gradient", chart.every(NORM), MIN_POINTS)
    harm = () if learning(chart) else (*_leaps(chart), *worse_outcome(chart))
    found = [
        (log10(series), edge) for series in norms if harm and (edge := exploded(log10(series), len(norms))) is not None
    ]
    if not found:
        return None
    log, edge = max(found, key=lambda x: level(x[0].last(0.2)))
    start, end = 10.0 ** level(log.first(1 / 6)), 10.0 ** level(log.last(0.2))
    reward = outcome(chart)
    falls = reward is not None and trend(reward).direction == "falls"
    return Finding(
        id="exploding-gradient",
        title=f"The gradient of {where(log)} has exploded: its norm is {fmt(end)}, at the start it was {fmt(start)}",
        severity="critical" if falls else "warn",
        basis="heuristic",
        since_step=since(log, lambda x: x >= edge),
        block=where(log),
        evidence=(seen(log, f"median {fmt(start)}, then {fmt(end)}; {len(found)} of {len(norms)} blocks"), *harm),
        cause="Each step makes the next gradient larger: a learning rate too high, advantages or value targets without a "
        "scale, or a policy ratio far from 1.",
        fix=(
            "lower the learning rate by 3 to 10",
            "normalise advantages and returns, or scale the reward into [-3, 3]",
            "clip: clip_grad_norm_(model.parameters(), 0.5) before the step (SB3, TRL max_grad_norm; verl actor.grad_clip)",
        ),
        confirm="Restart from a checkpoint before that step with a tenth of the learning rate: the norm must stay level.",
        references=("failure catalogue F35", "TheDeepChecker", "A. Jones, Debugging RL"),
    )


def _leaps(chart: Chart) -> tuple[Evidence, ...]:
    """The weights themselves, where they move by a tenth of their size at a step."""
    moved = chart.get("grad/<block>/update_ratio", block="all")
    if moved is None or not stays(moved, lambda x: x >= LARGE_STEP):
        return ()
    return (seen(moved, f"weights move by {fmt(level(moved.last(0.5)))} of their size at a step"),)


@rule("vanishing-gradient", needs=(NORM, "reward"))
def vanishing_gradient(chart: Chart) -> Verdict:
    """The norm has fallen below a twentieth of its start, or below what Adam's ε lets through, and the reward never rose.

    A converged policy has tiny gradients too; it is told by a reward that rose, or stands at its maximum. Exact zeros are
    another finding.
    """
    norms = [log10(series) for series in chart.every(NORM) if not layered(series) and enough(log10(series), MIN_POINTS)]
    if not norms:
        return too_short("vanishing-gradient", chart.every(NORM), MIN_POINTS)
    found = [(log, edge) for log in norms if stuck(chart) and (edge := vanished(log, len(norms))) is not None]
    if not found:
        return None
    log, edge = min(found, key=lambda x: level(x[0].last(0.2)) - x[1])
    start, end = 10.0 ** level(log.first(1 / 6)), 10.0 ** level(log.last(0.2))
    return Finding(
        id="vanishing-gradient",
        title=f"The gradient of {where(log)} has vanished: its norm is {fmt(end)}, at the start it was {fmt(start)}",
        severity="warn",
        basis="statistical" if edge > math.log10(FALLBACK_LOW) else "heuristic",
        since_step=since(log, lambda x: x <= edge),
        block=where(log),
        evidence=(
            seen(log, f"median {fmt(start)}, then {fmt(end)}; {len(found)} of {len(norms)} blocks"),
            *flat_outcome(chart),
        ),
        cause="Nothing is left to learn from: a policy that became deterministic, advantages that are all alike, units that "
        "died, or a loss divided by too much. The reward never rose, so this is no convergence.",
        fix=(
            "look at entropy and zero_variance_groups at that step: they say which of these it is",
            "raise the entropy coefficient (SB3 ent_coef) or the sampling temperature",
            "check that the loss is divided once by the accumulation steps, and by the tokens that count",
        ),
        confirm="Take the gradient of a batch sampled at temperature 2: if it has the old size, the policy has collapsed.",
        references=("failure catalogue F34", "arXiv 2505.22617", "ms-swift issue 10117"),
    )


# Now and then


@rule("gradient-spikes", needs=(NORM,))
def gradient_spikes(chart: Chart) -> Verdict:
    """At least three steps whose norm stands far out of the norms around them, and what else jumps at those steps."""
    norms = [log10(series) for series in chart.every(NORM) if not layered(series)]
    norms = [log for log in norms if enough(log, SPIKE_WINDOW)]
    if not norms:
        return too_short("gradient-spikes", chart.every(NORM), SPIKE_WINDOW)
    log, (steps, factors) = max(((log, spikes(log)) for log in norms), key=lambda x: len(x[1][0]))
    if len(steps) < MIN_SPIKES:
        return None
    tails = [s for name in ("advantages/<statistic>", "returns/<statistic>", "reward_std") for s in chart.every(name)]
    leaps = [s for name in ("approx_kl", "ratio/<statistic>", "grad/<block>/norm/update") for s in chart.every(name)]
    heavy, large = ([series for series in group if jumps(series, steps)][:2] for group in (tails, leaps))
    fixes = (
        "normalise advantages in each batch and clip rewards",
        "keep a clip near the median norm (max_grad_norm; verl actor.grad_clip): it bounds what one batch can do",
        "lower the learning rate or the number of epochs",
    )
    if heavy:
        cause = f"They come with {heavy[0].name}: single samples with a huge reward or advantage make them."
    elif large:
        cause = f"They come with {large[0].name}: the policy leaps there, so the learning rate is too high for them."
    else:
        cause = "Nothing else in this log jumps with them: advantages and approx_kl would tell heavy tails from large steps."
    most, typical = fmt(float(factors.max())), fmt(float(np.median(factors)))
    return Finding(
        id="gradient-spikes",
        title=f"The gradient of {where(log)} spikes at {len(steps)} of {len(log)} steps, up to {most} times its level",
        severity="warn" if stuck(chart) else "info",
        basis="heuristic",
        since_step=int(steps[0]),
        block=where(log),
        evidence=(
            seen(log, f"{typical} times its running median at a typical spike", steps=steps),
            *(seen(series, "at least doubles at most of those steps") for series in heavy + large),
            *flat_outcome(chart),
        ),
        cause=cause,
        fix=fixes[::-1] if large and not heavy else fixes,
        confirm="Take the batch of one such step, drop its largest advantage, and take the gradient again.",
        references=("failure catalogue F33", "verl issue 1066", "marin issue 1368"),
    )


@rule("zero-gradient-steps", needs=(NORM,))
def zero_gradient_steps(chart: Chart) -> Verdict:
    """Steps whose gradient is exactly 0: all rollouts of every group earned the same, so there was nothing to prefer.

    Zeros in a fixed rhythm are a delayed actor or an accumulation; a policy that learns, or is at its maximum, earned them;
    a block that never has a gradient is dead, which is another finding.
    """
    norms = [series.finite for series in chart.every(NORM) if not layered(series) and enough(series, 2 * MIN_ZEROS)]
    norms = [series for series in norms if where(series) == "all" or series.values.any()]
    if not norms:
        return too_short("zero-gradient-steps", chart.every(NORM), 2 * MIN_ZEROS)
    worst = max(norms, key=lambda series: float(np.mean(series.last(0.5).values == 0.0)))
    share, zeros = float(np.mean(worst.last(0.5).values == 0.0)), worst.steps[worst.values == 0.0]
    if share < ZERO_INFO or len(zeros) < MIN_ZEROS or rhythm(worst.values == 0.0):
        return None
    severity: Severity = "critical" if share >= ZERO_ALL else "warn" if share >= ZERO_WARN else "info"
    learns = learning(chart)
    spread = chart.get("zero_variance_groups") or chart.get("reward_std")
    unreal = "The reward rises all the same: the logged norm is not that of the real gradient. "
    return Finding(
        id="zero-gradient-steps",
        title=f"The gradient of {where(worst)} is exactly 0 at {share:.0%} of the steps",
        severity="info" if learns else severity,
        basis="proved",
        since_step=int(zeros[0]),
        block=where(worst),
        evidence=(
            seen(worst, f"0 at {len(zeros)} of {len(worst)} steps, {share:.0%} of the last half", steps=zeros),
            *(() if spread is None else (seen(spread, f"median {fmt(level(spread.last(0.5)))}"),)),
        ),
        cause=(unreal if learns and share >= ZERO_ALL else "")
        + "Groups whose rollouts all earn the same have no advantage and no gradient: such a step only decays and drifts.",
        fix=(
            "mix prompts of other difficulty, or drop groups without reward variance and refill the batch (DAPO)",
            "more rollouts a group (TRL num_generations, verl rollout.n), or a higher sampling temperature",
            "if no group ever varies: check that the verifier answers, and that the advantages reach the loss",
        ),
        confirm="Log zero_variance_groups (TRL frac_reward_zero_std), the share of groups with equal rewards: 1 there.",
        references=("failure catalogue F1, F2", "ms-swift issue 5571", "TRL issue 3452", "arXiv 2503.14476"),
    )


# By depth
