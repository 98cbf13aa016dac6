"""The size of the policy's step: too large, far from reference or data, or none at all.

KL divergences are compared with regard to their estimator: k2 and k3 are never negative, k1 is
signed and noisy around a small value, and where a rollout is used for a single step all three are
exactly 0 by construction, which says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Look, Sign, Stays, declare, lasting, seen
from gradiometer.doctor.outcome import (
    became,
    began_trained,
    learning,
    near_best,
    outcome_of,
    stuck,
    warms_up,
)
from gradiometer.doctor.proofs import Way, told
from gradiometer.doctor.rule import Draft, Verdict, finding, needed, rule, too_short, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import Strength
from gradiometer.doctor.signs import (
    ends,
    enough,
    level,
    number,
    persists,
    shown,
    since,
    stays,
    trend,
)
from gradiometer.doctor.terms import COEFFICIENTS, TERM_NORM, role_of
from gradiometer.doctor.trainers import key_for
from gradiometer.records import Event, Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("stepsize")
UPDATE = "grad/<block>/update_ratio"


def _windows(series: Series, limit: float) -> int | None:
    """In how many of six windows the median is above the limit; None when it is too short."""
    values = series.finite.values
    if len(values) < limits.min_points:
        return None
    return sum(
        float(np.median(part)) > limit
        for part in np.array_split(values, min(int(limits.windows), len(values) // 3))
    )


def _first_above(series: Series, limit: float) -> int | None:
    """The first step of a stretch of three above the limit."""
    above = series.finite.values > limit
    runs = np.flatnonzero(above[:-2] & above[1:-1] & above[2:])
    return int(series.finite.steps[runs[0]]) if len(runs) else None


@rule(
    "step-too-large",
    """
    cause: The gradient is valid only near the policy that collected the data.
    fix: Lower {key} by 3 to 10 times
    fix: Stop the epochs of a rollout at a target KL of 0.01 to 0.02; clip gradients near their
      median norm
    confirm: Line-search the next step: scale the update by 1, 1/3, 1/10 and compare the held-out
      objective; train 50 updates with a third of the learning rate.
    see: Spinning Up PPO: target_kl 0.01
    see: SB3 PPO: target_kl
    see: J. Schulman, Nuts and Bolts of Deep RL
    """,
)
def step_too_large(run: RunData) -> Verdict:
    """The policy moves too far in a step: by its KL, by its weights, or by both."""
    kl, update = run.get("approx_kl"), run.get(UPDATE, block="all")
    if kl is None and update is None:
        return unlogged("approx_kl")
    if (jump := _jumped(run, update)) is not None:
        return jump
    if all(series is None or len(series.finite) < limits.min_points for series in (kl, update)):
        return too_short(next(x for x in (kl, update) if x is not None), limits.min_points)
    target = number(run.fact("target_kl", "desired_kl"))
    stops = target is not None and target > 0.0
    limit = limits.stops_at * target if target is not None and stops else limits.high_kl
    high, moved = _large(kl, limit, limits.most), _large(update, limits.large_update, limits.most)
    much = high if target is not None else _large(kl, limits.large_kl, limits.most)
    if wild := _wild(run, kl, update):
        return _too_large(run, kl or update, wild)
    evidence = [x for x in (high, moved) if x is not None]
    if much is not None and evidence:
        far = _large(kl, limits.far_kl, limits.most) is not None
        return _too_large(run, kl, evidence, strength="strong" if far else "present")
    progress = outcome_of(run)
    # a KL of 0.02 to 0.05 is usual, and accuses only beside a reward that fell
    if moved is not None or (high is not None and progress is not None and progress.fate == "fell"):
        return _too_large(run, kl or update, evidence, strength="present")
    return None


def _jumped(run: RunData, update: Series | None) -> Draft | None:
    """One step that replaced the network, after which the reward fell or never rose."""
    if update is None or not (update.finite.values >= limits.jump).any():
        return _thrown_off(run)
    step = int(update.finite.steps[np.argmax(update.finite.values >= limits.jump)])
    progress = outcome_of(run)
    if progress is None:
        return None
    before, later = progress.series.until(step), progress.series.since(step).values
    start = level(before.last(0.2)) if len(before) else progress.start
    if progress.known_best is not None and near_best(progress.end, progress.known_best, start):
        return None
    parts = [part for part in np.array_split(later, int(limits.windows)) if len(part)]
    lowest = min((float(np.median(part)) for part in parts), default=np.inf)
    most = float(update.finite.values.max())
    reading = f"one step moved the weights by {most:.0%} of their size"
    if not progress.stuck and lowest >= start - abs(start):
        return _survived(run, update, shown(update.finite, reading, first_step=step))
    reached = f"went from {fmt(start)} to {fmt(lowest)} and ends at {fmt(progress.end)}"
    return replace(
        _too_large(run, update, [shown(update.finite, reading, first_step=step)]),
        title=f"{reading.capitalize()}, and the reward {reached}",
        severity="critical",
        basis="proved",
    )


def _survived(run: RunData, update: Series, seen: Evidence) -> Draft | None:
    """A network that was replaced, and learned all the same, with what was left of it."""
    dead = [x for x in run.every("grad/<block>/zero_fraction") if x.parts["block"] == "all"]
    half = next((x for x in dead if level(x.last(0.5)) >= limits.dead), None)
    if half is None:
        return None
    left = shown(half, f"{level(half.last(0.5)):.0%} of the gradient is exactly 0 since")
    return replace(_too_large(run, update, [seen, left]), severity="info", strength="present")


def _thrown_off(run: RunData) -> Draft | None:
    """A reward lost at one stroke for good, just after the policy went far from what collected."""
    kl, progress = run.get("approx_kl"), outcome_of(run)
    if kl is None or progress is None or len(progress.series) < 2 * limits.min_points:
        return None
    values, steps = progress.series.values, progress.series.steps
    far = [int(step) for step in kl.finite.steps[kl.finite.values > limits.far_kl]]
    at = int(np.searchsorted(steps, far[0], side="right")) if far else 0
    if not far or at >= len(values) // 2:
        return None
    before, after = float(values[: max(at, 1)].mean()), values[at + 1 :]
    lost = before - float(np.percentile(after, 90))
    if lost < limits.lost * max(abs(before), 1e-12) or lost <= 2.0 * float(np.std(after)):
        return None
    peak = float(kl.finite.values.max())
    evidence = [shown(kl.finite, f"{fmt(peak)} at its peak", first_step=far[0])]
    return replace(
        _too_large(run, kl, evidence),
        title=f"After a KL of {fmt(peak)} the reward fell from {fmt(before)} to"
        f" {fmt(float(np.median(after)))} and stayed",
        severity="critical",
        basis="statistical",
    )


def _large(series: Series | None, limit: float, needed: float) -> Evidence | None:
    """The series as evidence, where it is above the limit in enough windows."""
    if series is None or (_windows(series, limit) or 0) < needed:
        return None
    above = float((series.finite.values > limit).mean())
    named = f" ({series.estimator})" if series.estimator else ""
    reading = (
        f"median {fmt(level(series))}{named}, above {fmt(limit)} in {fmt(100 * above)} % of the"
        " measurements"
    )
    return shown(series.finite, reading, first_step=_first_above(series, limit))


def _wild(run: RunData, kl: Series | None, update: Series | None) -> list[Evidence]:
    """A KL above a nat in two windows, with weights that jumped or a clip that held most."""
    found, clipped = _large(kl, limits.wild_kl, limits.some), run.get("clip_fraction")
    seconds = (_large(update, limits.large_update, 1), _large(clipped, limits.half, 1))
    second = [x for x in seconds if x is not None]
    return [] if found is None or not second else [found, *second]


def _too_large(
    run: RunData, series: Series | None, evidence: list[Evidence], *, strength: Strength = "strong"
) -> Draft:
    progress, ours = outcome_of(run), "the learning rate and the epochs over a rollout"
    then = "" if progress is None else f", and the {progress.noun} {progress.then}"
    return finding(
        f"The policy moves too far in a step: {evidence[0].series} {evidence[0].reading}{then}",
        *evidence,
        became(run),
        strength=strength,
        key=ours if series is None else key_for(run, "step", ours, series),
    )


@rule(
    "ratio-explosion",
    """
    cause: The policy left the one that collected the data, or the two log-probs are not of the same
      thing (mask, temperature, dropout); with a negative advantage the loss grows with the ratio
      and no clip stops it.
    fix: Fewer epochs over a rollout, a smaller learning rate, fresher data
    fix: Clip both ways (dual clip, verl: actor_rollout_ref.actor.clip_ratio_c=3) and clamp the log
      ratio to ±20
    confirm: Before the first update of a rollout the ratio must be 1 for every sample: if not, the
      log-probs differ.
    see: arXiv 1912.09729: dual clip
    """,
)
def ratio_explosion(run: RunData) -> Verdict:
    """Policy ratios above 10: PPO's clip does not bound them where the advantage is negative."""
    largest, events = (run.get("ratio/<statistic>", statistic="max"), run.events("ratio-explosion"))
    if largest is None and not events:
        return unlogged("ratio/<statistic>")
    seen = {event.step: number(event.detail.get("ratio")) or np.inf for event in events}
    if largest is not None:
        out = (largest.values > limits.exploded) | np.isposinf(largest.values)
        seen |= dict(zip(largest.steps[out].tolist(), largest.values[out].tolist(), strict=True))
    if not seen:
        return None
    top, endless = max(seen.values()), np.isinf(max(seen.values()))
    bound = f"above {fmt(limits.exploded)}"
    name = "event ratio-explosion" if largest is None else largest.name
    reading = f"{bound} at {len(seen)} steps, the largest {fmt(top)}"
    worst = max(seen, key=lambda step: seen[step])
    many = "1 step" if len(seen) == 1 else f"{len(seen)} steps"
    repeated = len(seen) >= limits.repeated  # among a million tokens one is chance
    return finding(
        f"A policy ratio of {fmt(top)} at step {worst}; {many} {bound}",
        Evidence(series=name, reading=reading, first_step=min(seen), last_step=max(seen)),
        became(run),
        severity="warn" if endless else "info",
        strength="strong" if repeated and not endless else None,
        basis="proved" if endless else "heuristic",
    )


