"""Is it a policy gradient: of the distribution and sampler that are used, and of the KL meant?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.outcome import learning
from gradiometer.doctor.proofs import Way, told
from gradiometer.doctor.rule import Skipped, Verdict, finding, proof, rule, too_short, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import enough, level, number, persists, shown, since
from gradiometer.maths.means import mean_interval
from gradiometer.records import Event, Evidence
from gradiometer.store.logs import Log
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("wiring_policy")


CHOICES = "num_actions", "n_actions", "num_choices", "action_space.n", "action_space", "vocab_size"
"""Settings that say how many actions there are to choose from."""
DEGREES = ("degree", "row_degree", "max_degree", "num_candidates", "num_neighbors")
PICKS = ("edges_per_row", "num_picks", "num_selected", "picks", "k")
"""Of `degree` candidates this many are taken, without putting back."""
OTHERS = [
    "num_edges",
    "edges",
    "nnz",
    "num_nodes",
    "num_items",
    "vocab_size",
    "num_states",
    "batch_size",
]
"""What one softmax may have been taken over instead."""


K1_LOSSES = ("kl", "k1")
K3_LOSSES = ("low_var_kl", "k3")
"""Spellings of verl's kl_loss_type; with a plus (k1+) it replaces the gradient, and is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Largest:
    """The largest entropy that what is sampled can have, and of what."""

    nats: float
    words: str


@rule(
    "entropy-of-wrong-distribution",
    """
    cause: It is taken over another distribution than the one that is sampled: {named}. A bonus on
      it pushes probabilities that no action is drawn from.
    fix: Take the entropy of the distribution that is sampled, choice by choice, and average:
      softmax over the candidates of one row (with its mask), not over all rows at once
    fix: If several choices are made at once, log how many (config k), or log the mean over them and
      not their sum
    confirm: Before any training it must be near {nats}, the entropy of even odds.
    see: mathematics: Entropy bound
    """,
)
def entropy_of_wrong_distribution(run: RunData) -> Verdict:
    """The logged entropy exceeds the maximum of the sampled distribution: it is of another one.

    One value is proof: ln|A| is a bound, for k of d without replacement ln(d!/(d−k)!). The bonus
    then pushes a distribution that nobody samples. Continuous actions have no bound.
    """
    series, largest = run.get("entropy"), _largest_entropy(run)
    if series is None or not len(series.finite):
        return unlogged("entropy")
    finite = series.finite
    if largest is None:
        why = "how many actions there are to choose from is not among the run's settings:"
        return Skipped(why=f"{why} watch(..., config={{'num_actions': n}})", metric="entropy")
    above = finite.values > largest.nats * (1 + limits.entropy_error) + limits.entropy_error
    if not above.any():
        return None
    at = int(np.argmax(finite.values))
    value, bound = float(finite.values[at]), f"{largest.nats:.2f}"
    seen = f"{value:.4g} at step {finite.steps[at]}, above {largest.nats:.4g} on"
    return proof(
        f"An entropy of {value:.2f} nats is not that of the actions: {largest.words} have at"
        f" most {bound}",
        shown(finite, f"{seen} {above.sum()} of {len(finite)} points", steps=finite.steps[above]),
        severity="warn",
        named=_named(run, value),
        nats=bound,
    )


def _largest_entropy(run: RunData) -> _Largest | None:
    degree, picks = _whole(run.fact(*DEGREES)), _whole(run.fact(*PICKS))
    if degree is not None:
        if picks is not None and 1 < picks <= degree:
            nats = math.lgamma(degree + 1) - math.lgamma(degree - picks + 1)
            return _Largest(nats=nats, words=f"{picks} of {degree} without putting back")
        return _Largest(nats=math.log(degree), words=f"{degree} candidates")
    return _of_space(run.fact(*CHOICES))


def _of_space(space: Any) -> _Largest | None:
    """Of a count, or of a Gymnasium space as it prints: Discrete(4), MultiDiscrete([3 3]), ..."""
    if (count := _whole(space)) is not None:
        return _Largest(nats=math.log(count), words=f"{count} actions")
    if isinstance(space, Mapping):
        return _of_space(space.get("n"))
    said = space.strip() if isinstance(space, str) else ""
    found = re.fullmatch(r"(Discrete|MultiDiscrete|MultiBinary)\((.{1,200})\)", said)
    numbers = [int(x) for x in re.findall(r"\d+", found[2])] if found else []
    if found is None or not numbers or min(numbers) < 1:
        return None
    sizes = {"Discrete": numbers[:1], "MultiDiscrete": numbers}.get(found[1], [2] * numbers[0])
    return _Largest(nats=sum(map(math.log, sizes)), words=f"the actions of {said}")


