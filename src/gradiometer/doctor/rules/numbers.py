"""Numbers: gradients not finite, exploding, vanishing, spiking or zero, as a whole and by depth.

The meter's `health` is never read: a band relative to its own past calls a run that was broken from
its first step healthy.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import FallsTo, Look, Sign, blocks, declare, seen, worst
from gradiometer.doctor.outcome import at_rest, learning, outcome_of
from gradiometer.doctor.rule import (
    CannotSay,
    Draft,
    Skipped,
    Verdict,
    proof,
    rule,
    too_short,
    unlogged,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import Role, Strength
from gradiometer.doctor.signs import (
    NORM,
    enough,
    layered,
    level,
    log10,
    mapping,
    over,
    robust_sigma,
    shown,
    since,
    stays,
    trend,
    where,
)
from gradiometer.doctor.trainers import field_of
from gradiometer.maths.health import BAND_SIGMAS, FALLBACK_HIGH, FALLBACK_LOW, SIGMA_FLOOR
from gradiometer.records import Event, Evidence, Severity
from gradiometer.store.layers import read_layers
from gradiometer.store.reader import Floats, Ints
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("numbers")


# Not finite


@rule(
    "nonfinite-gradient",
    """
    cause: An operation of {what} left the range of its numbers. {after}
    fix: look for the log of 0 or of a masked probability, a division by a zero std, exp of an
      unbounded log-ratio
    fix: in fp16 call scaler.unscale_(optimizer) before the clip, or train in bf16
    fix: restart from a checkpoint before that step: weights that met a NaN do not recover
    confirm: Run up to that step with gm.watch(..., on_nonfinite="raise", tier="deep"): it stops
      inside backward.
    see: F32
    see: verl dp_actor.py skips such steps
    see: TRL issue 6702
    see: OneTrainer issue 1147
    [observation]
    cause: The environment, or a wrapper around it, showed a number that is none, and the policy was
      asked about it. No gradient had a NaN before.
    fix: Assert np.isfinite(observation).all() after env.step, and look at what that step did: a
      division by zero, the log of a negative number, a physics engine that blew up, a running
      deviation of 0
    fix: End the episode there, or replace the observation, if the environment cannot be mended
    confirm: Step the environment alone, with random actions, until it shows such an observation.
    see: F32
    """,
)
def nonfinite_gradient(run: RunData) -> Verdict:
    """A NaN or Inf in a gradient: in elements where we measured, else in norms and losses.

    One that reaches the optimizer ends the training. Finite gradients afterwards mean that the
    trainer skipped the step, as verl does with no more than a printed line; under an fp16 loss
    scale a few such steps are by design.
    """
    events, states = run.events("nonfinite")[:1], mapping(run.table("states"))
    both = run.every(NORM) + run.every("total_grad_norm")
    norms = list({series.name: series for series in both}.values())
    bad = nonfinite_steps(run, norms)
    tensors = [str(name) for event in events for name in event.detail.get("tensors", ())]
    tensors = tensors or [name for name, state in states.items() if state == "nonfinite"]
    if not (bad or events or tensors):
        metric = "grad/<block>/nonfinite"
        known = norms or states or any(run.has(name) for name in (metric, *LOSSES))
        return None if known else unlogged(metric)
    begun = [int(steps[0]) for _, steps in bad] + [event.step for event in events]
    first = min(begun, default=None)
    terms = [str(name) for event in events for name in event.detail.get("terms", ())]
    terms += [x.parts["term"] for x, steps in bad if "term" in x.parts and steps[0] == first]
    block = next((where(series) for series, _ in bad if "block" in series.parts), None)
    place = tensors[0] if tensors else block
    severity, after = aftermath(run, bad, norms)
    evidence = [
        *(shown(x, f"not finite at {len(at)} of {len(x)} steps", steps=at) for x, at in bad[:3]),
        *(_noted("nonfinite", event.message, event.step) for event in events),
    ]
    counted = f"{len(tensors)} parameters nonfinite, first {place}"
    named = (f" of {place}" if place else "") + (f", from the term {terms[0]!r}" if terms else "")
    of_weights = not bad and any(event.detail.get("weights") for event in events)
    if not bad and not tensors and any(event.detail.get("observation") for event in events):
        return _shown(events, evidence, first)
    what = "weights" if of_weights else "gradient"
    return proof(
        f"NaN or Inf in the {what}{named}" + ("" if first is None else f" at step {first}"),
        *(evidence or [Evidence(series="states", reading=counted)]),
        severity=severity,
        since_step=first,
        block=block,
        what="that term" if terms else "the loss",
        after=after,
    )


def _shown(events: list[Event], evidence: list[Evidence], first: int | None) -> Draft:
    """The NaN came from outside, and the training died of it."""
    return proof(
        f"NaN or Inf in an observation of the environment, before step {(first or 0) + 1}",
        *evidence,
        since_step=first,
        words="observation",
    )


def _noted(series: str, reading: str, step: int) -> Evidence:
    return Evidence(series=series, reading=reading, first_step=step, last_step=step)


@rule(
    "training-crashed",
    """
    cause: An exception left the training loop; everything after that step is missing.
    fix: Mend what the traceback names; resume=STEP of gm.watch continues this run
    confirm: Run the script again up to that step, with gm.watch(..., on_nonfinite="raise") where
      numbers are the cause.
    [numeric]
    cause: The error names a NaN or an Inf: it was in an observation, a reward or a weight before
      the operation that raised.
    fix: check observations and rewards for NaN before they reach the network (np.isfinite), then
      weights after the last optimizer step
    confirm: Run the script again up to that step, with gm.watch(..., on_nonfinite="raise") where
      numbers are the cause.
    """,
)
def training_crashed(run: RunData) -> Verdict:
    """An exception ended the training, and it was not continued."""
    ends = sorted(run.events("exception") + run.events("resumed"), key=lambda event: event.step)
    if not ends and run.fact("tier") is None:  # of the meter: a log of another tool has no events
        return Skipped(why="the meter records how a training ended: gm.watch, gradiometer run")
    if not ends or ends[-1].kind != "exception" or ends[-1].message.startswith(ON_PURPOSE):
        return None
    event, first = ends[-1], ends[-1].message.partition("\n")[0]
    numeric = NOT_A_NUMBER.search(event.message) is not None
    return proof(
        f"The training stopped at step {event.step} with an error: {first.partition(':')[0]}"
        + (" over a NaN" if numeric else ""),
        _noted("exception", first, event.step),
        severity="critical" if numeric else "info" if learning(run) else "warn",
        words="numeric" if numeric else "",
    )


ON_PURPOSE = (
    "KeyboardInterrupt",
    "SystemExit",
    "StopTraining",
    "GeneratorExit",
    "NonFiniteGradient",
)
NOT_A_NUMBER = re.compile(r"\b(?:nan|inf|non-?finite|isfinite)\b", re.IGNORECASE)

LOSSES = ("loss", "policy_loss", "value_loss")
HALF = {"true", "16", "fp16", "float16", "half", "16-mixed", "torch.float16"}


def nonfinite_steps(run: RunData, norms: list[Series]) -> list[tuple[Series, Ints]]:
    """Series with the steps at which they are not finite, the earliest and narrowest first.

    The float32 norm of finite elements may be Inf, so where elements were counted an infinite norm
    says nothing.
    """
    counted = run.every("grad/<block>/nonfinite")
    judged = {where(series) for series in counted}
    terms = run.every("grad/<block>/term/<term>/norm") + run.every("grad/<block>/term/<term>/loss")
    losses = [series for name in LOSSES if (series := run.get(name)) is not None]
    bad = [(series, series.steps[series.values > 0]) for series in counted]
    for series in norms + terms:
        off = np.isnan(series.values) if where(series) in judged else ~np.isfinite(series.values)
        bad.append((series, series.steps[off]))
    bad += [(series, _trailing(series, norms)) for series in losses]
    there = (each for each in bad if len(each[1]))
    return sorted(there, key=lambda x: (x[1][0], not layered(x[0]), x[0].name))


def _trailing(loss: Series, norms: list[Series]) -> Ints:
    """The steps of the NaNs a loss ends with; none where the gradient is known to be finite."""
    good = np.flatnonzero(np.isfinite(loss.values))
    tail = loss.steps[good[-1] + 1 if len(good) else 0 :]
    if len(tail) < limits.min_trailing or _finite_after(norms, int(tail[-1]) - 1):
        return tail[:0]
    return tail


def _finite_after(norms: list[Series], step: int) -> bool:
    return any(len(norm.finite) and norm.finite.steps[-1] > step for norm in norms)


def aftermath(
    run: RunData, bad: list[tuple[Series, Ints]], norms: list[Series]
) -> tuple[Severity, str]:
    """How bad it is, and what came after, in words."""
    skips = len(run.events("skipped-step"))
    lost = max((len(steps) / len(series) for series, steps in bad), default=1.0)
    skipped = f"{skips} steps were skipped. " if skips else ""
    if not bad or not _finite_after(norms, max(int(steps[-1]) for _, steps in bad)):
        gone = "No finite gradient was seen after it: the weights, or all steps since, are lost."
        return "critical", skipped + gone
    again = f"{skipped}Gradients are finite again after it, so the trainer skipped those steps"
    told = run.fact("fp16", "mixed_precision", "precision", "amp_dtype", "dtype", "amp")
    if str(told).lower() in HALF and lost <= limits.max_scaling:
        scaler = "as a loss scaler of fp16 does while it looks for its scale."
        return "info", f"{again} ({lost:.1%}), {scaler}"
    severity: Severity = "warn" if lost <= limits.max_lost else "critical"
    return severity, f"{again} ({lost:.1%}): what made them is still there."


# Too large, too small


def _moved(log: Series, edge: float, **more: Any) -> Sign:
    """A log-norm that went beyond an edge for good, in the norm's own unit."""
    start, end = fmt(10.0 ** level(log.first(1 / 6))), fmt(10.0 ** level(log.last(0.2)))
    above = level(log.last(0.2)) >= edge
    return Sign(
        series=log,
        since=since(log, lambda x: x >= edge if above else x <= edge),
        reading=f"median {start} at the start, {end} at the end",
        said={"start": start, "end": end},
        **more,
    )


