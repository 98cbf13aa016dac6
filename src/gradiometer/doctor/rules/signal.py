"""Whether rewards teach: groups without contrast, noise, one answer to every prompt, scale.

Late in a healthy run most groups are solved: their role is that of convergence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.outcome import (
    Outcome,
    became,
    began_trained,
    held_out,
    judge_series,
    learning,
    outcome_of,
    stuck,
    told_best,
    trained_for,
)
from gradiometer.doctor.proofs import Way, told
from gradiometer.doctor.rule import (
    CannotSay,
    Draft,
    Skipped,
    Verdict,
    finding,
    needed,
    rule,
    too_short,
    unlogged,
    words,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import Strength
from gradiometer.doctor.signs import (
    NORM,
    ends,
    level,
    mapping,
    newest,
    number,
    persists,
    shown,
    since,
    together,
    trend,
)
from gradiometer.doctor.terms import REGULARISERS, Role, role_of
from gradiometer.doctor.trainers import key_of
from gradiometer.maths.gains import CERTAIN
from gradiometer.maths.means import holm
from gradiometer.records import Event, Evidence, Severity
from gradiometer.store.reader import Ints
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("signal")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idle:
    """Groups without reward variance, and how much of what can be earned is earned."""

    groups: Series
    share: float
    earned: Series | None
    """As a share of what can be earned; None when its range is not known."""
    progress: Outcome | None
    by_std: bool

    @property
    def strength(self) -> Strength:
        """Half of the groups are lost, most of them, or all."""
        if self.share >= limits.all_idle:
            return "total"
        return "strong" if self.share >= limits.mostly_idle else "present"

    @property
    def level(self) -> float:
        return math.nan if self.earned is None else level(self.earned.last(0.5))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        spread = "steps with a reward spread below a hundredth of its range"
        what = spread if self.by_std else "share of groups whose rollouts all earn the same"
        found = [shown(self.groups, f"{what}: {fmt(self.share)} over the last half")]
        if self.earned is not None:
            reading = f"{fmt(100 * self.level)} % of what can be earned over the last half"
            found.append(shown(self.earned, reading))
        elif self.progress is not None:
            found.append(self.progress.evidence)
        return tuple(found)


def _range(run: RunData, reward: Series) -> tuple[float, float] | None:
    """Least and most a rollout can earn: as the run says, or [0, 1] where no mean ever left it."""
    values = reward.finite.values
    if not len(values):
        return None
    least = number(run.fact("min_reward", "min_return"))
    most = told_best(run)
    if least is None and float(values.min()) >= 0.0:
        least = 0.0
    if most is None and least == 0.0 and float(values.max()) <= 1.0:
        most = 1.0
    return None if least is None or most is None or most <= least else (least, most)


def _earned(run: RunData) -> Series | None:
    """Of what can be earned: the success rate, a reward with a known range, or else what held-out
    prompts tell of prompts like them."""
    rate, held, reward = (run.get(x) for x in ("success_rate", "val/success_rate", "reward"))
    if rate is not None and len(rate.finite):
        return rate.finite
    if reward is not None and (bounds := _range(run, reward)) is not None:
        low, high = bounds
        return replace(reward.finite, values=(reward.finite.values - low) / (high - low))
    return held.finite if held is not None and len(held.finite) else None


def _idle(run: RunData) -> _Idle | None:
    groups, spread, reward = (run.get(x) for x in ("zero_variance_groups", "reward_std", "reward"))
    by_std = groups is None
    bounds = None if reward is None else _range(run, reward)
    if groups is None and spread is not None and bounds is not None:
        low = spread.finite.values < limits.no_spread * (bounds[1] - bounds[0])
        groups = replace(spread.finite, values=low.astype(np.float64))
    if groups is None:
        raise CannotSay(unlogged("zero_variance_groups"))
    held = persists(groups, lambda share: share >= limits.idle)
    if held is None:
        raise CannotSay(too_short(groups, limits.min_points))
    if not held:
        return None
    late = groups.last(0.5).finite.values
    # of a series of zeros and ones the median is one of the two, whatever the share
    share = float(late.mean()) if np.isin(late, (0.0, 1.0)).all() else level(groups.last(0.5))
    return _Idle(
        groups=groups, share=share, earned=_earned(run), progress=outcome_of(run), by_std=by_std
    )


GROUPS = """
    cause: A group's advantage is its reward minus the group's mean: where all earn the same, its
      gradient is exactly zero. {more}
    confirm: Sample 16 rollouts for each of 50 prompts and count how many are always right and how
      many always wrong; train 20 steps on those in between: zero_variance_groups falls and the
      gradient norm rises.
    see: DAPO, arXiv 2503.14476: dynamic sampling
    see: TRL: frac_reward_zero_std
    """
HARDER = "Harder prompts, or drop those that are always right (dynamic sampling)"
EASIER = "Easier prompts or a curriculum, more rollouts a prompt, partial credit in the reward"
VERIFIER = (
    "Score ten known right answers with the reward function: a verifier that fails returns zero"
    " for all"
)


def _groups(
    idle: _Idle, what: str, *fix: str, more: str, settings: str, severity: Severity | None = None
) -> Draft:
    of = "of the batches hardly differ in reward: they" if idle.by_std else "of the groups"
    return finding(
        f"{fmt(100 * idle.share)} % {of} {what}",
        *idle.evidence,
        severity=severity,
        strength=idle.strength if severity is None else None,
        since_step=since(idle.groups, lambda share: share >= limits.idle),
        fix=(*fix, f"See {key_of(idle.groups, 'groups', settings)}"),
        more=more,
    )


def _unclear(idle: _Idle) -> Draft | None:
    """The share is high and the level is unknown or in the middle: both are said."""
    known = idle.earned is not None
    middle = f"at {fmt(100 * idle.level)} % earned, some too easy and some too hard"
    return _groups(
        idle,
        f"earn one and the same reward: {middle if known else 'too easy or too hard'}",
        f"If rewards are near their maximum: {HARDER[0].lower()}{HARDER[1:]}",
        f"If near their minimum: {EASIER[0].lower()}{EASIER[1:]}",
        more=""
        if known
        else "Which of the two it is needs the range of the reward or success_rate.",
        settings="group size and temperature",
    )


@rule("groups-too-easy", GROUPS)
def groups_too_easy(run: RunData) -> Verdict:
    """Most groups are solved by every rollout; waste, unless this training got them there."""
    idle = _idle(run)
    if idle is None or (idle.earned is not None and idle.level < 0.5):
        return None
    if idle.earned is None or idle.level < limits.easy:
        return _unclear(idle)
    found = outcome_of(run)
    # by this training, however early
    rose = began_trained(run) or (found is not None and found.score >= CERTAIN)
    learnt = rose or level(idle.earned.first(0.1)) < limits.easy
    stop = "Or stop: there is little left to learn here"
    return _groups(
        idle,
        f"are solved by every rollout, {fmt(100 * idle.level)} % is earned",
        HARDER,
        stop if learnt else "Larger groups find the rare failure",
        severity="info" if learnt else "warn",
        more="This training got them there." if learnt else "They were that easy from the start.",
        settings="the sampler of prompts",
    )


@rule("groups-too-hard", GROUPS)
def groups_too_hard(run: RunData) -> Verdict:
    """Most groups are failed by every rollout; a few successes may still teach."""
    idle = _idle(run)
    if idle is None or (idle.earned is not None and idle.level >= 0.5):
        return None
    if idle.earned is None or idle.level > limits.hard:
        return _unclear(idle)
    return _groups(
        idle,
        f"are failed by every rollout, {fmt(100 * idle.level)} % is earned",
        VERIFIER,
        EASIER,
        more="Either the prompts are beyond the policy or the verifier rejects what is right.",
        settings="group size and temperature",
    )


@rule(
    "template-collapse",
    """
    cause: Where rewards do not vary only entropy and KL have a gradient, and they know nothing of
      the prompt.
    fix: Filter groups by reward variance (RAGEN: actor_rollout_ref.rollout.rollout_filter_value
      below 1, top_p)
    fix: Lower the regularisers (verl: actor_rollout_ref.actor.entropy_coeff, kl_loss_coef; TRL:
      beta)
    confirm: gradiometer analyze: norms of task, entropy and KL by bucket of reward variance; train
      50 steps with the filter on and see whether mutual_information recovers.
    see: RAGEN-2: template collapse
    """,
)
def template_collapse(run: RunData) -> Verdict:
    """Outputs depend less and less on inputs while entropy stays, or regularisers dominate.

    With the entropy falling too it is a collapse of the policy as a whole, and entropy-collapse
    says so.
    """
    information, entropy = run.get("mutual_information"), run.get("entropy")
    ruled, start = _ruled_buckets(run), None
    alike: tuple[Evidence, ...] = ()
    if information is not None and entropy is not None:
        if len(information.finite) < limits.min_trend:
            return too_short(information, limits.min_trend)
        alike = _ever_more_alike(information, entropy)
        forgotten = (1.0 - limits.lost_share) * ends(information)[0]
        start = since(information, lambda x: x < forgotten) if alike else None
    elif ruled is None and not run.has("grad_norm/<bucket>/sample_pct"):
        return unlogged("mutual_information" if information is None else "entropy")
    if not alike and ruled is None:
        return None
    return finding(
        "The policy answers ever more alike whatever the prompt, while its entropy holds"
        if alike
        else "In groups without reward variance regularisers move the policy more than the task",
        *alike,
        ruled,
        became(run),
        severity="warn" if alike and stuck(run) is not False else "info",
        basis="statistical" if alike else "heuristic",
        since_step=start,
    )


def _ever_more_alike(information: Series, entropy: Series) -> tuple[Evidence, ...]:
    """Mutual information that fell along a trend, while the entropy kept its level."""
    lost, held, falling = _lost(information), 1.0 - _lost(entropy), trend(information)
    if falling.direction != "falls" or lost < limits.lost_share or held < limits.held_share:
        return ()
    first, last = map(fmt, ends(information))
    reading = f"fell from {first} to {last}, Mann-Kendall p {fmt(falling.p_value or 0.0)}"
    kept = f"kept {fmt(100 * held)} % of its level"
    return shown(information.finite, reading), shown(entropy.finite, kept)


def _lost(series: Series) -> float:
    """Share of its early level that a series has lost, by medians of the first and last fifth."""
    first, last = ends(series)
    return 1.0 - last / first if first > 0.0 else 0.0


def _ruled_buckets(run: RunData) -> Evidence | None:
    """The low-variance buckets where entropy and KL outweighed the task in the last analysis."""
    every = run.every("grad_norm/<bucket>/reward_std_mean")
    spreads = {x.parts["bucket"]: x for x in every if len(x.finite)}
    names = sorted(spreads.keys() - {"all"}, key=lambda name: (newest(spreads[name]), name))
    ruled: list[str] = []
    for name in names[: len(names) // 2]:
        task, rest = (_last_norm(run, name, roles) for roles in (("policy",), REGULARISERS))
        if task is not None and rest is not None and task < rest:
            ruled.append(name)
    held = [run.get("grad_norm/<bucket>/sample_pct", bucket=name) for name in ruled]
    share = sum(newest(x) for x in held if x is not None and len(x.finite))
    if share < limits.low_buckets:
        return None
    reading = f"entropy and KL outweigh the task in {', '.join(ruled)}: {fmt(100 * share)} % of the"
    return shown(spreads[ruled[0]].finite, f"{reading} rollouts")


def _last_norm(run: RunData, bucket: str, roles: tuple[Role, ...]) -> float | None:
    """The summed norms of the terms in these roles on a bucket in the last analysis."""
    found = [x for x in run.every("grad_norm/<bucket>/<term>") if x.parts["bucket"] == bucket]
    terms = [x for x in found if role_of(x.parts["term"]) in roles and len(x.finite)]
    return sum(map(newest, terms)) if terms else None


# Noise. A cosine near 0 and a noise scale above the batch are normal in RL, and at the maximum no
# signal is left to have; only with a reward that has gone nowhere do they accuse.


def _batch(run: RunData) -> float | None:
    """The batch of a step in the unit of the noise scale: micro-batches, or samples if told."""
    if (kept := run.get("meter/noise_batch")) is not None:
        return level(kept)
    # Runs of the first edition do not have it.
    counts, size = run.get("meter/micro_batches"), number(run.fact("meter.micro_batch_size"))
    count = math.nan if counts is None else level(counts)
    if size is not None:
        batch = number(run.fact("train_batch_size", "batch_size"))
        return size * count if math.isfinite(count) else batch
    return count if math.isfinite(count) else None


def _noise_scale(run: RunData) -> Series | None:
    """Noise scale over batch; a bound above the batch counts as far above, one below is nothing."""
    batch = _batch(run)
    scale, bound = (
        run.get(f"grad/<block>/{x}", block="all") for x in ("noise_scale", "noise_scale_bound")
    )
    origin = scale if scale is not None else bound
    if not batch or batch <= 0.0 or origin is None:
        return None
    ratios: dict[int, float] = {}
    for series in filter(None, (bound, scale)):
        kept = series.values >= batch if series is bound else series.values > 0.0
        over = series.values[kept] / batch
        over = np.clip(over, limits.far_above, 1e12) if series is bound else over
        ratios |= dict(zip(series.steps[kept].tolist(), over.tolist(), strict=True))
    if not ratios:
        return None
    steps = np.array(sorted(ratios), dtype=np.int64)
    return replace(origin, steps=steps, values=np.array([ratios[t] for t in steps.tolist()]))


def _task(run: RunData, template: str) -> Series | None:
    found = (
        x
        for x in run.every(template)
        if x.parts["bucket"] == "all" and role_of(x.parts["term"]) == "policy"
    )
    return next(found, None)


def _analyses(run: RunData) -> tuple[Evidence, bool] | None:
    """What analyses say when none could tell the task from noise, and if they were enough."""
    p_values, snr = (_task(run, f"grad_norm/<bucket>/{x}/<term>") for x in ("p_value", "snr"))
    groups = run.get("grad_norm/<bucket>/group_rv_count", bucket="all")
    if p_values is None or snr is None or not len(p_values.finite):
        return None
    if groups is not None and not level(groups) >= limits.min_groups:
        return None
    p_values = p_values.finite
    if any(holm(p_values.values.tolist())) or not level(snr) < limits.low_snr:
        return None
    smallest = f"smallest p {fmt(float(p_values.values.min()))}, median SNR {fmt(level(snr))}"
    reading = f"{len(p_values)} analyses, none significant ({smallest})"
    return shown(p_values, reading), len(p_values) >= limits.min_analyses


def _replicates(run: RunData) -> Evidence | None:
    for high in run.every("variance/<algorithm>/snr_high"):
        if len(high.finite) and newest(high) < limits.low_snr:
            reading = f"SNR of a gradient below {fmt(newest(high))} (95 % bound, replicates)"
            return shown(high.finite, reading)
    return None


@rule(
    "noise-dominated",
    """
    cause: The variance over samples is far larger than the squared mean, so steps mostly cancel
      each other.
    fix: Raise {keys} towards the noise scale
    fix: Lower the variance: a baseline (leave-one-out or a critic), normalised advantages, more
      rollouts a prompt
    confirm: gradiometer variance --curve rollouts: SNR against the number of rollouts; then a run
      with 4 times the batch.
    see: arXiv 1812.06162
    see: arXiv 1810.02525
    """,
)
def noise_dominated(run: RunData) -> Verdict:
    """The gradient is noise, by noise scale, analyses or replicates, and the reward is flat.

    While it rises there is signal enough, and at its maximum there is none left to have.
    """
    scale, analysed, replicated = _noise_scale(run), _analyses(run), _replicates(run)
    tested = replicated is not None or (analysed is not None and analysed[1])
    far, start = None, None
    if scale is not None and persists(scale, lambda x: x >= limits.far_above):
        start = since(scale, lambda x: x >= limits.far_above)
        times = fmt(level(scale.last(0.5)))
        far = shown(scale, f"at least {times} times the batch over the last half")
    evidence = (replicated, None if analysed is None else analysed[0], far)
    if not any(evidence):
        measured = ("grad_norm/<bucket>/p_value/<term>", "variance/<algorithm>/snr_high")
        return None if scale is not None or any(map(run.has, measured)) else NO_NOISE
    progress, reward = outcome_of(run), trained_for(run)
    if progress is not None and not progress.stuck:
        return None
    more = "the batch (more rollouts, or accumulation)"
    stands = "" if progress is None else f" and the reward {progress.then}"
    return finding(
        f"The policy gradient cannot be told from noise{stands}",
        *evidence,
        became(run),
        severity="warn" if (tested or far) and progress is not None else "info",
        basis="statistical" if tested else "heuristic",
        since_step=start,
        block="all",
        keys="the batch" if reward is None else key_of(reward, "batch", more),
    )


NO_NOISE = Skipped(
    why="no grad/<block>/noise_scale with meter/micro_batches, no anatomy and no replicates:"
    " accumulate gradients over two or more micro-batches under gm.watch, or run gradiometer"
    " variance",
    metric="grad/<block>/noise_scale",
)


@rule(
    "reward-unreliable",
    """
    cause: A verifier that errs gives variance to groups that have none: advantages and gradients
      grow and point at noise.
    fix: Score the same 100 rollouts twice, and 100 with known answers: count false positives and
      false negatives
    fix: Repair or calibrate the verifier, vote over several calls, drop groups on which it
      disagrees with itself
    confirm: gradiometer analyze with gradient_analysis_null=true on fresh batches: the task's
      signal against permuted rewards. With exact rewards on a subset it must rise above them.
    see: github.com/asuzukosi/post-training-experiments issues 10 and 15
    """,
)
def reward_unreliable(run: RunData) -> Verdict:
    """Rewards are unreliable: variance and gradients grow without direction, the reward does not.

    A log can only hint at it: information. Analyses in which permuted rewards give the same norms
    say more.
    """
    if known := told(run, "reward-unreliable", _contradicted, slice(-1, None)):
        return known
    progress = outcome_of(run)
    if progress is None or not progress.stuck:
        lacks = progress is None and trained_for(run) is None
        return unlogged("reward") if lacks else None
    if (null := _like_null(run)) is not None:
        return _unreliable(progress, null, start=None, sure=True)
    if (fooled := _fooled(run, progress)) is not None:
        return _unreliable(progress, fooled, start=fooled[0].first_step, sure=True)
    groups, norm = needed(run, "zero_variance_groups"), needed(run, NORM, block="all")
    falling, growing = trend(groups, min_change=limits.min_fall), trend(norm)
    directions = _no_direction(run)
    if falling.direction != "falls" or growing.direction != "rises" or directions is None:
        return None
    first, last = map(fmt, ends(norm))
    evidence = (
        shown(groups, f"fell by {fmt(-falling.change)}, p {fmt(falling.p_value or 0.0)}"),
        shown(norm, f"grew from {first} to {last}, p {fmt(growing.p_value or 0.0)}"),
        *directions,
    )
    return _unreliable(progress, evidence, start=None, sure=False)


CONTRADICTED = words(
    """
    cause: What is asked twice is answered differently: the same answer to the same prompt earns one
      thing and then another, or the same pair is labelled both ways. What is learned of it is the
      mean, and the rest is noise.
    fix: Score one answer several times; a verifier that is a program must say the same each time
    fix: Hand rewards on in the order of the answers; keep chosen and rejected of a pair together
    confirm: Print all answers that came twice, with what they earned.
    see: F3
    """
)


def _contradicted(run: RunData, event: Event) -> Way:
    """What came twice was judged in two ways: that a policy learns all the same is possible."""
    pairs = event.detail.get("subject") == "pairs"
    return Way(
        title="Pairs come back with chosen and rejected exchanged"
        if pairs
        else "Equal answers to a prompt earn as differently as any two",
        severity="info" if learning(run) else "warn",
        words=CONTRADICTED,
    )


def _fooled(run: RunData, progress: Outcome) -> tuple[Evidence, ...] | None:
    """Updates raise what earned more, yet the held-out score falls: what earned more was luck."""
    gain, held, reward = run.get("reward_gain"), held_out(run), trained_for(run)
    gain = run.get("credit/reward_gain") if gain is None else gain
    trained = None if reward is None else judge_series(run, reward.finite)
    if trained is None or trained.course not in ("flat", "unclear"):
        return None
    if gain is None or held is None or len(gain.finite) < limits.min_gains:
        return None
    raised = level(gain.finite)
    early, _, late = np.array_split(held.finite.values, 3)
    if raised < limits.raised or min(len(early), len(late)) < limits.min_third:
        return None
    error = math.sqrt(early.var(ddof=1) / len(early) + late.var(ddof=1) / len(late))
    if float(early.mean() - late.mean()) <= limits.clearly * error:
        return None
    first, last = ends(held)
    return (
        shown(held.finite, f"fell from {fmt(first)} to {fmt(last)}"),
        shown(gain.finite, f"median {fmt(raised)}: updates do raise what earned more"),
    )


def _like_null(run: RunData) -> tuple[Evidence, ...] | None:
    """Enough analyses without a signal, with the norm of permuted rewards, though rewards vary."""
    found, spread = _analyses(run), run.get("grad_norm/<bucket>/reward_std_mean", bucket="all")
    norm, null = (_task(run, f"grad_norm/<bucket>/{x}<term>") for x in ("", "null/"))
    if found is None or not found[1] or norm is None or null is None or spread is None:
        return None
    if not level(spread) > 0.0 or not level(norm) < limits.like_null * level(null):
        return None
    real, permuted = fmt(level(norm)), fmt(level(null))
    said = f"permuted rewards give a norm of {permuted}, the real ones {real}"
    return found[0], shown(null, said)


def _no_direction(run: RunData) -> tuple[Evidence, ...] | None:
    """Gradients that agree with none before, by every measure there is; else None."""
    measures = (("cos_ema", limits.cos_noise), ("alignment_window", limits.window_noise))
    found = [(run.get(f"grad/<block>/{name}", block="all"), limit) for name, limit in measures]
    late = [
        (x, level(x.last(0.5)), limit)
        for x, limit in found
        if x is not None and len(x.finite) >= limits.min_cosines
    ]
    if not late or any(not now < limit for _, now, limit in late):
        return None
    return tuple(
        shown(x, f"median {fmt(now)} over the last half: what noise gives") for x, now, _ in late
    )


def _unreliable(
    progress: Outcome, evidence: tuple[Evidence, ...], *, start: int | None, sure: bool
) -> Draft:
    return finding(
        f"Rewards differ inside groups but teach no direction; the reward {progress.then}",
        *evidence,
        progress.evidence,
        severity="warn" if sure else "info",
        basis="statistical" if sure else "heuristic",
        since_step=start,
    )


# Scale. Under Adam and with normalised advantages a constant scale cancels, so it is a fault only
# where something suffers: the reward goes nowhere, the gradient jumps, the critic drowns.


EXPLAINED = "explained_variance"

NORM_FACTS = (
    "normalize_advantage",
    "norm_adv",
    "norm_adv_by_std_in_grpo",
    "normalize_advantages",
    "whiten_advantages",
)


def _advantages(run: RunData, statistic: str) -> Series | None:
    found = run.get("advantages/<statistic>", statistic=statistic)
    return None if found is None or not len(found.finite) else found.finite


def _outliers(largest: Series, std: Series) -> Series:
    """Where the largest advantage is an outlier: by how many deviations or medians; 0 elsewhere."""
    here, there = together(largest, std)
    values, spread = here.values, there.values
    sigmas = np.divide(values, spread, out=np.zeros_like(values), where=spread > 0.0)
    medians = values / max(level(largest), 1e-12)
    spiked = (medians >= limits.spike) & (values >= limits.large)
    alone = np.where(sigmas >= limits.outlier, sigmas, 0.0)
    return replace(here, values=np.where(spiked, medians, alone))


def _jumps(run: RunData, steps: Ints) -> Evidence | None:
    """The gradient at those steps, where it is far above its median."""
    norm = run.get(NORM, block="all")
    if norm is None:
        return None
    there = norm.finite.values[np.isin(norm.finite.steps, steps)]
    if not len(there) or not np.median(there) >= limits.jump * level(norm):
        return None
    at, usual = fmt(float(np.median(there))), fmt(level(norm))
    return shown(norm.finite, f"{at} at those steps, {usual} at a typical one")


@rule(
    "advantage-outliers",
    """
    cause: A reward far from the rest, or a division by a tiny standard deviation: a group of almost
      equal rewards (leave-one-out std near zero) blows its odd one up.
    fix: Add the epsilon to the std, not below it, and skip groups with a std under 1e-3
    fix: Clip advantages to ±10 or rewards to a few standard deviations
    confirm: Log the group of the largest advantage: its rewards and their std. With advantages
      clipped to ±10 the gradient norm loses its spikes.
    see: NeMo-RL issue 4158
    """,
)
def advantage_outliers(run: RunData) -> Verdict:
    """One sample's advantage dominates the step (F13): it is far outside its batch, or all others.

    Sparse successes and max@k weights look like it: only a gradient that jumps too, or repeated
    spikes, make it more than information.
    """
    largest, std = _advantages(run, "max_abs"), _advantages(run, "std")
    if largest is None or std is None:
        return _decided_by_few(run) or unlogged("advantages/<statistic>")
    found = _outliers(largest, std)
    if len(found) < limits.min_points:
        return too_short(found, limits.min_points)
    steps = found.steps[found.values > 0.0]
    sizes = largest.values[np.isin(largest.steps, steps)]
    spiked = (sizes >= limits.large) & (sizes >= limits.spike * level(largest))
    if len(steps) < limits.repeated and not spiked.any():
        return _decided_by_few(run)  # of 64 samples none is ten deviations away
    jumped, most = _jumps(run, steps), fmt(float(sizes.max()))
    sure = jumped is not None or int(spiked.sum()) >= limits.repeated
    if not sure and stuck(run) is False:
        return None
    count = f"{len(steps)} of {len(found)} steps"
    reading = f"{count} with outliers; the largest {most}, median {fmt(level(largest))}"
    return finding(
        f"Single advantages of up to {most} decide {count}",
        shown(largest, reading, first_step=int(steps[0])),
        shown(std, f"median {fmt(level(std))}"),
        jumped,
        severity="warn" if sure else "info",
    )


def _decided_by_few(run: RunData) -> Draft | None:
    """By what the update gave to its samples: hardly any of them counts, step after step. Successes
    that are rare look like it."""
    share, most = run.get("credit/ess"), run.get("credit/max")
    if share is None or most is None or len(share.finite) < limits.min_points:
        return None
    few = persists(share, lambda x: x < limits.few_count) is True
    if not few or not persists(most, lambda x: x > limits.outlier):
        return None
    seen, large = fmt(level(share.last(0.5))), fmt(level(most.last(0.5)))
    return finding(
        f"Single samples decide the update: as if {100 * level(share.last(0.5)):.0f} % of them"
        " counted",
        shown(share, f"median {seen} over the last half; 0.64 of a normal distribution"),
        shown(most, f"the largest has {large} times the credit of a usual one"),
        severity="warn" if stuck(run) else "info",
    )


_Lasting: TypeAlias = tuple[Evidence, int | None]
"""What is seen, and since when."""


def _scales(run: RunData, std: Series | None, mean: Series | None) -> list[_Lasting]:
    """What is wrong with the advantages themselves."""
    normalised = any(run.fact(name) is True for name in NORM_FACTS)
    low, high = (
        (limits.normalised_low, limits.normalised_high) if normalised else (0.0, limits.loud)
    )
    why = "although they are normalised" if normalised else "normalised ones have 1"
    said = f"std {{}} over the last half; {why}"
    found = [_lasts(std, wrong, said) for wrong in (lambda x: x > high, lambda x: x < low)]
    if std is not None and mean is not None:
        here, there = together(mean, std)
        centre = replace(here, values=np.abs(here.values) / np.maximum(there.values, 1e-12))
        said = "|mean| is {} of the std over the last half; 0 when centred"
        off = _lasts(centre, lambda x: x > limits.off_centre, said, of=mean)
        found.append(None if off is None or _on_its_way(run) else off)
    return [each for each in found if each is not None]


def _lasts(
    series: Series | None, holds: Callable[[float], bool], said: str, *, of: Series | None = None
) -> _Lasting | None:
    """What holds to the end, as evidence of a series."""
    if series is None or not persists(series, holds):
        return None
    reading = said.format(fmt(level(series.last(0.5))))
    return shown(series if of is None else of, reading), since(series, holds)


def _on_its_way(run: RunData) -> bool:
    """A critic that still comes closer: what advantages are off by it has not learnt yet."""
    loss, value = run.get("value_loss"), run.get("value_mean")
    returns = run.get("returns/<statistic>", statistic="mean")
    if loss is None or value is None or returns is None or trend(loss).direction != "falls":
        return False
    early, late = (abs(a - b) for a, b in zip(ends(returns), ends(value), strict=True))
    return late < early


def _goes_through_q(run: RunData) -> bool:
    """Whether a value of actions is trained beside the policy, by its name or by the graph."""
    values = run.get("value_loss")
    if values is not None and re.search(r"(^|[/_])(soft_)?q[f_\d]", values.name):
        return True
    terms = mapping(run.table("wiring")).get("terms", ())
    return any(mapping(each).get("role") == "q" for each in terms)


def _loud_loss(run: RunData) -> tuple[Evidence, int | None] | None:
    """A policy loss that is large; not that of SAC and TD3, which is −Q, nor a sum over samples."""
    loss = run.get("policy_loss")
    if (
        loss is None
        or "actor_loss" in loss.name
        or run.has("q_value")
        or _goes_through_q(run)
        or run.fact("reduction", "loss_reduction") == "sum"
    ):
        return None
    if not persists(loss, lambda x: abs(x) > limits.loss):
        return None
    reading = (
        f"|policy loss| {fmt(abs(level(loss.last(0.5))))} over the last half; near 0 with"
        " normalised advantages"
    )
    return shown(loss, reading), since(loss, lambda x: abs(x) > limits.loss)


@rule(
    "advantage-scale",
    """
    cause: The scale of the advantages sets the size of the policy term against every other term and
      against the clip; an offset pushes all samples one way whatever they did.
    fix: Normalise once, over the batch that is stepped on: {key}
    fix: Take mean and std from the same samples the loss uses, after masking; not from the first
      rollout, not twice
    confirm: Print mean and std of the advantages right before the loss: 0 and 1. Train 50 steps so:
      the reward moves.
    see: axon-rl/gem #113
    see: PipelineRL #54
    see: arXiv 2006.05990 on advantage normalisation
    """,
)
def advantage_scale(run: RunData) -> Verdict:
    """Advantages that are not normalised, normalised twice or with the wrong statistics (F11, F12).

    What they are themselves goes before what the loss suggests, and none of it counts while the
    reward rises: max@k weights are never centred.
    """
    std, mean = _advantages(run, "std"), _advantages(run, "mean")
    loss = run.get("policy_loss")
    seen = std if std is not None else None if loss is None else loss.finite
    if seen is None:
        return unlogged("advantages/<statistic>")
    if len(seen) < limits.min_points:
        return too_short(seen, limits.min_points)
    found = _scales(run, std, mean)
    if std is None and (loud := _loud_loss(run)) is not None:
        found = [loud]
    if not found or stuck(run) is False:
        return None
    key = key_of(seen if loss is None else loss, "advantages", "(A - A.mean())/(A.std() + 1e-8)")
    starts = [start for _, start in found if start is not None]
    return finding(
        f"Advantages are off scale: {found[0][0].reading}",
        *(evidence for evidence, _ in found),
        became(run),
        severity="info" if outcome_of(run) is None else "warn",
        since_step=min(starts, default=None),
        key=key,
    )


def _large(x: float) -> bool:
    return abs(x) > limits.far


def _small(x: float) -> bool:
    return abs(x) < limits.tiny


def _drowning(x: float) -> bool:
    return x > limits.drowning


def _targets(run: RunData) -> tuple[Series, Callable[[float], bool]] | None:
    """Value targets outside where a critic learns them, and in which way."""
    largest, mean = (run.get("returns/<statistic>", statistic=x) for x in ("max_abs", "mean"))
    looked = [(largest, _large), (mean, _large), (run.get("value_mean"), _large), (largest, _small)]
    # there it is a loss of action values, of which the critic's rules know more
    if not run.has("q_value"):
        looked += [(loss, _drowning) for loss in run.every("value_loss")]
    for series, wrong in looked:
        if series is not None and persists(series, wrong) and _is_a_scale(run, series, wrong):
            return series, wrong
    return None


def _is_a_scale(run: RunData, series: Series, wrong: Callable[[float], bool]) -> bool:
    """Whether it was so from the start (targets that grow run away) and they vary at all."""
    if wrong is _large or wrong is _drowning:
        return wrong(level(series.finite.first(0.1)))
    spread = run.get("returns/<statistic>", statistic="std")
    return wrong is not _small or spread is None or level(spread) > 1e-6 * level(series)


def _critic_suffers(run: RunData, targets: Series) -> list[Evidence]:
    """The second signal: the critic's loss or gradient runs off, or it explains nothing."""
    found: list[Evidence] = []
    loss, explained = run.get("value_loss"), run.get(EXPLAINED)
    unknown = explained is None or len(explained.finite) < limits.min_points
    if unknown and targets.metric.name == "value_loss" and _never_arrives(targets):
        from_, to = map(fmt, ends(targets))
        found.append(shown(targets, f"{from_} at the start and {to} at the end: errors of 100"))
    if loss is not None and loss.name != targets.name and len(loss.finite):
        first, last = ends(loss)
        grown = last > limits.decade * first and trend(loss).direction == "rises"
        if persists(loss, _drowning) or grown:
            found.append(shown(loss, f"{fmt(first)} at the start, {fmt(last)} at the end"))
    for share in run.every("grad/<block>/term/<term>/share"):
        values = share.parts.get("block") == "all" and role_of(share.parts["term"]) == "value"
        if values and persists(share, lambda x: x > limits.greedy):
            now = fmt(100 * level(share.last(0.5)))
            found.append(shown(share, f"the value term has {now} % of the gradient"))
    if blind := _lasts(explained, lambda x: x <= limits.blind, "median {} over the last half"):
        found.append(blind[0])
    return found


