"""The policy that samples and the policy that trains must be one: same weights, same probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Skipped, Verdict
from gradiometer.doctor.rules.wiring import wired
from gradiometer.doctor.signs import level, persists, since
from gradiometer.maths.means import Interval, mean_interval
from gradiometer.records import Evidence, Finding
from gradiometer.store.logs import Log

__all__ = ["sampler_mismatch"]

SAMPLER_KL = 0.01
"""Nats between engines at the same weights. bfloat16 kernels that differ leave about a tenth of it (failure catalogue F25)."""
WEIGHT = (0.5, 2.0)
"""Mean importance weight outside of which verl's rollout correction rejects a batch; its expectation is 1."""
ESS = 0.3
"""Share of the batch that still counts; verl's rollout correction."""
NEGATIVE_KL = -0.01
"""Nats. The mean of log π/π_ref over samples of π is a KL, and never negative; TRL warns of the same sign."""
RATIO_ERROR = 1e-2
"""How far π/π_old may be from 1 before the first update of a rollout: both are the same weights, up to rounding in bfloat16."""
LEVEL = 0.01
"""Of each interval: five looks at a run together are wrong in one of twenty."""
MIN_POINTS = 9
"""Three windows of three."""
FIRST = 0.2
"""Of the run: what is off there cannot be due to stale data, which grows with training (stale-data)."""

LOOKED_AT = ("sampler_kl", "importance_weight", "ess", "kl_ref", "ratio/<statistic>")


@wired("sampler-mismatch")
def sampler_mismatch(chart: Chart) -> Verdict:
    """The policy that drew the samples is not the one that is trained, although their weights are: every importance ratio is
    off before the first update. Off from the start, that is: what becomes so later is stale data."""
    present = [template for template in LOOKED_AT if chart.has(template)]
    if not present:
        return unlogged("sampler-mismatch", "sampler_kl")
    signs = list(_signs(chart))
    if not signs:
        return None if any(_long(chart, template) for template in present) else _short(chart, present)
    first = min(int(evidence.first_step or 0) for evidence in signs)
    return Finding(
        id="sampler-mismatch",
        title=f"The policy that samples is not the one that trains: {_short_reading(signs[0])}",
        severity="warn",
        basis="statistical",
        since_step=first,
        evidence=tuple(signs),
        cause="Sampler and trainer give the same tokens or actions different probabilities at the same weights: temperature, "
        "top-p, masks, precision, dropout or routing differ, or the sampler's weights were not synchronised.",
        fix=(
            "Sample at temperature 1 without top-k and top-p, or apply the same to the log-probs that are trained",
            "Recompute old log-probs with the trainer (verl: rollout.calculate_log_probs, algorithm.rollout_correction; TRL: "
            "vllm_importance_sampling_correction=True)",
            "Synchronise the weights after every update, and switch dropout off in both",
        ),
        confirm="Score one rollout with both before any update: the log-probs must agree to rounding.",
        references=("failure catalogue F25", "miles issue 2722: log-probs 0.37 apart, 0.14 with expert replay"),
    )


def _short_reading(evidence: Evidence) -> str:
    return f"{evidence.series} is {evidence.reading.partition(' ')[0]}"


def _signs(chart: Chart) -> Iterator[Evidence]:
    kl, weight, ess = chart.get("sampler_kl"), chart.get("importance_weight"), chart.get("ess")
    yield from _sign(kl, lambda x: x > SAMPLER_KL, lambda i: i.p_above(SAMPLER_KL), f"at most {SAMPLER_KL} is rounding")
    low, high = WEIGHT
    yield from _sign(
        weight, lambda x: x < low, lambda i: i.p_below(low), f"between {low} and {high} is usual", early=True
    )
    yield from _sign(
        weight, lambda x: x > high, lambda i: i.p_above(high), f"between {low} and {high} is usual", early=True
    )
    yield from _sign(ess, lambda x: x < ESS, lambda i: i.p_below(ESS), f"above {ESS} is usual", early=True)
    reference = chart.get("kl_ref")
    if reference is not None and reference.estimator == "k1":
        why = "the mean of log π/π_ref over samples of π cannot be negative"
        yield from _sign(reference, lambda x: x < NEGATIVE_KL, lambda i: i.p_below(NEGATIVE_KL), why)
    yield from _first_ratios(chart)


def _sign(
    series: Series | None,
    holds: Callable[[float], bool],
    p_of: Callable[[Interval], float],
    usual: str,
    *,
    early: bool = False,
) -> Iterator[Evidence]:
    """A level that is surely beyond its bound: in three windows, by its interval, and with `early` from the start."""
    if series is None or len(series.finite) < MIN_POINTS:
        return
    if early and not holds(level(series.finite.first(FIRST))):
        return
    newer = series.finite.last(0.5)
    interval = mean_interval(newer.values)
    if interval is None or p_of(interval) > LEVEL or not persists(series, holds):
        return
    begun = since(series, holds)
    reading = f"{interval.mean:.3g} [{interval.low:.3g}, {interval.high:.3g}], {usual}"
    yield Evidence(series=series.name, reading=reading, first_step=begun, last_step=int(newer.steps[-1]))


def _first_ratios(chart: Chart) -> Iterator[Evidence]:
    """π/π_old at the first step of a rollout, before any update on it: 1, or the old log-probs are another policy's."""
    series = chart.get("ratio/<statistic>", statistic="mean")
    if series is None or isinstance(chart.run, Log):
        return
    steps = chart.run.steps()
    fresh = _beginnings(steps["step"], steps["rollout"], steps["epoch"])
    finite = series.finite
    kept = np.isin(finite.steps, fresh)
    if kept.sum() < MIN_POINTS:
        return
    error = np.abs(finite.values[kept] - 1)
    if float(np.median(error)) > RATIO_ERROR and float(np.quantile(error, 0.25)) > RATIO_ERROR:
        first, last = int(finite.steps[kept][0]), int(finite.steps[kept][-1])
        reading = f"{float(np.median(finite.values[kept])):.3g} at the first update of a rollout, where it must be 1"
        yield Evidence(series=series.name, reading=reading, first_step=first, last_step=last)


def _beginnings(steps: np.ndarray, rollouts: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """The first step of each rollout, where rollouts or epochs were noted: no update has used its data yet."""
    if np.isfinite(rollouts).any():
        known = np.isfinite(rollouts)
        _, first = np.unique(rollouts[known], return_index=True)
        return np.asarray(steps[known][first])
    anew = np.flatnonzero((epochs == 0) & (np.concatenate([[np.nan], epochs[:-1]]) != 0))
    return np.asarray(steps[anew])


def _long(chart: Chart, template: str) -> bool:
    return any(len(series.finite) >= MIN_POINTS for series in chart.every(template))


def _short(chart: Chart, present: list[str]) -> Skipped:
    found = [series for template in present for series in chart.every(template)]
    return too_short("sampler-mismatch", found, MIN_POINTS)