def exploded(log: Series) -> Sign | None:
    """It has grown a hundredfold, or is above 1e4, for good; lately a thousandfold, which the
    returns of a policy that learns do not explain, is told of those too."""
    start, edge = level(log.first(1 / 6)), math.log10(FALLBACK_HIGH)
    grown, rank = start + limits.growth, level(log.last(0.2))
    late = stays(log.last(1 / 6), lambda x: x >= grown)
    role = "usual" if stays(log.last(1 / 6), lambda x: x >= start + limits.runaway) else None
    if stays(log, lambda x: x >= grown):
        rise = trend(log, min_change=limits.growth / 2)
        if rise.p_value is None or rise.change > 0:
            p = rise.p_value
            return _moved(log, grown, strength="strong", rank=rank, p_value=p, role=role)
    if stays(log, lambda x: x >= edge):
        return _moved(log, edge, strength="strong", rank=rank)
    return _moved(log, grown, strength="strong", rank=rank, role=role) if late else None


def _leaps(run: RunData, sign: Sign) -> Sign:
    """In control growth alone is no fault: gradients grow with the returns of a policy that learns,
    and Adam cancels their scale; an answer of a language model is scored on one scale all along.
    Weights that move by a tenth of their size at a step learn nothing."""
    sign = replace(sign, role="plain") if field_of(run) == "language" else sign
    moved = run.get("grad/<block>/update_ratio", block="all")
    if moved is None or not stays(moved, lambda x: x >= limits.large_step):
        return sign
    reading = f"weights move by {fmt(level(moved.last(0.5)))} of their size at a step"
    return replace(sign, strength="total", role="plain", more=(shown(moved, reading),))


