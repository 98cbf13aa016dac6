"""Is it a policy gradient: of the distribution that is sampled, by the sampler that is trained, with the KL that is meant?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import unlogged
from gradiometer.doctor.rule import Skipped, Verdict
from gradiometer.doctor.rules.wiring import wired
from gradiometer.doctor.signs import level, number, persists
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = [
    "actions_ignore_policy",
    "entropy_of_wrong_distribution",
    "kl_gradient_wrong",
    "score_not_zero_mean",
]

ENTROPY_ERROR = 0.01
"""Over the largest possible entropy, relative and in nats: rounding of logarithms, and of what a log prints."""
NEAR = 0.02
"""Nats: two per cent in a count. Closer than that an untrained entropy is the logarithm of that count."""
SURE = 1.1
"""How far an entropy must be above what the frequent action allows: a batch's share of it is itself a sample."""
MIN_POINTS = 9
"""Three windows of three."""
FAR_FROM_REFERENCE = 1.0
"""Nats from where on the gradients of the two directions of the KL differ by more than they share."""

FAR_SCORE = 4.0
"""Standard deviations of `score_z`: one healthy batch in some 10,000 is above, and here it is a median of batches."""
FIRST_SCORES, MIN_SCORES = 5, 3
"""Batches to tell at once by, and the fewest to tell by at all."""

CHOICES = ("num_actions", "n_actions", "num_choices", "action_space.n", "action_space", "vocab_size")
"""Settings that say how many actions there are to choose from."""
DEGREES = ("degree", "row_degree", "max_degree", "num_candidates", "num_neighbors")
PICKS = ("edges_per_row", "num_picks", "num_selected", "picks", "k")
"""Of `degree` candidates this many are taken, without putting back."""
OTHERS = ("num_edges", "edges", "nnz", "num_nodes", "num_items", "vocab_size", "num_states", "batch_size")
"""What one softmax may have been taken over instead."""
MOST_CHOICES = 1e15
"""Counts from here on are no counts: a float holds no whole number above 2⁵³."""

