"""A gradient of noise: too much of it for the batch, or made by rewards that do not tell right from wrong.

A cosine near 0 and a noise scale above the batch are normal in RL, and at the maximum no signal is left to have; only with a
reward that has gone nowhere do they accuse.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import held_out
from gradiometer.doctor.lacking import unlogged
from gradiometer.doctor.progress import Progress, key_of, number, progress_of, shown
from gradiometer.doctor.roles import role_of
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import level, outcome, persists, since, trend
from gradiometer.maths.means import holm
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["noise_dominated", "reward_unreliable"]

FAR_ABOVE = 10.0
"""Times the batch: the signal is then below a tenth of the noise's power, which the catalogue calls an unhealthy SNR."""
LOW_SNR = 0.1
"""The same as a ratio of powers."""
MIN_ANALYSES = 3
"""Batches that were analysed: one may miss a signal by chance, with 8 groups more often than not."""
MIN_GROUPS = 6
"""Groups of an analysis: with 5 the smallest p of a sign-flip test is 0.06, so none could be significant."""
LIKE_NULL = 1.1
"""Norm over what it reads with permuted rewards; within a tenth they are the same number at these sample sizes."""
COS_NOISE = 0.05
"""|cos_ema| of noise: sketches of 1024 give 0.03."""
WINDOW_NOISE = 0.4
"""alignment_window of noise is 1/√8 = 0.35; 0.4 leaves room for its spread."""
MIN_COSINES = 8
"""Values of a cosine to take a median of."""
MIN_FALL = 0.1
"""Of the share of groups without variance: a smaller change is another mix of prompts."""
CLEARLY, MIN_THIRD = 3.0, 3
"""Standard errors between the first and the last third of a held-out score, and the fewest scores of a third."""
RAISED, MIN_GAINS = 0.1, 16
"""A correlation of earnings with the update that is no accident, and the batches it takes."""

BATCH_KEYS = {
    "TRL": "gradient_accumulation_steps or num_generations",
    "verl": "data.train_batch_size or actor_rollout_ref.rollout.n",
    "SB3": "n_steps, n_envs and batch_size",
    "CleanRL": "--num-envs and --num-steps",
}


def _batch(chart: Chart) -> float | None:
    """The batch of a step in the unit of the noise scale: micro-batches, or samples where their size was told."""
    counts, size = chart.get("meter/micro_batches"), number(chart.fact("meter.micro_batch_size"))
    count = math.nan if counts is None else level(counts)
    if size is not None:
        batch = number(chart.fact("train_batch_size", "batch_size"))
        return size * count if math.isfinite(count) else batch
    return count if math.isfinite(count) else None


def _noise_scale(chart: Chart) -> Series | None:
    """Noise scale over batch; a bound that is above the batch counts as far above, one below it says nothing."""
    batch = _batch(chart)
    if not batch or batch <= 0.0:
        return None
    scale, bound = (chart.get(f"grad/<block>/{x}", block="all") for x in ("noise_scale", "noise_scale_bound"))
    ratios: dict[int, float] = {}
    if bound is not None:
        ratios = {
            int(t): max(FAR_ABOVE, min(float(x) / batch, 1e12))
            for t, x in zip(bound.steps, bound.values, strict=True)
            if x >= batch
        }
    if scale is not None:
        ratios |= {int(t): float(x) / batch for t, x in zip(scale.steps, scale.values, strict=True) if x > 0.0}
    origin = scale if scale is not None else bound
    if origin is None or not ratios:
        return None
    steps = np.array(sorted(ratios), dtype=np.int64)
    return replace(origin, steps=steps, values=np.array([ratios[int(t)] for t in steps], dtype=np.float64))


def _task(chart: Chart, template: str) -> Series | None:
    found = (x for x in chart.every(template) if x.parts["bucket"] == "all" and role_of(x.parts["term"]) == "policy")
    return next(found, None)