def _tested(run: RunData, sign: Sign) -> Sign:
    return replace(sign, basis="heuristic" if sign.p_value is None else "statistical")


declare(
    "exploding-gradient",
    """
    cause: Each step makes the next gradient larger: a learning rate too high, advantages or value
      targets without a scale, or a policy ratio far from 1.
    fix: lower the learning rate by 3 to 10
    fix: normalise advantages and returns, or scale the reward into [-3, 3]
    fix: clip: clip_grad_norm_(model.parameters(), 0.5) before the step (SB3, TRL max_grad_norm;
      verl actor.grad_clip)
    confirm: Restart from a checkpoint before that step with a tenth of the learning rate: the norm
      must stay level.
    see: F35
    see: TheDeepChecker
    see: A. Jones, Debugging RL
    """,
    family="numbers",
    metric=NORM,
    over=blocks(NORM, "numbers/min_points", log=True, layers=True),
    sign=exploded,
    level="numbers/level",
    title="The gradient of {block} has exploded: its norm is {end}, at the start it was {start}",
    role="harmless",
    beside=lambda run, sign: _leaps(run, _tested(run, sign)),
)


def vanished(log: Series) -> Sign | None:
    """It fell below a twentieth of its start along a trend, or below what Adam's ε lets through."""
    edge, floor = level(log.first(1 / 3)) + limits.vanished, math.log10(FALLBACK_LOW)
    if stays(log, lambda x: x <= floor):
        return _moved(log, floor, strength="strong", role="convergence", rank=math.inf)
    fall = trend(log, min_change=-limits.vanished / 2)
    if fall.p_value is None or fall.change >= 0 or not stays(log, lambda x: x <= edge):
        return None
    return _moved(
        log, edge, strength="strong", rank=edge - level(log.last(0.2)), p_value=fall.p_value
    )


