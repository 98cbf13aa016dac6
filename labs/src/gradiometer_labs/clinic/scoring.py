"""The count. A fault is the unit: its seeds, doses and labs are resampled together, for they are
right or wrong together.

A training with one fault is named when the finding shown first is one of those expected of it (top
1), or one of the first three (top 3). With two faults: when the first names either (top 1), and
when each is named by one of the first three (top 3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradiometer_labs.clinic.judging import EARLY, MEASURED, JudgedTraining

__all__ = [
    "Rate",
    "alarms",
    "cluster_rate",
    "confusion",
    "detected",
    "harmless",
    "named",
    "precision",
    "upper_bound",
]

DRAWS = 2000
LOST = 0.1
"""Of what a healthy training gains: a fault that costs less has not lowered the return."""

Names = Callable[[JudgedTraining], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share, with a 95 % interval from a bootstrap over clusters."""

    share: float
    low: float
    high: float
    count: int
    clusters: int


def full(judged: JudgedTraining) -> list[str]:
    """What was shown from all that was kept."""
    return [said.id for said in judged.full]


def scalars(judged: JudgedTraining) -> list[str]:
    """What was shown from the scalar log."""
    return [said.id for said in judged.scalars]


def public(judged: JudgedTraining) -> list[str]:
    """What public thresholds say."""
    return list(judged.public)


def named(judged: JudgedTraining, said: Sequence[str], *, within: int) -> bool:
    """Whether the fault, or with two of them what is asked of two, is named by the first
    findings."""
    hits = [any(id in expected for id in said[:within]) for expected in judged.training.expected]
    return all(hits) if within > 1 else any(hits)


def cluster_rate(cases: Iterable[tuple[str, bool]]) -> Rate | None:
    """The share of cases that hold, each cluster weighing the same; None without any.

    The bootstrap draws whole clusters, so that three seeds of one fault are not taken for three
    faults.
    """
    by_cluster: dict[str, list[bool]] = {}
    for cluster, holds in cases:
        by_cluster.setdefault(cluster, []).append(holds)
    if not by_cluster:
        return None
    means = np.array([np.mean(found) for found in by_cluster.values()])
    draws = np.random.default_rng(0).choice(means, size=(DRAWS, len(means))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Rate(
        share=float(means.mean()),
        low=float(low),
        high=float(high),
        count=sum(map(len, by_cluster.values())),
        clusters=len(means),
    )


def precision(
    all_judged: Iterable[JudgedTraining], names: Names = full
) -> dict[str, tuple[int, int]]:
    """Of each id: how often it was shown first, and how often that was right. Information is no
    accusation."""
    shown: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for judged in all_judged:
        first = next(iter(names(judged)), None)
        if first is None or (names is full and judged.full[0].severity == "info"):
            continue
        shown[first] += 1
        right[first] += any(first in expected for expected in judged.training.expected)
    return {id: (right[id], count) for id, count in sorted(shown.items())}


def confusion(all_judged: Iterable[JudgedTraining]) -> dict[str, Counter[str]]:
    """From the finding expected (or `healthy`) to what was said first (or `nothing`).

    Counted are trainings with one fault, and controls. What is as good as the expected one counts
    as it. A healthy run with information only was told nothing.
    """
    table: dict[str, Counter[str]] = {}
    for judged in all_judged:
        if len(judged.training.expected) > 1:
            continue
        least = "warn" if judged.training.healthy else "info"
        said = next(
            (each.id for each in judged.full if least == "info" or each.severity != "info"),
            "nothing",
        )
        expected = next(iter(judged.training.expected), ("healthy",))
        table.setdefault(expected[0], Counter())[expected[0] if said in expected else said] += 1
    return table


def alarms(judged: JudgedTraining, *, at_least: str = "warn") -> int:
    """How many findings of that severity or worse a run got."""
    counted = {"warn": ("warn", "critical"), "critical": ("critical",)}[at_least]
    return sum(said.severity in counted for said in judged.full)


def upper_bound(hits: int, count: int, level: float = 0.95) -> float:
    """Clopper and Pearson's one-sided bound on a rate of which `hits` of `count` were seen."""
    from scipy.stats import beta

    return 1.0 if hits >= count else float(beta.ppf(level, hits + 1, count - hits))


def harmless(all_judged: Sequence[JudgedTraining]) -> set[tuple[str, str]]:
    """The faults, by setup and `fault=`, that lower the return by less than a tenth of what healthy
    trainings gain."""
    controls: dict[str, list[JudgedTraining]] = {}
    returns_by_fault: dict[tuple[str, str], list[float]] = {}
    for judged in all_judged:
        if judged.training.healthy and judged.training.kind == "fast":
            controls.setdefault(judged.training.setup, []).append(judged)
        elif not judged.training.healthy:
            ended = -math.inf if judged.record.ended else judged.record.mean_return
            returns_by_fault.setdefault((judged.training.setup, judged.training.fault), []).append(
                ended
            )
    found = set()
    for (setup, fault), returns in returns_by_fault.items():
        healthy = [judged.record for judged in controls.get(setup, ())]
        if not healthy:
            continue
        end, start = (
            float(np.mean([getattr(each, name) for each in healthy]))
            for name in ("mean_return", "first_return")
        )
        if float(np.mean(returns)) >= end - LOST * max(end - start, 0.0):
            found.add((setup, fault))
    return found


def detected(judged: JudgedTraining) -> Mapping[str, bool]:
    """Whether the fault was among the first three findings after the first measured steps, and
    after shares of the run."""
    found = {str(MEASURED): False, **{str(share): False for share in EARLY}}
    return {when: named(judged, judged.early.get(when, ()), within=3) for when in found}