def _never_arrives(loss: Series) -> bool:
    """A value loss of 10,000 and more that does not come down: the targets are out of reach."""
    first, last = ends(loss)
    return persists(loss, lambda x: x > limits.drowned) is True and last > limits.arrives * first


SMALL = "Returns this small are below what an untrained critic predicts by chance."
LARGE_TARGETS = (
    "A critic starts near zero and its loss grows with the square of the returns: it takes the"
    " gradient or never arrives."
)


@rule(
    "reward-scale",
    """
    cause: {cause}
    fix: Scale rewards so that returns lie within [-3, 3]: {key}
    fix: Or normalise value targets (PopArt), and keep the critic out of the policy's trunk
    confirm: Multiply rewards by {factor} and train 50 updates: explained_variance rises.
    see: A. Jones, Debugging RL, without the agonizing pain
    see: arXiv 1602.07714 (PopArt)
    """,
)
def reward_scale(run: RunData) -> Verdict:
    """Value targets lie far outside [−10, 10] or are far too small, and the critic suffers.

    CartPole without scaling has returns of 100 and learns: it is a strong sign only with a critic
    that explains nothing.
    """
    known = ("returns/<statistic>", "value_mean", "value_loss")
    if not any(run.has(name) for name in known):
        return unlogged(known[0])
    found = _targets(run)
    if found is None:
        return None
    targets, wrong = found
    suffers, explained = _critic_suffers(run, targets), run.get(EXPLAINED)
    if not suffers:
        return None
    blind = explained is not None and any(each.series == explained.name for each in suffers)
    blind = blind or any(each.series == targets.name for each in suffers)
    at, small = fmt(level(targets.last(0.5))), wrong is _small
    return finding(
        f"Value targets are too {'small' if small else 'large'} for the critic:"
        f" {targets.name} is {at}",
        shown(targets, f"median {at} over the last half"),
        *suffers,
        became(run),
        severity="info",
        strength=None if outcome_of(run) is None else "strong" if blind else "present",
        since_step=since(targets, wrong),
        cause=SMALL if small else LARGE_TARGETS,
        key=key_of(targets, "reward-scale", "divide by a running std of returns"),
        factor="100" if small else "0.01",
    )
