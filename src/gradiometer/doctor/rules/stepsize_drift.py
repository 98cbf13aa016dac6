"""How far the policy is from its reference (too far, or chained to it) and from the data it learns on.

A KL to the reference that grows with the reward is what RL is, and at π = π_ref it is zero by construction; a KL to the data
grows over the epochs of a rollout in every PPO. What counts is the reward beside the first and the size of the second.
"""

from __future__ import annotations

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import suffers
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import Progress, key_of, number, progress_of, shown
from gradiometer.doctor.roles import COEFFICIENTS, role_of
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.rules.stepsize import LARGE_KL
from gradiometer.doctor.signs import level, persists, since, trend
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["kl_runaway", "kl_strangled", "stale_data"]

MIN_POINTS = 9
"""Three windows of three: what `persists` needs."""

FAR_KL, RUNAWAY_KL = 0.3, 2.0
"""Nats a token (public log doctors): worth a look, and another language."""
FAR_SEQUENCE, RUNAWAY_SEQUENCE = 12.0, 30.0
"""The same for sums over a completion, as TRL's objective/kl: its controllers aimed at 6 nats."""
STILL_GROWS = 1.2
"""Last fifth over third fifth: a KL that settled is a price that was paid, not one that runs off."""
STALLED = 0.1
"""Of all that was gained, at most, over the last two fifths: a straight rise gains 0.4 there."""

CHAINED_KL = 1e-4
"""Nats a token (public log doctors), about what one step of a healthy policy makes."""
RULES = 0.5
"""Norm of the KL term over the policy term's. In balance both are equal; a regulariser that only steers is far below."""

LOW_ESS = 0.3
"""Effective sample size as a share of the batch (verl's rollout correction)."""
WEIGHTS = (0.5, 2.0)
"""Mean importance weight, which is 1 in expectation whatever the two policies are (the same)."""
FRESH_KL = 0.02
"""Nats: what fresh data may show."""
GREW = 5.0
"""Times: last fifth of a KL over its first, or last epoch over the first."""
MIN_EPOCH = 5
"""Values of an epoch to take a median of."""

BETA_KEYS = {
    "TRL": "beta (kl_coef)",
    "verl": "actor_rollout_ref.actor.kl_loss_coef or algorithm.kl_ctrl.kl_coef",
    "RAGEN": "actor_rollout_ref.actor.kl_loss_coef",
}
FRESH_KEYS = {
    "SB3": "n_epochs",
    "CleanRL": "--update-epochs",
    "TRL": "num_iterations and steps_per_generation",
    "verl": "actor_rollout_ref.actor.ppo_epochs and the staleness of the async trainer",
}


@rule("kl-runaway", needs=("kl_ref",))
def kl_runaway(chart: Chart) -> Verdict:
    """The policy runs off from its reference while the reward stalls (F22): KL is paid and nothing is bought."""
    kl = chart.get("kl_ref")
    if kl is None or len(kl.finite) < MIN_POINTS:
        return None if kl is None else too_short("kl-runaway", kl, MIN_POINTS)
    summed = kl.name == "objective/kl"
    far, runaway = (FAR_SEQUENCE, RUNAWAY_SEQUENCE) if summed else (FAR_KL, RUNAWAY_KL)
    growth = trend(kl)
    before, last = (level(part) for part in (kl.finite.first(0.6).last(1 / 3), kl.finite.last(0.2)))
    if not persists(kl.last(0.5), lambda x: x > far) or growth.direction != "rises" or not last > STILL_GROWS * before:
        return None
    progress = progress_of(chart)
    stall = _stalls(chart, progress, late=last > runaway)
    if stall is None:
        return None
    start = since(kl, lambda x: x > far)
    unit = "nats a completion" if summed else "nats"
    reading = f"rose to {fmt(last)}, Mann-Kendall p {fmt(growth.p_value or 0.0)}"
    return Finding(
        id="kl-runaway",
        title=f"The policy runs off from its reference: {fmt(last)} {unit} and growing, while the reward stalls",
        severity="warn",
        basis="statistical",
        since_step=start,
        evidence=(shown(kl.finite, reading, first_step=start), stall),
        cause="The penalty is too weak (or has no gradient) for the reward: the policy drifts where the reward was never "
        "meant to judge, or where entropy and noise carry it.",
        fix=(f"Raise {key_of(kl, BETA_KEYS, 'the coefficient of the KL penalty')} 3 to 10 times, or lower the learning rate",
             "Make sure that the penalty has a gradient (meter.terms) and the right sign"),
        confirm="Train on from the last good checkpoint with 10 times the coefficient: kl_ref turns, the reward does not fall.",
        references=("arXiv 2210.10760: reward against KL", "arXiv 1909.08593: adaptive KL control"),
    )  # fmt: skip