def _whole(value: Any) -> int | None:
    """A count above one."""
    found = number(value) or 0.0
    return int(found) if 1 < found < limits.most_choices and found == int(found) else None


def _named(run: RunData, value: float) -> str:
    """What has this many entries: a setting whose logarithm it is, else their number."""
    for name in OTHERS:
        count = _whole(run.fact(name))
        if count is not None and abs(math.log(count) - value) < limits.near:
            return f"one over all {count} of {name}, ln {count} = {math.log(count):.2f}"
    return f"even odds over some {math.exp(min(value, 50.0)):.2g} entries would give it"


OTHER_ACTIONS = {
    "axis": Way(
        title="Probabilities add up to 1 over the samples, not over the actions{place}",
        fix=(
            "softmax(logits, dim=-1): over the actions of each sample, also where logits have rows",
        ),
    ),
    "": Way(title="The loss has log-probs of actions that were never taken"),
}


@rule(
    "score-not-zero-mean",
    """
    cause: Under the policy that sampled, ∇ log π averages to zero over its actions, whatever they
      earn. Here it does not: the log-probs are those of other actions, of other logits, or of
      another distribution than the sampler's. Even with no reward at all this loss would move the
      policy.
    fix: Take log_prob of the very actions that were sent to the environment: watch for a shift by
      one, a reshape that mixes batch and time, a gather along the wrong axis
    fix: Sample from the distribution that is trained: same logits, mask and temperature, no argmax,
      and with the Jacobian of every squashing of the action
    confirm: gm.audit(..., policy=...) draws fresh actions and tests their mean score.
    see: mathematics: Zero-mean score
    """,
)
def score_not_zero_mean(run: RunData) -> Verdict:
    """E[∇ log π(a)] = 0 over fresh actions, or log_prob is not that of the sampler. The audit
    resamples actions; a log shows it where the training logs score_z. Proved where the meter heard
    the environment: the actions of the loss are not those that were taken."""
    if facts := told(run, "score-not-zero-mean", OTHER_ACTIONS):
        return facts
    series = run.get("score_z")
    series = run.get("credit/score_z") if series is None else series
    if series is None or len(series.finite) < limits.min_scores:
        why = "gm.audit(..., policy=...) resamples actions; a log needs score_z"
        return Skipped(why=f"{why} (gradiometer.maths.scores.score_z)", metric="score_z")
    steps, values, far = series.finite.steps, series.finite.values, limits.far_score
    half = len(values) // 2
    at_once, now = (float(np.median(x)) for x in (values[: limits.first_scores], values[half:]))
    passed = now <= far and len(values) >= 2 * limits.first_scores
    if max(at_once, now) <= far or passed:
        return None
    batches = min(limits.first_scores, len(values))
    seen = f"median {fmt(at_once)} over the first {batches} batches, {fmt(now)} over the last half"
    return finding(
        f"The mean of ∇ log π over the sampled actions is {max(at_once, now):.0f} standard"
        " deviations from zero",
        shown(
            series.finite,
            f"{seen}; chance stays below 4",
            first_step=int(steps[0 if at_once > far else half]),
        ),
        severity="critical",
        basis="statistical",
    )


