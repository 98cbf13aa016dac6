"""Numbers: gradients that are not finite, explode, vanish, spike, are exactly zero, fade with depth, or leave units out.

The meter's `health` is never read: a band relative to its own past calls a run that was broken from its first step healthy.
"""

from __future__ import annotations

import math
import re

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.gradients import (
    NORM,
    SPIKE_WINDOW,
    at_rest,
    branches,
    exploded,
    flat_outcome,
    items,
    jumps,
    layered,
    log10,
    over,
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
DEPTH_EXPLODES, DEPTH_VANISHES = 70.0, 1e-3
"""First layer over last: AutoTrainer's 70, and the three decades of maths.health (a policy head of gain 0.01 takes two)."""
DYING = 0.7
"""AutoTrainer: share of zeros of a dying ReLU."""
DORMANT_INFO, DORMANT_WARN = 0.2, 0.5
"""ReDo's healthy runs stay below a fifth; at one half the network has half its width."""
NO_UNITS = re.compile(r"embed|wte|wpe|lm_head|expert|moe", re.IGNORECASE)
"""Layers in which zeros are normal: rows that no token used."""


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


@rule("depth-imbalance", needs=(NORM,))
def depth_imbalance(chart: Chart) -> Verdict:
    """The first layer of a network gets over 70 times, or under a thousandth, of the gradient of its last one.

    Sizes of layers are not in a log, so the norm and, where it is there, the largest element must both say so. Adam cancels
    the scale of a tensor: information, unless the reward does not rise.
    """
    ends = [(layers[0], layers[-1]) for layers in branches(chart, NORM) if len(layers) > 1]
    ends = [pair for pair in ends if enough(pair[0], MIN_POINTS) and enough(pair[1], MIN_POINTS)]
    if not ends:
        return too_short("depth-imbalance", filter(layered, chart.every(NORM)), MIN_POINTS, metric=NORM)
    off = [pair for pair in ends if _apart(chart, *pair)]
    if not off:
        return None
    first, last = max(off, key=lambda pair: abs(level(log10(over(*pair)))))
    ratio = over(first, last)
    now, grows = level(ratio.last(0.5)), level(ratio.last(0.5)) > 1.0
    elements = chart.get("grad/<block>/max_abs", block=where(first)) is not None
    sizes = "their largest elements are as far apart" if elements else "log max_abs to see that it is not their size"
    return Finding(
        id="depth-imbalance",
        title=f"{where(first)} gets {fmt(now)} times the gradient of {where(last)}, the last layer of its network",
        severity="warn" if stuck(chart) and not at_rest(chart) else "info",
        basis="heuristic",
        since_step=since(ratio, lambda x: x > DEPTH_EXPLODES if grows else x < DEPTH_VANISHES),
        block=where(first),
        evidence=(
            seen(first, f"median {fmt(level(first.last(0.5)))}; the sizes of the layers are not known, {sizes}"),
            seen(last, f"median {fmt(level(last.last(0.5)))}; {len(off)} of {len(ends)} networks"),
            *flat_outcome(chart),
        ),
        cause=f"Weights or activations {'amplify' if grows else 'shrink'} the gradient layer by layer on its way back. Under "
        "Adam the scale of a layer cancels; under SGD and in a common clip it does not.",
        fix=(
            "initialise orthogonally (gain √2 for ReLU, 0.01 for the policy's last layer)",
            "add layer norm or residual connections",
            "normalise the observations: the first layer's gradient is a product with them",
        ),
        confirm="gradiometer show RUN --layers: see whether the norm changes evenly or in one layer.",
        references=("AutoTrainer (ICSE 2021): first over last above 70", "failure catalogue F35"),
    )


def _apart(chart: Chart, first: Series, last: Series) -> bool:
    ratios = [over(first, last)]
    largest = [chart.get("grad/<block>/max_abs", block=where(series)) for series in (first, last)]
    if largest[0] is not None and largest[1] is not None:
        ratios.append(over(largest[0], largest[1]))
    above = all(stays(ratio, lambda x: x > DEPTH_EXPLODES) for ratio in ratios)
    return above or all(stays(ratio, lambda x: x < DEPTH_VANISHES) for ratio in ratios)


@rule("dormant-units")
def dormant_units(chart: Chart) -> Verdict:
    """Units that never fire: the logged share of dormant ones, or neighbouring layers that are mostly zeros.

    A dead ReLU leaves a row of zeros in its own layer and a column in the next, so two neighbours must show it: an embedding
    or a one-hot input shows it in one.
    """
    logged, learns = chart.get("dormant_fraction"), learning(chart) or at_rest(chart)
    networks = [layers for layers in branches(chart, "grad/<block>/zero_fraction") if len(layers) > 1]
    networks = [layers for layers in networks if all(enough(series, MIN_POINTS) for series in layers)]
    if not networks and (logged is None or not enough(logged, MIN_POINTS)):
        id = "dormant-units"
        return unlogged(id, "dormant_fraction") if logged is None else too_short(id, logged, MIN_POINTS)
    if logged is not None and enough(logged, MIN_POINTS) and stays(logged, lambda x: x >= DORMANT_INFO):
        now, grows = level(logged.last(0.2)), trend(logged).direction == "rises"
        harm = (now >= DORMANT_WARN or grows) and not learns
        title = f"{now:.0%} of the units are dormant" + (", and they get more" if grows else "")
        return _dormant(title, logged, DORMANT_INFO, "warn" if harm else "info")
    for layers in networks:
        units = [series for series in layers if not NO_UNITS.search(where(series))]
        dying = [stays(series, lambda x: DYING <= x < 1.0) for series in units]
        worst = next((units[k] for k in range(len(units) - 1) if dying[k] and dying[k + 1]), None)
        if worst is not None:
            now = level(worst.last(0.2))
            title = f"{now:.0%} of the gradient of {where(worst)}, and as much of the next layer, is exactly 0"
            return _dormant(title, worst, DYING, "info" if learns else "warn")
    return None


def _dormant(title: str, series: Series, edge: float, severity: Severity) -> Finding:
    start, end = level(series.first(1 / 6)), level(series.last(0.2))
    return Finding(
        id="dormant-units",
        title=title,
        severity=severity,
        basis="heuristic",
        since_step=since(series, lambda x: x >= edge),
        block=series.parts.get("block"),
        evidence=(seen(series, f"median {fmt(start)} at the start, {fmt(end)} now"),),
        cause="Units that are zero for every input get no gradient and stay so: steps that were too large, a replay ratio "
        "too high, or targets that moved.",
        fix=(
            "lower the learning rate or the replay ratio (SB3 gradient_steps)",
            "reset dormant units (ReDo), or add layer norm",
            "replace ReLU by leaky ReLU, SiLU or tanh",
        ),
        confirm="Count the units of that layer that are zero on a whole batch of observations.",
        references=("arXiv 2302.12902 (ReDo, τ = 0.025)", "AutoTrainer: 70 % zeros", "arXiv 2405.00662"),
    )