def _analyses(chart: Chart) -> tuple[Evidence, bool] | None:
    """What the analyses of gradients say when none of them could tell the task from noise, and whether there were enough."""
    p_values, snr = _task(chart, "grad_norm/<bucket>/p_value/<term>"), _task(chart, "grad_norm/<bucket>/snr/<term>")
    groups = chart.get("grad_norm/<bucket>/group_rv_count", bucket="all")
    if p_values is None or snr is None or not len(p_values.finite):
        return None
    if groups is not None and not level(groups) >= MIN_GROUPS:
        return None
    p_values = p_values.finite
    if any(holm(p_values.values.tolist())) or not level(snr) < LOW_SNR:
        return None
    smallest = fmt(float(p_values.values.min()))
    reading = f"{len(p_values)} analyses, none significant (smallest p {smallest}, median SNR {fmt(level(snr))})"
    return shown(p_values, reading), len(p_values) >= MIN_ANALYSES


def _replicates(chart: Chart) -> Evidence | None:
    for high in chart.every("variance/<algorithm>/snr_high"):
        if len(high.finite) and float(high.finite.values[-1]) < LOW_SNR:
            return shown(
                high.finite, f"SNR of a gradient below {fmt(float(high.finite.values[-1]))} (95 % bound, replicates)"
            )
    return None


@rule("noise-dominated")
def noise_dominated(chart: Chart) -> Verdict:
    """The gradient is noise: noise scale far above the batch, or no signal in analyses or replicates; and the reward stands.

    While it rises there is signal enough, and at its maximum there is none left to have.
    """
    scale, analysed, replicated = _noise_scale(chart), _analyses(chart), _replicates(chart)
    evidence = [] if replicated is None else [replicated]
    sure, statistical = replicated is not None, replicated is not None
    if analysed is not None:
        evidence.append(analysed[0])
        sure, statistical = sure or analysed[1], statistical or analysed[1]
    start = None
    if scale is not None and persists(scale, lambda x: x >= FAR_ABOVE):
        start, sure = since(scale, lambda x: x >= FAR_ABOVE), True
        evidence.append(shown(scale, f"at least {fmt(level(scale.last(0.5)))} times the batch over the last half"))
    if not evidence:
        return None if scale is not None or _measured(chart) else _noise_skipped()
    progress = progress_of(chart)
    if progress is not None and not progress.stuck:
        return None
    reward = outcome(chart)
    keys = "the batch" if reward is None else key_of(reward, BATCH_KEYS, "the batch (more rollouts, or accumulation)")
    stands = "" if progress is None else f" and the reward {progress.then}"
    return Finding(
        id="noise-dominated",
        title=f"The policy gradient cannot be told from noise{stands}",
        severity="warn" if sure and progress is not None else "info",
        basis="statistical" if statistical else "heuristic",
        since_step=start,
        block="all",
        evidence=(*evidence, *(() if progress is None else (progress.evidence,))),
        cause="The variance over samples is far larger than the squared mean, so steps mostly cancel each other.",
        fix=(f"Raise {keys} towards the noise scale", "Lower the variance: a baseline (leave-one-out or a critic), normalised "
             "advantages, more rollouts a prompt"),
        confirm="gradiometer variance --curve rollouts: SNR against the number of rollouts; then a run with 4 times the batch.",
        references=("arXiv 1812.06162", "arXiv 1810.02525"),
    )  # fmt: skip


def _measured(chart: Chart) -> bool:
    return chart.has("grad_norm/<bucket>/p_value/<term>") or chart.has("variance/<algorithm>/snr_high")


def _noise_skipped() -> Skipped:
    why = (
        "no grad/<block>/noise_scale with meter/micro_batches, no anatomy and no replicates: accumulate gradients over "
    )
    return Skipped(
        rule="noise-dominated",
        why=f"{why}two or more micro-batches under gm.watch, or run gradiometer variance",
        metric="grad/<block>/noise_scale",
    )


@rule("reward-unreliable")
def reward_unreliable(chart: Chart) -> Verdict:
    """Rewards that err (F3): groups gain variance and the gradient grows, in no direction, and the reward goes nowhere.

    A log can only hint at it: information. Analyses in which permuted rewards give the same norms say more.
    """
    progress = progress_of(chart)
    if progress is None or not progress.stuck:
        return _no_reward(chart) if progress is None else None
    null = _like_null(chart)
    if null is not None:
        return _unreliable(progress, null, start=None, sure=True)
    if (fooled := _fooled(chart, progress)) is not None:
        return _unreliable(progress, fooled, start=fooled[0].first_step, sure=True)
    groups, norm = chart.get("zero_variance_groups"), chart.get("grad/<block>/norm/raw", block="all")
    if groups is None or norm is None:
        metric = "zero_variance_groups" if groups is None else "grad/<block>/norm/raw"
        return unlogged("reward-unreliable", metric)
    falling, growing = trend(groups, min_change=MIN_FALL), trend(norm)
    directions = _no_direction(chart)
    if falling.direction != "falls" or growing.direction != "rises" or directions is None:
        return None
    first, last = (level(part) for part in (norm.finite.first(0.2), norm.finite.last(0.2)))
    evidence = (
        shown(groups, f"fell by {fmt(-falling.change)}, p {fmt(falling.p_value or 0.0)}"),
        shown(norm, f"grew from {fmt(first)} to {fmt(last)}, p {fmt(growing.p_value or 0.0)}"),
        *directions,
    )
    return _unreliable(progress, evidence, start=None, sure=False)