STEP = ("step", "the learning rate or the epochs over a rollout")


def _closed(run: RunData) -> Verdict:
    """The range of the clip, where the graph of the loss shows that 1 is not inside."""
    return next(iter(told(run, "ppo-clip-saturated", _range, slice(-1, None))), None)


def _range(run: RunData, event: Event) -> Way:
    ends = ", ".join(fmt(number(event.detail.get(name)) or 0.0) for name in ("low", "high"))
    title = f"PPO's clip leaves no room around 1: the ratio is held in [{ends}]"
    return Way(title=title, words="closed")


def _uneven(run: RunData, sign: Sign) -> Sign:
    """With both sides of the clip, where the lower one clips far more."""
    low, high = run.get("clip_fraction_low"), run.get("clip_fraction_high")
    if low is None or high is None or not persists(low, lambda x: x >= limits.noticeable):
        return sign
    at, other = level(low.last(0.5)), level(high.last(0.5))
    if not at >= limits.lopsided * other:
        return sign
    reading = f"{fmt(at)} of the samples clipped from below, {fmt(other)} from above"
    return replace(sign, more=(shown(low, f"{reading}, over the last half"),))


declare(
    "ppo-clip-saturated",
    """
    cause: A clipped sample has no gradient: later epochs and minibatches learn from the few that
      are left. Mostly low clips say that the policy unlearns more than it learns.
    fix: Lower {key}
    fix: Raise the clip range if it is below 0.1; with many low clips look at the sign and the mean
      of the advantages
    confirm: Train 50 updates with one epoch a rollout: clip_fraction falls below 0.1 and the reward
      should move.
    see: arXiv 1707.06347
    see: arXiv 2503.14476: clip-higher
    [closed]
    cause: The range of the clip must have 1 inside. Otherwise a sample has no gradient as soon as
      the policy has moved, and every update after the first on a rollout changes little or
      nothing.
    fix: Clip to [1 − ε, 1 + ε] with ε of 0.1 to 0.3, the smaller limit first
    confirm: Print the limits of torch.clamp(ratio, ...), and the share of samples beyond them.
    see: arXiv 1707.06347
    """,
    about="PPO clips a third of the samples, or mostly those that become less likely.",
    family="stepsize",
    metric="clip_fraction",
    sign=Stays(above=("stepsize/saturated", "stepsize/half"), first="present"),
    title="PPO clips {percent} of the samples",
    settings={"key": STEP},
    beside=_uneven,
    also=(
        Look(
            metric="clip_fraction_low",
            sign=Stays(above=("stepsize/noticeable",), first="present"),
            title="PPO clips {percent} of the samples, mostly from below",
            beside=lambda run, sign: found if (found := _uneven(run, sign)).more else None,
        ),
    ),
    fact=_closed,
)