@rule(
    "actions-ignore-policy",
    """
    cause: The actions are not drawn from the policy whose log-probs are trained: an argmax, other
      logits, another mask or temperature, or an environment that replaces them.
    fix: Act with a sample of the very distribution whose log_prob enters the loss: a =
      dist.sample(); dist.log_prob(a)
    confirm: gm.audit(..., policy=...): permute or scale the logits, and the statistics of the
      actions must change.
    see: mathematics: Actions follow the policy
    """,
)
def actions_ignore_policy(run: RunData) -> Verdict:
    """One action is taken more often than a policy of this entropy can: another policy acts.

    If the commonest action has the share s, the entropy of the policy is at most h(s) + (1 − s)
    ln(n − 1), for the entropy of a mixture is above the mean of its parts'.
    """
    share, entropy = run.get("action_share"), run.get("entropy")
    largest = _largest_entropy(run)
    if share is None or entropy is None or largest is None:
        why = "gm.audit(..., policy=...) tests it; a log needs action_share, entropy and the"
        return Skipped(why=f"{why} setting num_actions", metric="action_share")
    steps, at, of = np.intersect1d(share.finite.steps, entropy.finite.steps, return_indices=True)
    if len(steps) < limits.min_points:
        why = f"{len(steps)} steps with both action_share and entropy, {limits.min_points} needed"
        return Skipped(why=why, metric="action_share")
    shares = np.clip(share.finite.values[at], 1e-12, 1 - 1e-12)
    entropies = entropy.finite.values[of]
    allowed = -shares * np.log(shares) - (1 - shares) * np.log(1 - shares)
    allowed += (1 - shares) * math.log(max(math.exp(min(largest.nats, 50.0)) - 1, 1.0))
    above = entropies - limits.sure * allowed - 0.1
    over = replace(share, steps=steps, values=above)
    other = entropies.max() > largest.nats * 1.01 + 0.01
    if other or not persists(over, lambda x: x > 0) or level(over.last(0.5)) <= 0:
        return None
    half = len(steps) // 2
    late = steps[half:]
    seen, most, spread = (float(np.median(x[half:])) for x in (shares, allowed, entropies))
    possible = f"median {spread:.3g}; with that share at most {most:.3g} is possible"
    return finding(
        f"{seen:.0%} of the actions are one and the same, which a policy of entropy"
        f" {spread:.2f} cannot do",
        shown(share, f"median {seen:.3f}", steps=late),
        shown(entropy, possible, steps=late),
        strength="strong",
        since_step=int(steps[0] if (above > 0).all() else late[0]),
    )


@rule(
    "kl-gradient-wrong",
    """
    cause: Over samples of the policy itself E[∇ log π] = 0, so ∇k1 averages to nothing; ∇k2 is that
      of the KL one logs, ∇k3 that of the opposite one. Off-policy each needs the weight π/π_old.
    fix: Use k2 as the loss (verl: actor.kl_loss_type=mse), or k3 near the reference (low_var_kl)
    fix: Or put k1 into the reward, where it is right (verl: algorithm.use_kl_in_reward=True)
    confirm: Raise kl_loss_coef tenfold: with k1 the KL to the reference grows as before, only more
      noisily.
    see: J. Schulman, Approximating KL divergence
    see: mathematics: KL gradients
    """,
)
def kl_gradient_wrong(run: RunData) -> Verdict:
    """An estimator of the KL is not an estimator of its gradient. As a loss on fresh samples k1 has
    a gradient of mean zero: it adds noise and restrains nothing. k3 pulls along the other
    direction of the KL, which matters far from the reference.
    """
    kind = run.fact("kl_loss_type", "kl_loss_estimator", "kl_estimator_loss")
    if kind is None:
        why = "which estimator of the KL is the loss is not among the run's settings:"
        return Skipped(why=f"{why} config={{'kl_loss_type': 'k2'}}", metric="kl_ref")
    if run.fact("use_kl_loss") is False or run.fact("kl_loss_coef", "kl_coef") == 0:
        return None
    kl, kind = run.get("kl_ref"), str(kind).lower()
    far = kl is not None and persists(kl, lambda x: x > limits.far_from_reference)
    if kind not in K1_LOSSES and not (kind in K3_LOSSES and far):
        return None
    k1, read = kind in K1_LOSSES, None
    if kl is not None and len(kl.finite):
        read = shown(kl, f"{fmt(level(kl.first(0.2)))} at first, {fmt(level(kl.last(0.2)))} now")
    what = (
        "has a gradient of mean zero: it holds the policy to nothing"
        if k1
        else "pulls along the forward KL, another direction this far from the reference"
    )
    return finding(
        f"The KL loss of type {kind!r} {what}",
        Evidence(series="config", reading=f"kl_loss_type={kind}"),
        read,
        severity="warn" if k1 else "info",
        basis="proved" if k1 else "heuristic",
    )


# The policy that samples and the one that trains: same weights, same probabilities


LOOKED_AT = ("sampler_kl", "importance_weight", "ess", "kl_ref", "ratio/<statistic>")


OTHER_SAMPLER = "The policy that samples is not the one that trains"