def _fooled(chart: Chart, progress: Progress) -> tuple[Evidence, ...] | None:
    """Updates raise what earned more, the reward stands and the held-out score falls: what earned more was luck."""
    gain, held = chart.get("reward_gain"), held_out(chart)
    if gain is None or held is None or progress.state != "flat" or len(gain.finite) < MIN_GAINS:
        return None
    raised = level(gain.finite)
    early, _, late = np.array_split(held.finite.values, 3)
    if raised < RAISED or min(len(early), len(late)) < MIN_THIRD:
        return None
    error = math.sqrt(early.var(ddof=1) / len(early) + late.var(ddof=1) / len(late))
    if float(early.mean() - late.mean()) <= CLEARLY * error:
        return None
    first, last = (level(part) for part in (held.finite.first(0.2), held.finite.last(0.2)))
    return (
        shown(held.finite, f"fell from {fmt(first)} to {fmt(last)}"),
        shown(gain.finite, f"median {fmt(raised)}: updates do raise what earned more"),
    )


def _no_reward(chart: Chart) -> Skipped | None:
    if outcome(chart) is not None:
        return None
    return unlogged("reward-unreliable", "reward")


def _like_null(chart: Chart) -> tuple[Evidence, ...] | None:
    """Enough analyses without a signal, in which the norm is what permuted rewards give, though rewards do vary."""
    found, spread = _analyses(chart), chart.get("grad_norm/<bucket>/reward_std_mean", bucket="all")
    norm, null = (_task(chart, f"grad_norm/<bucket>/{x}<term>") for x in ("", "null/"))
    if found is None or not found[1] or norm is None or null is None or spread is None or not level(spread) > 0.0:
        return None
    if not level(norm) < LIKE_NULL * level(null):
        return None
    return found[0], shown(
        null, f"permuted rewards give a norm of {fmt(level(null))}, the real ones {fmt(level(norm))}"
    )


def _no_direction(chart: Chart) -> tuple[Evidence, ...] | None:
    """Gradients that agree with none before them, by every measure there is; None when one of them does, or none is there."""
    measures = (("grad/<block>/cos_ema", COS_NOISE), ("grad/<block>/alignment_window", WINDOW_NOISE))
    found = [
        (x, limit)
        for name, limit in measures
        if (x := chart.get(name, block="all")) is not None and len(x.finite) >= MIN_COSINES
    ]
    if not found or any(not level(x.last(0.5)) < limit for x, limit in found):
        return None
    return tuple(shown(x, f"median {fmt(level(x.last(0.5)))} over the last half: what noise gives") for x, _ in found)


def _unreliable(progress: Progress, evidence: tuple[Evidence, ...], *, start: int | None, sure: bool) -> Finding:
    return Finding(
        id="reward-unreliable",
        title=f"Rewards differ inside groups but teach no direction; the reward {progress.then}",
        severity="warn" if sure else "info",
        basis="statistical" if sure else "heuristic",
        since_step=start,
        evidence=(*evidence, progress.evidence),
        cause="A verifier that errs gives variance to groups that have none: advantages and gradients grow and point at noise.",
        fix=("Score the same 100 rollouts twice, and 100 with known answers: count false positives and false negatives",
             "Repair or calibrate the verifier, vote over several calls, drop groups on which it disagrees with itself"),
        confirm="gradiometer analyze with gradient_analysis_null=true on fresh batches: the task's signal against permuted "
        "rewards. With exact rewards on a subset it must rise above them.",
        references=("github.com/asuzukosi/post-training-experiments issues 10 and 15",),
    )  # fmt: skip