declare(
    "vanishing-gradient",
    """
    cause: Nothing is left to learn from: a policy that became deterministic, advantages that are
      all alike, units that died, or a loss divided by too much.
    fix: look at entropy and zero_variance_groups at that step: they say which of these it is
    fix: raise the entropy coefficient (SB3 ent_coef) or the sampling temperature
    fix: check that the loss is divided once by the accumulation steps, and by the tokens that count
    confirm: Take the gradient of a batch sampled at temperature 2: if it has the old size, the
      policy has collapsed.
    see: F34
    see: arXiv 2505.22617
    see: ms-swift issue 10117
    """,
    family="numbers",
    metric=NORM,
    over=blocks(NORM, "numbers/min_points", log=True),
    sign=vanished,
    level="numbers/level",
    title="The gradient of {block} has vanished: its norm is {end}, at the start it was {start}",
    role="harmless",
    beside=_tested,
)


# Now and then


SPIKE_FIX = (
    "normalise advantages in each batch and clip rewards",
    "keep a clip near the median norm (max_grad_norm; verl actor.grad_clip): it bounds what one"
    " batch can do",
    "lower the learning rate or the number of epochs",
)
"""Against heavy tails; against steps that are too large the last comes first."""
TAILS = ("advantages/<statistic>", "returns/<statistic>", "reward_std")
LEAPS = ("approx_kl", "ratio/<statistic>", "grad/<block>/norm/update")


