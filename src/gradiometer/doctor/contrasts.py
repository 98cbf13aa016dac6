"""Which settings go with a better outcome, over several runs: rank tests, corrected for how many.

A setting with two values is tested with Mann and Whitney's U, one with several numbers with
Kendall's tau, one with several names with Kruskal and Wallis' H; p is corrected with Holm's method
over all settings that were tested. Where so few runs could not be told from chance whatever they
did, nothing is tested. What goes with an outcome need not be its cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradiometer.store.comparison import OWN
from gradiometer.words import fmt

__all__ = ["SettingContrast", "contrasts", "told_contrasts"]

LEVEL = 0.05
LEAST_RUNS = 6
LEAST_OF_VALUE = 2
MOST_NAMES = 6
"""Of a setting whose values are names; more are as good as a name for each run."""
MOST_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingContrast:
    """One setting, and how the outcome differs with it."""

    settings: tuple[str, ...]
    """Several where they changed together: then they cannot be told apart."""
    test: str
    p: float
    """Corrected."""
    num_runs: int
    num_tested: int
    text: str
    """What goes with a better outcome."""


def contrasts(
    settings: Mapping[str, Mapping[str, str]], outcomes: Mapping[str, float], *, lower: bool = False
) -> list[SettingContrast] | None:
    """Settings that go with the outcome, the surest first; None where there are too few runs.

    `settings` are texts by name and run, `outcomes` numbers by run, of which `lower` says that less
    is better. A run whose outcome is not finite did worst.
    """
    runs = list(outcomes)
    if len(runs) < LEAST_RUNS:
        return None
    values = np.array([outcomes[run] for run in runs])
    score = np.where(np.isfinite(values), -values if lower else values, -math.inf)
    tests = [
        (names, _tested(column, score, values))
        for names, column in _distinct(settings, runs)
        if _can_tell(column)
    ]
    found = [(names, made) for names, made in tests if made is not None]
    if not found:
        return None
    corrected = _holm([p for _, (_, p, _) in found])
    made = [
        SettingContrast(
            settings=names, test=test, p=p, num_runs=len(runs), num_tested=len(found), text=text
        )
        for (names, (test, _, text)), p in zip(found, corrected, strict=True)
        if p < LEVEL
    ]
    return sorted(made, key=lambda each: each.p)


def told_contrasts(
    settings: Mapping[str, Mapping[str, str]],
    outcomes: Mapping[str, float],
    quantity: str,
    *,
    lower: bool = False,
) -> str:
    """The same in a sentence; empty where there are too few runs to say anything."""
    found = contrasts(settings, outcomes, lower=lower)
    if found is None:
        return ""
    if not found:
        return (
            f"No setting correlates with the {quantity}, by rank tests over {len(outcomes)} runs."
        )
    parts = [
        f"{' and '.join(each.settings)}{' (changed together)' * (len(each.settings) > 1)}:"
        f" {each.text} ({each.test}, p = {fmt(each.p)})"
        for each in found[:MOST_TOLD]
    ]
    more = f" +{len(found) - MOST_TOLD} more." if len(found) > MOST_TOLD else ""
    tested = f" p is corrected for {found[0].num_tested} settings." * (found[0].num_tested > 1)
    return f"A better {quantity} goes with {'; '.join(parts)}.{more}{tested}"


Column = tuple[str, ...]


def _distinct(
    settings: Mapping[str, Mapping[str, str]], runs: Sequence[str]
) -> list[tuple[tuple[str, ...], Column]]:
    """Settings that part the runs; those that part them alike together."""
    alike: dict[tuple[int, ...], list[tuple[str, Column]]] = {}
    for name, by_run in settings.items():
        column = tuple(by_run.get(run, "not set") for run in runs)
        seen = list(dict.fromkeys(column))
        if len(seen) > 1 and not OWN.fullmatch(name.rpartition(".")[2]):
            alike.setdefault(tuple(seen.index(value) for value in column), []).append(
                (name, column)
            )
    return [(tuple(name for name, _ in each), each[0][1]) for each in alike.values()]


def _can_tell(column: Column) -> bool:
    """Whether the sharpest possible order of these runs would be told from chance."""
    sizes = [column.count(value) for value in dict.fromkeys(column)]
    if _numbers(column) is not None and len(sizes) > 2:
        return math.factorial(len(column)) > 2 / LEVEL
    if len(sizes) > MOST_NAMES or min(sizes) < LEAST_OF_VALUE:
        return False
    ways = math.factorial(len(column)) // math.prod(math.factorial(size) for size in sizes)
    return 2 / ways < LEVEL


def _numbers(column: Column) -> list[float] | None:
    try:
        found = [float(value) for value in column]
    except ValueError:
        return None
    return found if all(math.isfinite(value) for value in found) else None


def _tested(column: Column, score: np.ndarray, values: np.ndarray) -> tuple[str, float, str] | None:
    from scipy import stats

    if len(set(score.tolist())) < 2:
        return None
    ranks = stats.rankdata(score)
    names = list(dict.fromkeys(column))
    numbers = _numbers(column)
    if numbers is not None and len(names) > 2:
        tau, p = stats.kendalltau(numbers, ranks)
        way = "larger" if tau > 0 else "smaller"
        return "Kendall", float(p), f"{way} values, tau {fmt(abs(float(tau)))}, {len(column)} runs"
    parts = {name: ranks[[value == name for value in column]] for name in names}
    if len(names) == 2:
        p = stats.mannwhitneyu(*parts.values()).pvalue
        test = "Mann-Whitney"
    else:
        p = stats.kruskal(*parts.values()).pvalue
        test = "Kruskal-Wallis"
    return test, float(p), _compared(column, parts, values)


def _compared(column: Column, parts: Mapping[str, np.ndarray], values: np.ndarray) -> str:
    """The best value and the worst, with medians and how many runs each has."""
    order = sorted(parts, key=lambda name: -float(np.mean(parts[name])))
    told = []
    for name in (order[0], order[-1]):
        own = values[[value == name for value in column]]
        own = own[np.isfinite(own)]
        median = fmt(float(np.median(own))) if len(own) else "none finite"
        told.append(f"{name} (median {median}, n = {column.count(name)})")
    return f"{told[0]} against {told[1]}"


def _holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: the smallest p times how many there are, the next times one fewer."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    corrected, highest = [1.0] * len(ps), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        corrected[place] = highest
    return corrected
