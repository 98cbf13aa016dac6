"""A policy that stands still: updates, KL or a learning rate too small for anything to be learnt.

A schedule that ends with the run is fine, and so is a policy that is done: a small step accuses only below the maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import unlogged
from gradiometer.doctor.progress import key_of, progress_of, shown
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.rules.stepsize import MIN_POINTS, STEP_KEYS
from gradiometer.doctor.signs import level, near_best, persists, since, trend
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["policy_frozen"]

FROZEN_KL = 1e-4
"""Nats (public log doctors: peak KL); 0.02 of a typical log ratio."""
FROZEN_UPDATE = 1e-5
"""‖Δw‖/‖w‖: a thousand steps move the weights by 1 %."""
TINY_KL, SAME = 1e-6, 1e-3
"""Nats, a typical log ratio of 0.001; and of its own size, an entropy that is the same all along."""
MOVES = 1e-4
"""‖Δw‖/‖w‖ at which weights do move, whatever a KL reads that was taken before the step."""
CRAWLS = 1e-3
"""Nats: a policy whose largest step is below could take a longer one."""
ENDED = 1e-3
"""Of its own maximum: a learning rate that has ended."""
BELOW_BEST = 0.1
"""Of the way to the known maximum: a policy that stands still with more than that to go is not done."""
AWAY = 1e-3
"""Nats from its reference: a policy that has come so far has moved, whatever the KL of one step reads."""


@rule("policy-frozen")
def policy_frozen(chart: Chart) -> Verdict:
    """The policy stands still below its maximum (F16): tiny updates or KL, or a learning rate that ended long before the run.

    A schedule that ends with the run is fine, and so is a policy that is done.
    """
    known = ("approx_kl", "grad/<block>/update_ratio", "learning_rate")
    if not any(chart.has(name) for name in known):
        return unlogged("policy-frozen", "approx_kl")
    progress = progress_of(chart)
    if progress is None:
        return None if chart.has("reward") else unlogged("policy-frozen", "reward")
    below = progress.best is not None and not near_best(progress.end, progress.best, progress.start, within=BELOW_BEST)
    learns = progress.state == "gained" and not below and not _no_rate(chart)
    found = _crawls(chart) if learns else _still(chart)
    if not found or progress.state == "best":
        return None
    series = found[0][0]
    starts = [start for _, start, _ in found if start is not None]
    key = key_of(series, STEP_KEYS, "the learning rate")
    return Finding(
        id="policy-frozen",
        title=f"The policy hardly moves ({found[0][2].series}: {found[0][2].reading}) and the reward {progress.then}",
        severity="info" if learns else "warn",
        basis="heuristic",
        since_step=min(starts, default=None),
        evidence=(*(evidence for _, _, evidence in found), progress.evidence),
        cause="The learning rate is far too small or its schedule has ended, or something (a clip, a trust region, a frozen "
        "parameter group) takes the step away.",
        fix=(f"Set {key} above zero: 3e-4 is usual for PPO under Adam" if _no_rate(chart)
             else f"Raise {key} by 10 times until approx_kl reads 0.003 to 0.02",
             "Let the schedule end with the run: check its total number of steps; check "
             "warm-up, clip and which parameters are in the optimizer"),
        confirm=f"Train 50 updates with {'such a rate' if _no_rate(chart) else '10 times the learning rate'}: approx_kl "
        "and the reward should move.",
        references=("TheDeepChecker: log10 update ratio below -4", "A. Jones, Debugging RL, without the agonizing pain"),
    )  # fmt: skip


def _no_rate(chart: Chart) -> bool:
    """The learning rate was zero all along: whatever the reward did, this policy did not do it."""
    rate = chart.get("learning_rate")
    return rate is not None and len(rate.finite) >= MIN_POINTS and not np.any(rate.finite.values)


def _crawls(chart: Chart) -> list[tuple[Series, int | None, Evidence]]:
    """Learning, in steps so small all along that larger ones would do: weights and policy both hardly move."""
    kl, update = chart.get("approx_kl"), chart.get("grad/<block>/update_ratio", block="all")
    if kl is None or update is None or min(len(kl.finite), len(update.finite)) < MIN_POINTS:
        return []
    peak = float(kl.finite.values.max())
    if not (level(update) < MOVES and 0.0 < peak < CRAWLS):
        return []
    first = int(update.finite.steps[0])
    reading = f"median {fmt(level(update))}, and a KL of at most {fmt(peak)}: small steps all along"
    return [(update, first, shown(update.finite, reading))]


def _still(chart: Chart) -> list[tuple[Series, int | None, Evidence]]:
    """What shows that nothing moves over the last half of the run."""
    kl, update = chart.get("approx_kl"), chart.get("grad/<block>/update_ratio", block="all")
    rate = chart.get("learning_rate")
    found = [] if update is None else _below(update, lambda x: x < FROZEN_UPDATE)
    if rate is not None and len(rate.finite):
        most = float(rate.finite.values.max())
        found += _below(rate, lambda x: x <= ENDED * most)
    if update is not None and kl is not None and _stays_put(chart):
        tiny = f"at most {fmt(float(np.abs(kl.finite.values).max()))}, and the entropy keeps its digits"
        whole = f"median {fmt(level(update))}: too little for the policy to move"
        return [(kl, int(kl.finite.steps[0]), shown(kl.finite, tiny)), (update, None, shown(update.finite, whole))]
    moves = update is not None and persists(update, lambda x: x > MOVES)
    if kl is not None and not moves and not _has_moved(chart) and np.count_nonzero(kl.finite.values):
        size = replace(kl, values=np.abs(kl.values))  # k1 is signed: its median is near zero whatever the policy does
        found += _below(size, lambda x: x < FROZEN_KL)
    return found


def _stays_put(chart: Chart) -> bool:
    """Weights that move and a policy that does not: a KL that is there and tiny, and an entropy that keeps its digits."""
    kl, entropy = chart.get("approx_kl"), chart.get("entropy")
    if kl is None or entropy is None or min(len(kl.finite), len(entropy.finite)) < MIN_POINTS:
        return False
    span = float(np.ptp(entropy.finite.values))
    return 0.0 < np.abs(kl.finite.values).max() < TINY_KL and 0.0 < span < SAME * abs(level(entropy))


def _has_moved(chart: Chart) -> bool:
    """What a KL that is taken before the only step of a rollout cannot show: a reference left behind, an entropy on its
    way over the last half."""
    away, entropy = chart.get("kl_ref"), chart.get("entropy")
    if away is not None and persists(away, lambda x: abs(x) > AWAY):
        return True
    return entropy is not None and trend(entropy.last(0.5)).direction in ("rises", "falls")


def _below(series: Series, low: Callable[[float], bool]) -> list[tuple[Series, int | None, Evidence]]:
    if not persists(series, low):
        return []
    start = since(series, low)
    return [
        (series, start, shown(series, f"median {fmt(level(series.last(0.5)))} over the last half", first_step=start))
    ]