def spiking(log: Series) -> Sign | None:
    """Three steps or more whose norm stands far out of those around."""
    steps, factors = spikes(log)
    if len(steps) < limits.min_spikes:
        return None
    said = {"count": str(len(steps)), "of": str(len(log)), "most": fmt(float(factors.max()))}
    reading = f"{fmt(float(np.median(factors)))} times its running median at a typical spike"
    many = len(steps) >= limits.spike_share * len(log)
    huge = float(factors.max()) >= limits.spike_huge
    rare = len(steps) < limits.spike_rare * len(log)
    return Sign(
        series=log,
        strength="strong",
        since=int(steps[0]),
        reading=reading,
        said=said,
        rank=len(steps),
        role="plain" if many or (huge and not rare) else None,
    )


def _companions(run: RunData, sign: Sign) -> Sign:
    """What jumps with the spikes tells heavy tails from large steps."""
    steps, _ = spikes(sign.series)
    heavy, large = (
        [s for name in names for s in run.every(name) if jumps(s, steps)][:2]
        for names in (TAILS, LEAPS)
    )
    cause = "single samples with a huge reward or advantage make them."
    if not heavy:
        cause = "the policy leaps there, so the learning rate is too high for them."
    told = "Nothing else in this log jumps with them: advantages and approx_kl would tell heavy"
    told += " tails from large steps."
    if with_ := heavy or large:
        told = f"They come with {with_[0].name}: {cause}"
    more = tuple(shown(s, "at least doubles at most of those steps") for s in heavy + large)
    update = run.get("grad/<block>/norm/update", block=where(sign.series))
    if update is not None and not jumps(update, steps, limits.spike_factor):
        sign = replace(sign, role="note")  # what the optimizer takes in its stride harms nobody
    there = sign.series.values[np.isin(sign.series.steps, steps)]
    if float(there.max()) <= level(sign.series.first(1 / 3)):
        sign = replace(sign, role="note")  # out of a gradient that became small, up to what it was
    fix = SPIKE_FIX[::-1] if large and not heavy else SPIKE_FIX
    return replace(sign, more=more, fix=fix, said={**sign.said, "cause": told})


declare(
    "gradient-spikes",
    """
    cause: {cause}
    confirm: Take the batch of one such step, drop its largest advantage, and take the gradient
      again.
    see: F33
    see: verl issue 1066
    see: marin issue 1368
    """,
    family="numbers",
    metric=NORM,
    over=blocks(NORM, "numbers/spike_window", log=True),
    sign=spiking,
    title="The gradient of {block} spikes at {count} of {of} steps, up to {most} times its level",
    role="usual",
    beside=_companions,
)


def at_zero(norm: Series) -> Sign | None:
    """Exactly 0 at a share of the last half's steps. Zeros in a fixed rhythm are a delayed actor or
    an accumulation; a block that never has a gradient is dead, which is another finding."""
    none = norm.values == 0.0
    share, steps = float(np.mean(norm.last(0.5).values == 0.0)), norm.steps[none]
    idle = none.all() and where(norm) != "all"
    if share < limits.zero_info or len(steps) < limits.min_zeros or rhythm(none) or idle:
        return None
    strength: Strength = "strong" if share >= limits.zero_warn else "present"
    return Sign(
        series=norm,
        strength="total" if share >= limits.zero_all else strength,
        since=int(steps[0]),
        reading=f"0 at {len(steps)} of {len(norm)} steps, {share:.0%} of the last half",
        said={"percent": f"{share:.0%}", "unreal": ""},
        rank=share,
    )


def _spreads(run: RunData) -> list[Series]:
    """How far advantages are apart; that of normalised ones is 1 until all are equal."""
    found = run.get("advantages/<statistic>", statistic="std")
    if found is None:
        raise CannotSay(unlogged("advantages/<statistic>"))
    return [found.finite]


def _vanished(run: RunData, sign: Sign) -> Sign:
    """A policy that is done has few advantages left; next to none under a reward that stands is
    more than that."""
    start, progress = level(sign.series.first(0.05)), outcome_of(run)
    spent = level(sign.series.last(0.2)) <= thresholds.value("exploration/spent") * start
    stands = spent and progress is not None and progress.fate == "stands"
    role: Role = "plain" if stands else "convergence"
    return replace(sign, basis="statistical", role=role, said={**sign.said, "unreal": ""})