# How far the policy is from its reference and from its data. A KL to the reference that grows with
# the reward is what RL is, and at π = π_ref it is zero by construction; a KL to the data grows over
# the epochs of a rollout in every PPO. What counts is the reward beside the first, and the size of
# the second.


@seen(
    "kl-runaway",
    """
    cause: The penalty is too weak (or has no gradient) for the reward: the policy drifts where the
      reward was never meant to judge, or where entropy and noise carry it.
    fix: Raise {key} 3 to 10 times, or lower the learning rate
    fix: Make sure that the penalty has a gradient (meter.terms) and the right sign
    confirm: Train on from the last good checkpoint with 10 times the coefficient: kl_ref turns, the
      reward does not fall.
    see: arXiv 2210.10760: reward against KL
    see: arXiv 1909.08593: adaptive KL control
    [not-the-start]
    cause: Before the first update the policy is its own reference and the KL is 0. Here it is not:
      the reference is another model than the one the training starts from, an adapter is switched
      off for one of the two, or both compute other probabilities (precision, template, mask).
    fix: Give the trainer the model the policy starts from as its reference (TRL: ref_model, or none
      with an adapter; verl: actor_rollout_ref.ref; OpenRLHF: --pretrain)
    fix: If the distance is meant, lower {key}: the penalty pulls away from the start
    confirm: Log the KL before the first update: it must be 0.
    see: arXiv 1909.08593
    """,
    title="The policy moved far from its reference: {last} {unit}{still}",
    needs=("kl_ref",),
    settings={"key": ("kl-penalty", "the coefficient of the KL penalty")},
)
def kl_runaway(run: RunData) -> Sign | Verdict:
    """The policy is very far from the reference, or less far and still moving away; or far from
    the first step on, before anything was trained."""
    kl = needed(run, "kl_ref", limits.min_points)
    summed = kl.name == "objective/kl"
    unit = "nats a completion" if summed else "nats"
    far = limits.far_sequence if summed else limits.far_from_reference
    runaway = limits.runaway_sequence if summed else limits.runaway_kl
    bound = "stepsize/far_sequence" if summed else "stepsize/far_from_reference"
    sign, last = Stays(above=(bound,), first="present")(kl), level(kl.last(0.2))
    tokens = 1.0 if summed else _tokens_of_a_sum(run)
    apart = _apart_at_once(run, kl, limits.apart * far)
    if apart is not None and last < runaway:
        title = f"The policy is {{level}} {unit} from its reference at the first step already"
        return replace(apart, title=title, words="not-the-start")
    grows = trend(kl).direction == "rises" and last > limits.still_grows * level(
        kl.finite.first(0.6).last(1 / 3)
    )
    took_off = grows and last >= limits.took_off * level(kl.finite.first(1 / 3))
    if sign is None and grows and (took_off or last >= runaway):  # doubling is late to see
        sign = Stays(above=(bound,), first="present")(kl.finite.last(1 / 3))
    if sign is None or not (grows or last >= runaway):
        return None
    # of a script's own KL nobody knows whether it is of a token or of a whole answer
    if last >= runaway * tokens or (took_off and tokens == 1.0):
        lost = last >= limits.lost_kl * runaway * tokens
        sign = replace(sign, strength="total" if lost else "strong")
    elif tokens > 1.0:
        unit = "nats (of a token, or summed over an answer)"
    said = {"last": fmt(last), "unit": unit, "still": " and growing" if grows else ""}
    return replace(sign, said=said, basis="statistical" if grows else "heuristic")