def _stalls(chart: Chart, progress: Progress | None, *, late: bool) -> Evidence | None:
    """A reward that went nowhere or fell; where `late` also one that rose and has not moved over the last half."""
    if progress is None or progress.state == "best":
        return None
    if progress.stuck:
        return progress.evidence
    if (fell := suffers(progress)) is not None or not late:
        return fell
    before, last = level(progress.reward.first(0.6).last(1 / 3)), level(progress.reward.last(0.2))
    if not last - before <= STALLED * (progress.end - progress.start):
        return None
    return shown(progress.reward.last(0.5), f"{fmt(before)} in the middle of the run, {fmt(last)} at the end")


@rule("kl-strangled", needs=("kl_ref",))
def kl_strangled(chart: Chart) -> Verdict:
    """The penalty chains the policy to its reference (F22): no KL, a KL term as strong as the task's, no reward gained.

    At the start π = π_ref, so the KL is zero and so is the gradient of its term: that is not it.
    """
    kl = chart.get("kl_ref")
    if kl is None or len(kl.finite) < MIN_POINTS:
        return None if kl is None else too_short("kl-strangled", kl, MIN_POINTS)
    if not persists(kl, lambda x: abs(x) < CHAINED_KL):
        return None
    progress, rules = progress_of(chart), _kl_rules(chart)
    coefficient = number(chart.fact(*COEFFICIENTS["kl"]))
    if progress is None or not progress.stuck or (rules is None and not coefficient):
        return None
    start = since(kl, lambda x: abs(x) < CHAINED_KL)
    severity: Severity = "info" if rules is None else "warn"
    at = fmt(level(kl.last(0.5)))
    known = "" if coefficient is None else f" (now {fmt(coefficient)})"
    return Finding(
        id="kl-strangled",
        title=f"The KL penalty holds the policy at its reference: {at} nats, and the reward {progress.then}",
        severity=severity,
        basis="heuristic",
        since_step=start,
        evidence=(shown(kl, f"median {at} over the last half", first_step=start), *(() if rules is None else (rules,)),
                  progress.evidence),
        cause="Every step the task makes is taken back by the penalty; or the policy does not move for another reason.",
        fix=(f"Lower {key_of(kl, BETA_KEYS, 'the coefficient of the KL penalty')}{known} 10 times or more",
             "If kl_ref is exactly zero: the reference may be the policy itself (no copy), or the learning rate is too small"),
        confirm="Train 50 updates with the coefficient at zero: if kl_ref and the reward move, it was the penalty.",
        references=("arXiv 1909.08593: adaptive KL control",),
    )  # fmt: skip


def _kl_rules(chart: Chart) -> Evidence | None:
    """The KL term where its gradient is as large as half the task's, over the last half or in the last analysis."""
    terms = {x.parts["term"]: x for x in chart.every("grad/<block>/term/<term>/norm") if x.parts.get("block") == "all"}
    terms |= {x.parts["term"]: x for x in chart.every("grad_norm/<bucket>/<term>") if x.parts.get("bucket") == "all"}
    held, task = (next((x for name, x in terms.items() if role_of(name) == role), None) for role in ("kl", "policy"))
    if held is None or task is None:
        return None
    mine, theirs = level(held.last(0.5)), level(task.last(0.5))
    if not (mine > 0.0 and mine >= RULES * theirs):
        return None
    return shown(held, f"gradient norm {fmt(mine)}, the task's {fmt(theirs)}, over the last half")