def _unreal(run: RunData, sign: Sign) -> Sign:
    spread = run.get("zero_variance_groups") or run.get("reward_std")
    if spread is not None:
        sign = replace(sign, more=(shown(spread, f"median {fmt(level(spread.last(0.5)))}"),))
    if learning(run) and _came_to_agree(run, sign):
        return replace(sign, role="convergence")
    if sign.strength != "total" or not learning(run):
        return sign
    unreal = "The reward rises all the same: the logged norm is not that of the real gradient. "
    return replace(sign, said={**sign.said, "unreal": unreal})


def _came_to_agree(run: RunData, sign: Sign) -> bool:
    """Whether the steps without a gradient are those where all groups agree, and none did at the
    start: they are solved, or as good as that."""
    agreeing = run.get("zero_variance_groups")
    if agreeing is None or level(agreeing.first(1 / 3)) >= limits.zero_warn:
        return False
    zeros = sign.series.steps[sign.series.values == 0.0]
    there = agreeing.values[np.isin(agreeing.steps, zeros)]
    return len(there) > 0 and bool(np.median(there) == 1.0)


declare(
    "zero-gradient-steps",
    """
    cause: {unreal}Groups whose rollouts all earn the same have no advantage and no gradient: such a
      step only decays and drifts.
    fix: mix prompts of other difficulty, or drop groups without reward variance and refill the
      batch (DAPO)
    fix: more rollouts a group (TRL num_generations, verl rollout.n), or a higher sampling
      temperature
    fix: if no group ever varies: check that the verifier answers, and that the advantages reach the
      loss
    confirm: Log zero_variance_groups (TRL frac_reward_zero_std), the share of groups with equal
      rewards: 1 there.
    see: F1
    see: F2
    see: ms-swift issue 5571
    see: TRL issue 3452
    see: arXiv 2503.14476
    """,
    family="numbers",
    metric=NORM,
    over=blocks(NORM, "numbers/enough_zeros"),
    sign=at_zero,
    title="The gradient of {block} is exactly 0 at {percent} of the steps",
    basis="proved",
    beside=_unreal,
    also=(
        Look(
            metric="advantages/<statistic>",
            over=_spreads,
            sign=FallsTo(shares=("numbers/spread_left",)),
            title="Advantages are down to {percent} of their spread at the start: nothing to learn",
            beside=_vanished,
        ),
    ),
)


# Layer by layer

NO_UNITS = re.compile(r"embed|wte|wpe|lm_head|expert|moe", re.IGNORECASE)
"""Layers in which zeros are normal: rows that no token used."""


@seen(
    "depth-imbalance",
    """
    cause: Weights or activations {does} the gradient layer by layer on its way back. Under Adam the
      scale of a layer cancels; under SGD and in a common clip it does not.
    fix: initialise orthogonally (gain √2 for ReLU, 0.01 for the policy's last layer)
    fix: add layer norm or residual connections
    fix: normalise the observations: the first layer's gradient is a product with them
    confirm: gradiometer show RUN --layers: see whether the norm changes evenly or in one layer.
    see: AutoTrainer (ICSE 2021): first over last above 70
    see: F35
    """,
    title="{first} gets {now} times the gradient of {last}, the last layer of its network",
    needs=(NORM,),
    role="usual",
)
def depth_imbalance(run: RunData) -> Sign | Verdict:
    """The first layer gets over 70 times, or under a thousandth of, the last one's gradient.

    Sizes of layers are not in a log, so the norm and, where it is there, the largest element must
    both say so. Adam cancels the scale of a tensor: information, unless the reward does not rise.
    """
    ends = [(first, last) for first, *_, last in _long(run, NORM)]
    if not ends:
        return too_short(filter(layered, run.every(NORM)), limits.min_points, metric=NORM)
    off = [pair for pair in ends if _apart(run, *pair)]
    if not off:
        return None
    first, last = max(off, key=lambda pair: abs(level(log10(over(*pair)))))
    ratio = over(first, last)
    now, grows = level(ratio.last(0.5)), level(ratio.last(0.5)) > 1.0
    elements = run.get("grad/<block>/max_abs", block=where(first)) is not None
    apart = "their largest elements are as far apart"
    sizes = apart if elements else "log max_abs to see that it is not their size"
    high, low = limits.depth_explodes, limits.depth_vanishes
    reading = f"median {fmt(level(first.last(0.5)))}; the sizes of the layers are not known, "
    beside = f"median {fmt(level(last.last(0.5)))}; {len(off)} of {len(ends)} networks"
    return Sign(
        series=first,
        strength="strong",
        since=since(ratio, lambda x: x > high if grows else x < low),
        reading=reading + sizes,
        said={
            "does": "amplify" if grows else "shrink",
            **{"first": where(first), "now": fmt(now), "last": where(last)},
        },
        role="note" if at_rest(run) else None,
        more=(shown(last, beside),),
    )