KNOWN_UNITS = ("versions.trl", "versions.verl", "versions.openrlhf", "versions.ragen")
"""Trainers whose KL is known to be of a token, by their packages."""


def _tokens_of_a_sum(run: RunData) -> float:
    """The length of an answer where a script of its own wrote the KL down: it may be the sum over
    an answer, as RLHF in one file has it. 1 where a trainer tells the unit, or no length is known.
    """
    length = run.get("episode_length")
    if run.fact("script") is None or run.fact(*KNOWN_UNITS) is not None or length is None:
        return 1.0
    return max(1.0, level(length.finite.last(0.2))) if len(length.finite) else 1.0


def _apart_at_once(run: RunData, kl: Series, bound: float) -> Sign | None:
    """A KL that is large in the first measurements of a run that begins there."""
    first = kl.finite.first(max(0.02, 3.0 / len(kl.finite)))
    span = int(kl.steps[-1] - kl.steps[0])
    begins = int(kl.steps[0]) <= max(limits.begins_by, 0.02 * span)
    if not begins or began_trained(run) or not float(first.values.min()) >= bound:
        return None
    at = level(first)
    reading = f"{fmt(at)} in the first {len(first)} measurements (median)"
    return Sign(
        series=kl,
        strength="strong",
        since=int(first.steps[0]),
        reading=reading,
        said={"level": fmt(at)},
    )