@rule("stale-data")
def stale_data(chart: Chart) -> Verdict:
    """The data was collected by another policy than the one that is trained (F24): importance weights that degenerate, or a
    KL to the collecting policy that keeps growing over the run or over the epochs of a rollout."""
    ess, weight, kl = chart.get("ess"), chart.get("importance_weight"), chart.get("approx_kl")
    known = [x for x in (ess, weight, kl) if x is not None]
    if not known:
        return unlogged("stale-data", "ess")
    if all(len(x.finite) < MIN_POINTS for x in known):
        return too_short("stale-data", known[0], MIN_POINTS)
    progress = progress_of(chart)
    gained = progress is not None and not progress.stuck and suffers(progress) is None
    if (found := _degenerate(ess, weight)) is not None:
        return _stale(*found, severity="info" if gained else "warn", progress=progress)
    if kl is None or gained:
        return None
    if (found := _grew(chart, kl)) is not None:
        return _stale(*found, severity="info" if progress is None else "warn", progress=progress)
    if (found := _over_epochs(chart, kl)) is not None:
        return _stale(*found, severity="info", progress=progress)
    return None


Stale = tuple[Series, Evidence, int | None]


def _degenerate(ess: Series | None, weight: Series | None) -> Stale | None:
    low, high = WEIGHTS
    if ess is not None and persists(ess, lambda x: x < LOW_ESS):
        start = since(ess, lambda x: x < LOW_ESS)
        reading = f"effective sample size {fmt(100 * level(ess.last(0.5)))} % of the batch over the last half"
        return ess, shown(ess, reading, first_step=start), start
    if weight is not None and persists(weight, lambda x: not low <= x <= high):
        start = since(weight, lambda x: not low <= x <= high)
        reading = f"mean importance weight {fmt(level(weight.last(0.5)))} over the last half; 1 in expectation"
        return weight, shown(weight, reading, first_step=start), start
    return None


def _grew(chart: Chart, kl: Series) -> Stale | None:
    """A KL that began as fresh data's, grew steadily and is large, without a learning rate that grew."""
    rate = chart.get("learning_rate")
    first, last = level(kl.finite.first(0.2)), level(kl.finite.last(0.2))
    grown = first < FRESH_KL and last > LARGE_KL and last > GREW * abs(first)
    if not grown or trend(kl).direction != "rises" or (rate is not None and trend(rate).direction == "rises"):
        return None
    start = since(kl, lambda x: x > FRESH_KL)
    return kl, shown(kl, f"KL to the collecting policy grew from {fmt(first)} to {fmt(last)}", first_step=start), start


def _over_epochs(chart: Chart, kl: Series) -> Stale | None:
    """A KL that is fresh in the first epoch of a rollout and large in the last."""
    where = chart.run.steps()
    epochs = dict(zip(where["step"].tolist(), np.asarray(where["epoch"], dtype=np.float64).tolist(), strict=True))
    kl = kl.finite
    epoch = np.array([epochs.get(int(step), np.nan) for step in kl.steps])
    numbers = np.unique(epoch[np.isfinite(epoch)])
    if len(numbers) < 2:
        return None
    first, last = (kl.values[epoch == number] for number in (numbers[0], numbers[-1]))
    if min(len(first), len(last)) < MIN_EPOCH:
        return None
    before, after = float(np.median(first)), float(np.median(last))
    if not (before < FRESH_KL and after > LARGE_KL and after > GREW * abs(before)):
        return None
    reading = f"KL {fmt(before)} in the first epoch of a rollout, {fmt(after)} in epoch {int(numbers[-1]) + 1}"
    return kl, shown(kl, reading), None


def _stale(
    series: Series, evidence: Evidence, start: int | None, *, severity: Severity, progress: Progress | None
) -> Finding:
    return Finding(
        id="stale-data",
        title=f"The policy learns from data of another policy: {evidence.reading}",
        severity=severity,
        basis="heuristic",
        since_step=start,
        evidence=(evidence, *(() if progress is None else (progress.evidence,))),
        cause="Too many passes over a rollout, a buffer that is reused, an asynchronous sampler that lags, or a sampler that "
        "computes other probabilities than the trainer.",
        fix=(f"Fewer passes, fresher data: {key_of(series, FRESH_KEYS, 'epochs over a rollout, age of the buffer')}",
             "Empty the buffer after each update of an on-policy method; correct with truncated importance weights"),
        confirm="Recompute the log-probs of a fresh rollout before its first update: ratio 1 and KL 0 for every sample, or "
        "it is the sampler. With one epoch a rollout approx_kl should fall at once.",
        references=("verl: rollout correction", "A. Jones, Debugging RL, without the agonizing pain"),
    )  # fmt: skip