def _long(run: RunData, template: str) -> list[list[Series]]:
    """The networks of more than one layer whose ends have enough measurements."""
    found = [layers for layers in branches(run, template) if len(layers) > 1]
    return [
        x for x in found if enough(x[0], limits.min_points) and enough(x[-1], limits.min_points)
    ]


def _apart(run: RunData, first: Series, last: Series) -> bool:
    ratios = [over(first, last)]
    largest = [run.get("grad/<block>/max_abs", block=where(series)) for series in (first, last)]
    if largest[0] is not None and largest[1] is not None:
        ratios.append(over(largest[0], largest[1]))
    above = all(stays(ratio, lambda x: x > limits.depth_explodes) for ratio in ratios)
    return above or all(stays(ratio, lambda x: x < limits.depth_vanishes) for ratio in ratios)


@seen(
    "dormant-units",
    """
    cause: Units that are zero for every input get no gradient and stay so: steps that were too
      large, a replay ratio too high, or targets that moved.
    fix: lower the learning rate or the replay ratio (SB3 gradient_steps)
    fix: reset dormant units (ReDo), or add layer norm
    fix: replace ReLU by leaky ReLU, SiLU or tanh
    confirm: Count the units of that layer that are zero on a whole batch of observations.
    see: arXiv 2302.12902 (ReDo, τ = 0.025)
    see: AutoTrainer: 70 % zeros
    see: arXiv 2405.00662
    """,
    title="{percent} of the units are dormant{grows}",
    role="usual",
)
def dormant_units(run: RunData) -> Sign | Verdict:
    """Units that never fire: a logged share, or neighbouring layers that are mostly zeros.

    A dead ReLU leaves a row of zeros in its own layer and a column in the next, so two neighbours
    must show it: an embedding or a one-hot input shows it in one.
    """
    logged = run.get("dormant_fraction")
    networks = _long(run, "grad/<block>/zero_fraction")
    known = logged is not None and enough(logged, limits.min_points)
    if not networks and not known:
        none = unlogged("dormant_fraction")
        return none if logged is None else too_short(logged, limits.min_points)
    sign, title = dormant(logged) if logged is not None and known else None, ""
    if sign is None:
        dying = [pair for layers in networks for pair in _dying(layers)]
        sign = worst(dying[:1], lambda x: _share(x, limits.dying, "strong"))
        title = "{percent} of the gradient of {block}, and as much of the next layer, is exactly 0"
    return sign and replace(sign, title=title, role="note" if at_rest(run) else None)


def dormant(logged: Series) -> Sign | None:
    """A share of dormant units above a fifth; strong at one half, or while it grows."""
    if not stays(logged, lambda x: x >= limits.dormant_info):
        return None
    grows = trend(logged).direction == "rises"
    much = grows or level(logged.last(0.2)) >= limits.dormant_warn
    sign = _share(logged, limits.dormant_info, "strong" if much else "present")
    return replace(sign, said={**sign.said, "grows": ", and they get more" if grows else ""})