def _penalty_outweighs(run: RunData) -> Evidence | None:
    """The penalty, coefficient × KL, against what rewards of a group differ by: where it is no
    smaller, it is what the policy is paid for."""
    kl, spread = run.get("kl_ref"), run.get("reward_std")
    coefficient = number(run.fact(*COEFFICIENTS["kl"]))
    if kl is None or spread is None or coefficient is None or not len(spread.finite):
        return None
    penalty, differ = coefficient * abs(level(kl.last(0.5))), level(spread.last(0.5))
    if not (differ > 0.0 and penalty >= limits.rules * differ):
        return None
    return shown(kl, f"times {fmt(coefficient)} is {fmt(penalty)}; rewards differ by {fmt(differ)}")


def _kl_rules(run: RunData) -> Evidence | None:
    """The KL term where its gradient is half the task's or more, lately."""
    ours = [x for x in run.every(TERM_NORM) if x.parts.get("block") == "all"]
    all_ = [x for x in run.every("grad_norm/<bucket>/<term>") if x.parts.get("bucket") == "all"]
    terms = {x.parts["term"]: x for x in (*ours, *all_)}
    held, task = (
        next((x for name, x in terms.items() if role_of(name) == role), None)
        for role in ("kl", "policy")
    )
    if held is None or task is None:
        return None
    mine, theirs = level(held.last(0.5)), level(task.last(0.5))
    if not (mine > 0.0 and mine >= limits.rules * theirs):
        return None
    return shown(held, f"gradient norm {fmt(mine)}, the task's {fmt(theirs)}, over the last half")


def _held_back(run: RunData, sign: Sign) -> Sign | None:
    """Where there is a penalty and the reward does not rise; a note, unless its gradient is known.

    At the start π = π_ref, so the KL is zero and so is the gradient of its term: that is not it.
    """
    progress, rules = outcome_of(run), _kl_rules(run) or _penalty_outweighs(run)
    coefficient = number(run.fact(*COEFFICIENTS["kl"]))
    if progress is None or not progress.stuck or (rules is None and not coefficient):
        return None
    known = "" if coefficient is None else f" (now {fmt(coefficient)})"
    more = () if rules is None else (rules,)
    said = {**sign.said, "known": known}
    return replace(sign, said=said, more=more, role="note" if rules is None else None)


def _held_near(run: RunData, sign: Sign) -> Sign | None:
    """The same of a policy that is a little further away, only where the penalty is seen to rule:
    its gradient, or what it takes from the reward."""
    found = _held_back(run, sign)
    return found if found is not None and found.more else None


declare(
    "kl-strangled",
    """
    cause: The penalty undoes every step of the task; or the policy does not move for another
      reason.
    fix: Lower {key}{known} 10 times or more
    fix: If kl_ref is exactly zero: the reference may be the policy itself (no copy), or the
      learning rate is too small
    confirm: Train 50 updates with the coefficient at zero: if kl_ref and the reward move, it was
      the penalty.
    see: arXiv 1909.08593: adaptive KL control
    """,
    about=(
        "The KL penalty holds the policy back: no KL, a term as strong as the task's, no reward."
    ),
    family="stepsize",
    metric="kl_ref",
    sign=Stays(below=("stepsize/chained_kl",), size=True),
    title="The KL penalty holds the policy at its reference: {level} nats",
    settings={"key": ("kl-penalty", "the coefficient of the KL penalty")},
    beside=_held_back,
    also=(
        Look(
            metric="kl_ref",
            sign=Stays(below=("stepsize/held_kl",), size=True),
            title="The KL penalty holds the policy at its reference: {level} nats",
            beside=_held_near,
        ),
    ),
)