@rule(
    "sampler-mismatch",
    """
    cause: Sampler and trainer give the same tokens or actions different probabilities at the same
      weights: temperature, top-p, masks, precision, dropout or routing differ, or the sampler's
      weights were not synchronised.
    fix: Sample at temperature 1 without top-k and top-p, or apply the same to the log-probs that
      are trained
    fix: Recompute old log-probs with the trainer (verl: rollout.calculate_log_probs,
      algorithm.rollout_correction; TRL: vllm_importance_sampling_correction=True)
    fix: Synchronise the weights after every update, and switch dropout off in both
    confirm: Score one rollout with both before any update: the log-probs must agree to rounding.
    see: F25
    see: miles issue 2722: log-probs 0.37 apart, 0.14 with expert replay
    """,
)
def sampler_mismatch(run: RunData) -> Verdict:
    """The policy that drew the samples is not the one that is trained, although their weights are:
    every importance ratio is off before the first update. What goes off later is stale data.
    Proved where the meter saw the ratio before the first update.
    """
    if facts := told(run, "sampler-mismatch", _other_sampler):
        return facts
    present = [template for template in LOOKED_AT if run.has(template)]
    if not present:
        return unlogged("sampler_kl")
    signs = list(_signs(run))
    if not signs:
        found = [series for template in present for series in run.every(template)]
        long = any(enough(series, limits.min_points) for series in found)
        return None if long else too_short(found, limits.min_points)
    return finding(
        f"{OTHER_SAMPLER}: {signs[0].series} is {signs[0].reading.partition(' ')[0]}",
        *signs,
        strength="strong",
        basis="statistical",
        since_step=min(each.first_step or 0 for each in signs),
    )


def _other_sampler(run: RunData, event: Event) -> Way:
    """Many a sampler leaves out what is unlikely, and a policy learns from that."""
    mean = number(event.detail.get("mean"))
    on_purpose = mean is not None and mean > 0.0 and bool(learning(run))
    return Way(title=OTHER_SAMPLER, severity="info" if on_purpose else "warn")


def _signs(run: RunData) -> Iterator[Evidence]:
    kl, weight, ess = run.get("sampler_kl"), run.get("importance_weight"), run.get("ess")
    low, high = (limits.weight_low, limits.weight_high)
    usual = f"between {low} and {high} is usual"
    yield from _sign(kl, limits.sampler_kl, f"at most {limits.sampler_kl} is rounding", above=True)
    yield from _sign(weight, low, usual, early=True)
    yield from _sign(weight, high, usual, above=True, early=True)
    yield from _sign(ess, limits.ess, f"above {limits.ess} is usual", early=True)
    reference = run.get("kl_ref")
    if reference is not None and reference.estimator == "k1":
        why = "the mean of log π/π_ref over samples of π cannot be negative"
        yield from _sign(reference, limits.negative_kl, why)
    yield from _first_ratios(run)


def _sign(
    series: Series | None, bound: float, usual: str, *, above: bool = False, early: bool = False
) -> Iterator[Evidence]:
    """A level surely beyond its bound, by windows and interval; with `early` from the start."""

    def holds(x: float) -> bool:
        return x > bound if above else x < bound

    if series is None or len(series.finite) < limits.min_points:
        return
    if early and not holds(level(series.finite.first(limits.first))):
        return
    newer = series.finite.last(0.5)
    interval = mean_interval(newer.values)
    if interval is None or not persists(series, holds):
        return
    if (interval.p_above(bound) if above else interval.p_below(bound)) <= limits.level:
        reading = f"{interval.mean:.3g} [{interval.low:.3g}, {interval.high:.3g}], {usual}"
        yield shown(newer, reading, first_step=since(series, holds))


def _first_ratios(run: RunData) -> Iterator[Evidence]:
    """π/π_old at the first step of a rollout: 1, or the old log-probs are another policy's."""
    series = run.get("ratio/<statistic>", statistic="mean")
    if series is None or isinstance(run.source, Log):
        return
    steps = run.source.steps()
    fresh = _beginnings(steps["step"], steps["rollout"], steps["epoch"])
    finite = series.finite
    kept = np.isin(finite.steps, fresh)
    if kept.sum() < limits.min_points:
        return
    ratios = finite.values[kept]
    if float(np.quantile(np.abs(ratios - 1), 0.25)) > limits.ratio_error:
        reading = f"{float(np.median(ratios)):.3g} at the first update of a rollout, where it must"
        yield shown(series, f"{reading} be 1", steps=finite.steps[kept])


def _beginnings(steps: np.ndarray, rollouts: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """The first step of each rollout, where noted: no update has used its data yet."""
    if np.isfinite(rollouts).any():
        known = np.isfinite(rollouts)
        _, first = np.unique(rollouts[known], return_index=True)
        return np.asarray(steps[known][first])
    anew = np.flatnonzero((epochs == 0) & (np.concatenate([[np.nan], epochs[:-1]]) != 0))
    return np.asarray(steps[anew])