def _dying(layers: list[Series]) -> list[Series]:
    """Layers that are mostly zeros, and the next one too."""
    units = [series for series in layers if not NO_UNITS.search(where(series))]
    dying = [stays(series, lambda x: limits.dying <= x < 1.0) for series in units]
    return [units[k] for k in range(len(units) - 1) if dying[k] and dying[k + 1]]


def _share(series: Series, edge: float, strength: Any) -> Sign:
    start, end = level(series.first(1 / 6)), level(series.last(0.2))
    return Sign(
        series=series,
        strength=strength,
        since=since(series, lambda x: x >= edge),
        reading=f"median {fmt(start)} at the start, {fmt(end)} now",
        said={"percent": f"{end:.0%}"},
    )


# Shapes of a norm over time


def spikes(log: Series) -> tuple[Ints, Floats]:
    """The steps at which a log-norm stands out of its running median, and by which factors."""
    window = int(limits.spike_window)
    padded = np.pad(log.values, window // 2, mode="reflect")
    rise = log.values - np.median(sliding_window_view(padded, window), axis=1)
    factor = 10.0 ** np.clip(rise, -300.0, 300.0)
    out = factor - 1.0 > limits.spike_sigmas * robust_sigma(factor)
    out &= (factor >= limits.spike_factor) & (
        rise > BAND_SIGMAS * max(robust_sigma(rise), SIGMA_FLOOR)
    )
    # a spike comes up from somewhere: a high start that decays is none
    for k in np.flatnonzero(out):
        before = log.values[max(0, k - window // 2) : k]
        up = log.values[k] - np.median(before) if k > 0 else 0.0
        out[k] = up >= np.log10(limits.spike_factor)
    return log.steps[out], factor[out]


def jumps(series: Series, steps: Ints, factor: float | None = None) -> bool:
    """Whether it at least doubles, or grows by this factor, at most of these steps."""
    factor = limits.companion_factor if factor is None else factor
    size, known = np.abs(series.values), np.isfinite(series.values)
    there = np.isin(series.steps, steps) & known
    usual = float(np.median(size[known & ~there])) if (known & ~there).any() else 0.0
    most = there.sum() >= max(2, len(steps) / 2)
    return bool(most and np.median(size[there]) >= factor * usual > 0.0)


def rhythm(zero: Any) -> bool:
    """Whether what is not zero comes at every k-th step, k ≥ 2, up to the end."""
    there = np.flatnonzero(~np.asarray(zero, dtype=bool))
    gaps = np.diff(there)
    return len(gaps) >= limits.min_rhythm and bool(
        len(zero) - there[-1] <= gaps[0] > 1 and (gaps == gaps[0]).all()
    )


def branches(run: RunData, template: str) -> list[list[Series]]:
    """The layers of each network, from its input to the loss.

    Along the graph where the meter saw it: the longest chain up to each layer that feeds no other.
    Otherwise a network is the first part of a module path, in the order of registration; without
    that, numbers in the paths are taken for it.
    """
    graph = read_layers(run.source)
    layers = [series for series in run.every(template) if layered(series)]
    if graph.known:
        by_name = {where(series): series for series in layers}
        chains = ([by_name[x] for x in chain if x in by_name] for chain in graph.chains())
        return [chain for chain in chains if chain]
    place = {name: number for number, name in enumerate(graph.registered)}
    networks: dict[str, list[Series]] = {}
    for series in sorted(
        layers, key=lambda each: (place.get(where(each), 0), _natural(where(each)))
    ):
        head = where(series).removeprefix("layer.").partition(".")[0]
        networks.setdefault(re.sub(r"\d+", "", head), []).append(series)
    return list(networks.values())


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