@seen(
    "stale-data",
    """
    cause: Too many passes over a rollout, a buffer that is reused, an asynchronous sampler that
      lags, or a sampler that computes other probabilities than the trainer.
    fix: Fewer passes, fresher data: {key}
    fix: Empty the buffer after each update of an on-policy method; correct with truncated
      importance weights
    confirm: Recompute the log-probs of a fresh rollout before its first update: ratio 1 and KL 0
      for every sample, or it is the sampler. With one epoch a rollout approx_kl should fall at
      once.
    see: verl: rollout correction
    see: A. Jones, Debugging RL, without the agonizing pain
    [never-renewed]
    cause: What samples are drawn from is not filled any more: a call of add() is missing or stands
      behind a condition, an index does not move on, or the training has a copy of the buffer. The
      policy learns from what was done before it could do anything.
    fix: Store every transition of the environment, as long as it is trained
    fix: If a fixed data set is meant, ignore this: the steps since then were an evaluation
    confirm: Log the size and the write position of the buffer; both must move with the environment.
    """,
    title="The policy learns from data of another policy: {reading}",
    settings={"key": ("epochs", "epochs over a rollout, age of the buffer")},
    then=False,
)
def stale_data(run: RunData) -> Sign | Verdict:
    """The data comes from another policy: importance weights degenerate, or KL keeps growing; or
    the meter saw that no sample is newer than the first ones."""
    if facts := told(run, "stale-data", _never_renewed):
        return facts
    kl, sign = run.get("approx_kl"), _of_earlier_rollouts(run)
    if sign is None:
        known = [x for x in (run.get("ess"), run.get("importance_weight"), kl) if x is not None]
        if not known:
            return unlogged("ess")
        if all(len(x.finite) < limits.min_points for x in known):
            return too_short(known[0], limits.min_points)
        sign = _degenerate(run)
    if sign is None and kl is not None:
        sign = _grew(run, kl) or _over_epochs(run, kl.finite)
    return sign and replace(sign, said={"reading": sign.reading})


def _never_renewed(run: RunData, event: Event) -> Way:
    """What a policy is learned from by design (a data set, and evaluations beside it) brings it
    on, too."""
    return Way(
        title="Samples are all of the first {newest} steps of the environment: nothing was added"
        " since",
        words="never-renewed",
        severity="info" if learning(run) else "warn",
    )


def _of_earlier_rollouts(run: RunData) -> Sign | None:
    """Samples of the policy's loss that the environment gave before the newest rollout. A program
    that imitates a data set has no other ones, and pushes all of them up."""
    share, upwards = run.get("credit/stale_share"), run.get("credit/positive_share")
    if share is None:
        return None
    imitates = upwards is not None and len(upwards.finite) and upwards.finite.values.min() == 1.0
    if imitates and len(share.finite) > 1 and share.finite.values[1:].min() == 1.0:
        return None
    # the first rollout cannot be an old one, however many steps are made on it
    second = np.flatnonzero(share.finite.values > 0)
    later = share.finite.since(int(share.finite.steps[second[0]])) if len(second) else share
    when = "over the last half after the first one"
    reading = f"{{percent}} of the policy's samples are of earlier rollouts, {when}"
    return lasting(later, lambda x: x > limits.stale_share, strength="total", reading=reading)


def _degenerate(run: RunData) -> Sign | None:
    """Importance weights that leave little of the batch, or that are not 1 in the mean."""
    ess, weight = run.get("ess"), run.get("importance_weight")
    little = "effective sample size {percent} of the batch over the last half"
    off = "mean importance weight {level} over the last half; 1 in expectation"
    low, high = limits.weight_low, limits.weight_high
    found = None if ess is None else lasting(ess, lambda x: x < limits.low_ess, reading=little)
    if found is not None or weight is None:
        return found
    return lasting(weight, lambda x: not low <= x <= high, reading=off)


def _becomes_stale(before: float, after: float) -> bool:
    """Whether a KL that was fresh data's has become large."""
    fresh = before < limits.fresh_kl
    return fresh and after > limits.large_kl and after > limits.grew * abs(before)


def _grew(run: RunData, kl: Series) -> Sign | None:
    """A KL that was fresh data's, grew steadily and is large, at a learning rate that did not."""
    rate = run.get("learning_rate")
    first, last = ends(kl)
    if not _becomes_stale(first, last) or trend(kl).direction != "rises":
        return None
    if rate is not None and trend(rate).direction == "rises":
        return None
    return Sign(
        series=kl,
        strength="strong" if last >= limits.far_kl else "present",
        since=since(kl, lambda x: x > limits.fresh_kl),
        reading=f"KL to the collecting policy grew from {fmt(first)} to {fmt(last)}",
    )