K1_LOSSES = ("kl", "k1")
K3_LOSSES = ("low_var_kl", "k3")
"""Spellings of verl's kl_loss_type; with a plus (k1+) it replaces the gradient, and is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Largest:
    """The largest entropy that what is sampled can have, and of what."""

    nats: float
    words: str


@wired("entropy-of-wrong-distribution")
def entropy_of_wrong_distribution(chart: Chart) -> Verdict:
    """The logged entropy is above the largest that the sampled distribution can have: it is the entropy of another one.

    One value is proof: ln|A| is a bound, for k of d without replacement ln(d!/(d−k)!). The bonus then pushes a distribution
    that nobody samples. Continuous actions have no bound.
    """
    series = chart.get("entropy")
    if series is None or not len(series.finite):
        return unlogged("entropy-of-wrong-distribution", "entropy")
    largest = _largest_entropy(chart)
    if largest is None:
        why = "how many actions there are to choose from is not among the run's settings: watch(..., config={'num_actions': n})"
        return Skipped(rule="entropy-of-wrong-distribution", why=why, metric="entropy")
    finite = series.finite
    above = finite.values > largest.nats * (1 + ENTROPY_ERROR) + ENTROPY_ERROR
    if not above.any():
        return None
    at = int(np.argmax(finite.values))
    step, value = int(finite.steps[at]), float(finite.values[at])
    first = int(finite.steps[np.argmax(above)])
    return Finding(
        id="entropy-of-wrong-distribution",
        title=f"An entropy of {value:.2f} nats is not that of the actions: {largest.words} have at most {largest.nats:.2f}",
        severity="warn",
        basis="proved",
        since_step=first,
        evidence=(
            Evidence(
                series=series.name,
                reading=f"{value:.4g} at step {step}, above {largest.nats:.4g} on {int(above.sum())} of {len(finite)} points",
                first_step=first,
                last_step=int(finite.steps[np.flatnonzero(above)[-1]]),
            ),
        ),
        cause=f"It is taken over another distribution than the one that is sampled: {_named(chart, value)}. A bonus on it "
        "pushes probabilities that no action is drawn from.",
        fix=(
            "Take the entropy of the distribution that is sampled, choice by choice, and average: "
            "softmax over the candidates of one row (with its mask), not over all rows at once",
            "If several choices are made at once, log how many (config k), or log the mean over them and not their sum",
        ),
        confirm=f"Before any training it must be near {largest.nats:.2f}, the entropy of even odds.",
        references=("FORMULAS sections 5 and 7",),
    )


def _largest_entropy(chart: Chart) -> _Largest | None:
    degree, picks = _whole(chart.fact(*DEGREES)), _whole(chart.fact(*PICKS))
    if degree is not None:
        if picks is not None and 1 < picks <= degree:
            nats = math.lgamma(degree + 1) - math.lgamma(degree - picks + 1)
            return _Largest(nats=nats, words=f"{picks} of {degree} without putting back")
        return _Largest(nats=math.log(degree), words=f"{degree} candidates")
    return _of_space(chart.fact(*CHOICES))


def _of_space(space: Any) -> _Largest | None:
    """Of a count, or of a Gymnasium space as it prints: Discrete(4), MultiDiscrete([3 3]), MultiBinary(8)."""
    if (count := _whole(space)) is not None:
        return _Largest(nats=math.log(count), words=f"{count} actions")
    if isinstance(space, Mapping):
        return _of_space(space.get("n"))
    found = (
        re.fullmatch(r"(Discrete|MultiDiscrete|MultiBinary)\((.{1,200})\)", space.strip())
        if isinstance(space, str)
        else None
    )
    numbers = [int(x) for x in re.findall(r"\d+", found[2])] if found else []
    if found is None or not numbers or min(numbers) < 1:
        return None
    sizes = {"Discrete": numbers[:1], "MultiDiscrete": numbers, "MultiBinary": [2] * numbers[0]}[found[1]]
    return _Largest(nats=sum(map(math.log, sizes)), words=f"the actions of {space.strip()}")


def _whole(value: Any) -> int | None:
    """A count above one."""
    found = number(value)
    return int(found) if found is not None and 1 < found < MOST_CHOICES and found == int(found) else None


def _named(chart: Chart, value: float) -> str:
    """What has this many entries: a setting whose logarithm it is, else their number."""
    for name in OTHERS:
        count = _whole(chart.fact(name))
        if count is not None and abs(math.log(count) - value) < NEAR:
            return f"one over all {count} of {name}, ln {count} = {math.log(count):.2f}"
    return f"even odds over some {math.exp(min(value, 50.0)):.2g} entries would give it"


@wired("score-not-zero-mean")
def score_not_zero_mean(chart: Chart) -> Verdict:
    """E[∇ log π(a)] = 0 over fresh actions, or log_prob is not that of the sampler. The audit resamples actions; a log shows it
    where the training logs score_z."""
    series = chart.get("score_z")
    if series is None or len(series.finite) < MIN_SCORES:
        why = "gm.audit(..., policy=...) resamples actions; a log needs score_z (gradiometer.maths.scores.score_z)"
        return Skipped(rule="score-not-zero-mean", why=why, metric="score_z")
    steps, values = series.finite.steps, series.finite.values
    half = len(values) // 2
    at_once = float(np.median(values[:FIRST_SCORES]))
    now = float(np.median(values[half:]))
    if max(at_once, now) <= FAR_SCORE or (now <= FAR_SCORE and len(values) >= 2 * FIRST_SCORES):
        return None
    first = int(steps[0]) if at_once > FAR_SCORE else int(steps[half])
    return Finding(
        id="score-not-zero-mean",
        title=f"The mean of ∇ log π over the sampled actions is {max(at_once, now):.0f} standard deviations from zero",
        severity="critical",
        basis="statistical",
        since_step=first,
        evidence=(
            Evidence(
                series=series.name,
                reading=f"median {fmt(at_once)} over the first {min(FIRST_SCORES, len(values))} batches, {fmt(now)} over the "
                "last half; chance stays below 4",
                first_step=first,
                last_step=int(steps[-1]),
            ),
        ),
        cause="Under the policy that sampled, ∇ log π averages to zero over its actions, whatever they earn. Here it does not: "
        "the log-probs are those of other actions, of other logits, or of another distribution than the sampler's. Even with "
        "no reward at all this loss would move the policy.",
        fix=(
            "Take log_prob of the very actions that were sent to the environment: watch for a shift by one, a reshape that "
            "mixes batch and time, a gather along the wrong axis",
            "Sample from the distribution that is trained: same logits, mask and temperature, no argmax, and with the "
            "Jacobian of every squashing of the action",
        ),
        confirm="gm.audit(..., policy=...) draws fresh actions and tests their mean score.",
        references=("FORMULAS section 5",),
    )


@wired("actions-ignore-policy")
def actions_ignore_policy(chart: Chart) -> Verdict:
    """One action is taken far more often than a policy of this entropy can take it: what acts is not what is trained.

    If the commonest action has the share s, the entropy of the policy is at most h(s) + (1 − s) ln(n − 1), for the entropy of a
    mixture is above the mean of its parts'.
    """
    share, entropy = chart.get("action_share"), chart.get("entropy")
    largest = _largest_entropy(chart)
    if share is None or entropy is None or largest is None:
        why = "gm.audit(..., policy=...) tests it; a log needs action_share, entropy and the setting num_actions"
        return Skipped(rule="actions-ignore-policy", why=why, metric="action_share")
    steps, at, of = np.intersect1d(share.finite.steps, entropy.finite.steps, return_indices=True)
    if len(steps) < MIN_POINTS:
        why = f"{len(steps)} steps with both action_share and entropy, {MIN_POINTS} needed"
        return Skipped(rule="actions-ignore-policy", why=why, metric="action_share")
    shares = np.clip(share.finite.values[at], 1e-12, 1 - 1e-12)
    entropies = entropy.finite.values[of]
    allowed = -shares * np.log(shares) - (1 - shares) * np.log(1 - shares)
    allowed += (1 - shares) * math.log(max(math.exp(min(largest.nats, 50.0)) - 1, 1.0))
    over = Series(name=share.name, metric=share.metric, steps=steps, values=entropies - SURE * allowed - 0.1)
    if (
        not persists(over, lambda x: x > 0)
        or level(over.last(0.5)) <= 0
        or entropies.max() > largest.nats * 1.01 + 0.01
    ):
        return None
    half = len(steps) // 2
    seen, most, spread = (float(np.median(values[half:])) for values in (shares, allowed, entropies))
    return Finding(
        id="actions-ignore-policy",
        title=f"{seen:.0%} of the actions are one and the same, which a policy of entropy {spread:.2f} cannot do",
        severity="warn",
        basis="heuristic",
        since_step=int(steps[0]) if (over.values > 0).all() else int(steps[half]),
        evidence=(
            Evidence(
                series=share.name, reading=f"median {seen:.3f}", first_step=int(steps[half]), last_step=int(steps[-1])
            ),
            Evidence(
                series=entropy.name,
                reading=f"median {spread:.3g}; with that share at most {most:.3g} is possible",
                first_step=int(steps[half]),
                last_step=int(steps[-1]),
            ),
        ),
        cause="The actions are not drawn from the policy whose log-probs are trained: an argmax, other logits, another mask or "
        "temperature, or an environment that replaces them.",
        fix=(
            "Act with a sample of the very distribution whose log_prob enters the loss: a = dist.sample(); dist.log_prob(a)",
        ),
        confirm="gm.audit(..., policy=...): permute or scale the logits, and the statistics of the actions must change.",
        references=("FORMULAS section 5",),
    )


@wired("kl-gradient-wrong")
def kl_gradient_wrong(chart: Chart) -> Verdict:
    """An estimator of the KL is not an estimator of its gradient. As a loss on fresh samples k1 has a gradient of mean zero: it
    adds noise and holds nothing. k3 pulls along the other direction of the KL, which matters far from the reference."""
    kind = chart.fact("kl_loss_type", "kl_loss_estimator", "kl_estimator_loss")
    if kind is None:
        why = "which estimator of the KL is the loss is not among the run's settings: config={'kl_loss_type': 'k2'}"
        return Skipped(rule="kl-gradient-wrong", why=why, metric="kl_ref")
    used, weight = chart.fact("use_kl_loss"), chart.fact("kl_loss_coef", "kl_coef")
    if used is False or (isinstance(weight, int | float) and weight == 0):
        return None
    kl, kind = chart.get("kl_ref"), str(kind).lower()
    if kind in K1_LOSSES:
        return _kl_finding(kl, kind, "warn", "has a gradient of mean zero: it holds the policy to nothing")
    if kind in K3_LOSSES and kl is not None and persists(kl, lambda x: x > FAR_FROM_REFERENCE):
        return _kl_finding(
            kl, kind, "info", "pulls along the forward KL, another direction this far from the reference"
        )
    return None


def _kl_finding(kl: Series | None, kind: str, severity: str, what: str) -> Finding:
    evidence = [Evidence(series="config", reading=f"kl_loss_type={kind}")]
    if kl is not None and len(kl.finite):
        ends = int(kl.steps[0]), int(kl.steps[-1])
        reading = f"{fmt(level(kl.first(0.2)))} at first, {fmt(level(kl.last(0.2)))} now"
        evidence.append(Evidence(series=kl.name, reading=reading, first_step=ends[0], last_step=ends[1]))
    return Finding(
        id="kl-gradient-wrong",
        title=f"The KL loss of type {kind!r} {what}",
        severity="warn" if severity == "warn" else "info",
        basis="proved" if severity == "warn" else "heuristic",
        evidence=tuple(evidence),
        cause="Over samples of the policy itself E[∇ log π] = 0, so ∇k1 averages to nothing; ∇k2 is that of the KL one logs, "
        "∇k3 that of the opposite one. Off-policy each needs the weight π/π_old.",
        fix=(
            "Use k2 as the loss (verl: actor.kl_loss_type=mse), or k3 near the reference (low_var_kl)",
            "Or put k1 into the reward, where it is right (verl: algorithm.use_kl_in_reward=True)",
        ),
        confirm="Raise kl_loss_coef tenfold: with k1 the KL to the reference grows as before, only more noisily.",
        references=("J. Schulman, Approximating KL divergence", "FORMULAS section 4"),
    )