def _over_epochs(run: RunData, kl: Series) -> Sign | None:
    """A KL that is fresh in the first epoch of a rollout and large in the last; a note, where the
    reward does not rise."""
    where = run.source.steps()
    known = np.asarray(where["epoch"], dtype=np.float64).tolist()
    epochs = dict(zip(where["step"].tolist(), known, strict=True))
    epoch = np.array([epochs.get(int(step), np.nan) for step in kl.steps])
    numbers = np.unique(epoch[np.isfinite(epoch)])
    if len(numbers) < 2 or stuck(run) is False:
        return None
    first, last = (kl.values[epoch == number] for number in (numbers[0], numbers[-1]))
    before, after = float(np.median(first)), float(np.median(last))
    if min(len(first), len(last)) < limits.min_epoch or not _becomes_stale(before, after):
        return None
    reading = f"KL {fmt(before)} in the first epoch of a rollout, {fmt(after)} in epoch"
    reading += f" {int(numbers[-1]) + 1}"
    return Sign(series=kl, strength="present", role="note", since=None, reading=reading)


# Standing still. A schedule that ends with the run is fine, and so is a policy that is done.


@rule(
    "policy-frozen",
    """
    cause: The learning rate is far too small or its schedule has ended, or something (a clip, a
      trust region, a frozen parameter group) takes the step away.
    fix: {rate}
    fix: Let the schedule end with the run: check its total number of steps; check warm-up, clip and
      which parameters are in the optimizer
    confirm: Train 50 updates with {what}: approx_kl and the reward should move.
    see: TheDeepChecker: log10 update ratio below -4
    see: A. Jones, Debugging RL, without the agonizing pain
    """,
)
def policy_frozen(run: RunData) -> Verdict:
    """The policy stopped changing below its maximum: tiny updates or KL, or no learning rate left.

    A schedule that ends with the run is fine, and so is a policy that is done.
    """
    known = ("approx_kl", UPDATE, "learning_rate", "kl_ref")
    if not any(run.has(name) for name in known):
        return unlogged("approx_kl")
    progress = outcome_of(run)
    if progress is None:
        return None if run.has("reward") else unlogged("reward")
    below = progress.known_best is not None and not near_best(
        progress.end, progress.known_best, progress.start, within=limits.below_best
    )
    no_rate = _no_rate(run)
    learns = progress.course == "gained" and not below and not no_rate
    found = _crawls(run) if learns else _still(run) or _warms_up(run) or _never_left(run)
    if not found:
        return None
    key = key_for(run, "learning-rate", "the learning rate", found[0].series)
    rate = f"Raise {key} by 10 times until approx_kl reads 0.003 to 0.02"
    return finding(
        f"The policy hardly moves ({found[0].series.name}: {found[0].reading}) and the "
        f"reward {progress.then}",
        *(sign.evidence for sign in found),
        progress.evidence,
        severity="info",
        strength=None if learns else "strong",
        role="convergence",
        since_step=min((x.since for x in found if x.since is not None), default=None),
        rate=f"Set {key} above zero: 3e-4 is usual for PPO under Adam" if no_rate else rate,
        what="such a rate" if no_rate else "10 times the learning rate",
    )


def _throughout(series: Series, reading: str) -> Sign:
    """What holds of all measurements."""
    start = int(series.steps[0])
    return Sign(series=series, strength="strong", since=start, reading=reading)


def _never_left(run: RunData) -> list[Sign]:
    """A learning rate far below any in use, or a policy that is still its own reference."""
    rate, away = _long_enough(run, "learning_rate"), run.get("kl_ref")
    if (margin := run.get("preference/margin")) is not None:
        return _below(_size(margin), lambda x: x <= limits.same_margin)
    most = 0.0 if rate is None else float(rate.values.max())
    if rate is not None and 0.0 < most <= limits.tiny_rate:
        return [_throughout(rate, f"at most {fmt(most)}")]
    if away is None or not np.count_nonzero(away.finite.values):
        return []
    return _below(_size(away), lambda x: x <= limits.at_reference)


def _warms_up(run: RunData) -> list[Sign]:
    """A learning rate that rose from nearly nothing at every step there is."""
    rate, update = _long_enough(run, "learning_rate"), run.get(UPDATE, block="all")
    # it may have risen to more than enough
    moves = update is not None and level(update.finite.last(0.5)) > limits.moves
    if rate is None or not warms_up(rate) or moves:
        return []
    last = fmt(float(rate.values[-1]))
    return [_throughout(rate, f"in its warm-up all along, {last} at the end")]


def _no_rate(run: RunData) -> bool:
    """The learning rate was zero all along: whatever the reward did, this policy did not do it."""
    rate = _long_enough(run, "learning_rate")
    return rate is not None and not np.any(rate.values)


def _crawls(run: RunData) -> list[Sign]:
    """Learning, in steps so small that larger ones would do: weights and policy hardly move."""
    kl, update = _long_enough(run, "approx_kl"), _long_enough(run, UPDATE, block="all")
    if kl is None or update is None:
        return []
    peak = float(kl.values.max())
    if not (level(update) < limits.moves and 0.0 < peak < limits.crawls):
        return []
    reading = f"median {fmt(level(update))}, and a KL of at most {fmt(peak)}: small steps all along"
    return [_throughout(update, reading)]


def _still(run: RunData) -> list[Sign]:
    """What shows that nothing moves over the last half of the run."""
    kl, update = run.get("approx_kl"), run.get(UPDATE, block="all")
    rate = run.get("learning_rate")
    if update is not None and kl is not None and _stays_put(run):
        tiny = f"at most {fmt(float(np.abs(kl.finite.values).max()))}, and the entropy keeps its"
        whole = f"median {fmt(level(update))}: too little for the policy to move"
        put = replace(_throughout(update.finite, whole), since=None)
        return [_throughout(kl.finite, f"{tiny} digits"), put]
    held = None if update is None or kl is not None else _entropy_held(run)
    if update is not None and held is not None and level(update) < limits.moves:
        whole = f"median {fmt(level(update))}: too little for the policy to move"
        return [_throughout(update.finite, whole), held]
    found = [] if update is None else _below(update, lambda x: x < limits.frozen_update)
    if rate is not None and len(rate.finite):
        most = float(rate.finite.values.max())
        found += _below(rate, lambda x: x <= limits.ended * most)
    moves = update is not None and stays(update, lambda x: x > limits.moves)
    if kl is not None and not moves and not _has_moved(run) and np.count_nonzero(kl.finite.values):
        # k1 is signed: its median is near zero whatever the policy does
        found += _below(_size(kl), lambda x: x < limits.frozen_kl)
    return found


def _stays_put(run: RunData) -> bool:
    """Weights that move and a policy that does not: a tiny KL, an entropy that keeps its digits."""
    kl, entropy = _long_enough(run, "approx_kl"), _long_enough(run, "entropy")
    if kl is None or entropy is None:
        return False
    tiny = 0.0 < np.abs(kl.values).max() < limits.tiny_kl
    return bool(tiny and 0.0 < np.ptp(entropy.values) < limits.same * abs(level(entropy)))


def _entropy_held(run: RunData) -> Sign | None:
    """An entropy that keeps its digits, where no KL is measured between two steps."""
    entropy = _long_enough(run, "entropy")
    if entropy is None or not 0.0 < np.ptp(entropy.values) < limits.same * abs(level(entropy)):
        return None
    return _throughout(entropy, f"{fmt(level(entropy))} all along, to {limits.same:.1%}")


def _has_moved(run: RunData) -> bool:
    """A reference left behind or an entropy on its way, which a KL before the only step hides."""
    away, entropy = run.get("kl_ref"), run.get("entropy")
    if away is not None and stays(away, lambda x: abs(x) > limits.away):
        return True
    return entropy is not None and trend(entropy.last(0.5)).direction in ("rises", "falls")


def _below(series: Series, low: Callable[[float], bool]) -> list[Sign]:
    return list(filter(None, [lasting(series, low)]))


def _size(series: Series) -> Series:
    return replace(series, values=np.abs(series.values))


def _long_enough(run: RunData, name: str, **parts: str) -> Series | None:
    """A series without NaN and Inf, where it has what `persists` needs."""
    series = run.get(name, **parts)
    return None if series is None or not enough(series, limits.min_points) else series.finite
