"""Several runs beside each other: the quantities they share under whatever names, and each in a few numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from gradiometer.errors import UnknownName, UsageError
from gradiometer.metrics import resolve
from gradiometer.store.logs import Log
from gradiometer.store.matching import matching
from gradiometer.store.readable import Floats, Ints
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Thinned

__all__ = ["Reading", "Source", "better", "by_default", "chosen", "mean_std", "quantities", "read", "tail"]

EXACT, AT_MOST = 4_000, 20_000
"""Points of a series that are read at once, and those up to which it is read again whole; of longer ones averages do."""
TAIL = 0.1
"""The last tenth of a run is where it ended up."""
GOALS = ("reward", "val/reward", "success_rate", "val/success_rate", "loss", "val/loss")
BESIDES = ("grad/all/norm/raw", "entropy", "grad/all/clip/rate")
NUM_DEFAULT = 4
HIGHER = re.compile(r"(^|[/_. ])(rewards?|returns?|scores?|success|success_rate|accuracy|acc|explained_variance)$")
LOWER = re.compile(r"(^|[/_. ])(loss|value_loss|error|perplexity|ppl)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a run keeps a quantity: ours = sign × theirs."""

    series: str
    sign: int = 1
    estimator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A series with its sign put right. A very long one is read in averages; its numbers are exact but for `tail`."""

    series: str
    steps: Ints
    values: Floats
    buckets: Thinned | None
    """Of a very long one: what the averages stand for."""
    last: float
    last_step: int
    tail: float
    """Mean of the finite values among the last tenth."""
    low: float
    low_step: int | None
    """None when nothing was finite."""
    high: float
    high_step: int | None

    @property
    def exact(self) -> bool:
        """The values are those that were recorded."""
        return self.buckets is None

    def best(self, quantity: str) -> tuple[float, int] | None:
        """The best value and its step; None where neither high nor low is good."""
        direction = better(quantity)
        value, step = (self.high, self.high_step) if direction == "max" else (self.low, self.low_step)
        return (value, step) if direction and step is not None else None


def quantities(names: Iterable[str]) -> dict[str, Source]:
    """What a run has, by the name it is compared under: the catalogue's where a library calls it otherwise.

    A name of its own goes before an alias, and of two aliases the one listed first; the other keeps its own name.
    """
    found: dict[str, tuple[int, Source]] = {}
    for name in sorted(names):
        key, order, source = _known(name)
        if key in found and found[key][0] <= order:
            found[name] = order, Source(series=name)
            continue
        if key in found:
            displaced = found[key][1].series
            found[displaced] = order, Source(series=displaced)
        found[key] = order, source
    return {key: found[key][1] for key in sorted(found)}


@lru_cache(maxsize=100_000)
def _known(name: str) -> tuple[str, int, Source]:
    metric, alias = resolve(name) or (None, None)
    if metric is None or alias is None:
        return name, -1, Source(series=name)
    key = metric.name.replace("<block>", "all")  # other trainers log the norm of everything only
    if "<" in key:
        return name, -1, Source(series=name)
    return key, metric.aliases.index(alias), Source(series=name, sign=alias.sign, estimator=alias.estimator)


def better(quantity: str) -> Literal["max", "min", ""]:
    """Whether more of it is better, or less; empty where neither is."""
    if quantity == "policy_loss":  # the surrogate is near zero whatever the policy does
        return ""
    return "max" if HIGHER.search(quantity.lower()) else "min" if LOWER.search(quantity.lower()) else ""


def by_default(books: Sequence[Mapping[str, Source]]) -> list[str]:
    """What one looks at first: what is trained for, the gradient, entropy and clipping; else what the runs share."""
    there = {key for book in books for key in book}
    goal = next((name for name in GOALS if name in there), None)
    usual = [name for name in (goal, *BESIDES) if name in there]
    if usual:
        return [name for name in usual if name is not None]
    shared = sorted(there, key=lambda key: (-sum(key in book for book in books), key))
    return shared[:NUM_DEFAULT]


def chosen(books: Sequence[Mapping[str, Source]], *, match: str, names: Sequence[str]) -> list[str]:
    """The quantities that are named and those that match; the usual ones when nobody said."""
    there = sorted({key for book in books for key in book})
    if not match and not names:
        return by_default(books)
    wanted = [name if name in there else _known(name)[0] for name in names]
    for name, key in zip(names, wanted, strict=True):
        if key not in there:
            raise UnknownName("metric", name, there, hint=f"(the runs have {len(there)} series)")
    if match:
        theirs = {key: {key, *(book[key].series for book in books if key in book)} for key in there}
        found = matching(match, (name for names in theirs.values() for name in names))
        own = [key for key in there if theirs[key] & found]
        if not own and not wanted:
            raise UsageError(f"no series of these runs matches {match!r}; there are {len(there)}, such as {there[0]}")
        wanted += own
    return list(dict.fromkeys(wanted))


def read(log: Run | Log, source: Source, first: int | None = None, last: int | None = None) -> Reading | None:
    """A quantity of a run between two steps; None when it has no point there."""
    found = log.thinned(source.series, EXACT, first, last)
    if not len(found.steps):
        return None
    exact = found.whole
    steps, values = found.steps, found.mean
    if not exact and _about(log, source.series, steps) <= AT_MOST:
        exact = True
        steps, values = log.part(source.series, first, last)
    lows, highs = (values, values) if exact else (found.low, found.high)
    again = None if exact else partial(log.part, source.series)
    low, low_step = _extreme(steps, lows, first, again, sign=-1)
    high, high_step = _extreme(steps, highs, first, again, sign=1)
    if source.sign < 0:
        low, low_step, high, high_step = -high, high_step, -low, low_step
        values = -values
        found = replace(found, mean=-found.mean, low=-found.high, high=-found.low)
    ending = values if exact else source.sign * log.part(source.series, int(steps[-1]), last)[1]
    return Reading(
        series=source.series, steps=steps, values=values, buckets=None if exact else found,
        last=float(ending[-1]), last_step=int(steps[-1]),
        tail=tail(values), low=low, low_step=low_step, high=high, high_step=high_step,
    )  # fmt: skip


def tail(values: Floats) -> float:
    """The mean of the finite values among the last tenth, at least one; NaN when none is."""
    ending = values[len(values) - max(1, round(TAIL * len(values))) :]
    finite = ending[np.isfinite(ending)]
    return float(finite.mean()) if len(finite) else math.nan


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over runs; of one run its value and NaN, and NaN where one has a NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan


def _about(log: Run | Log, series: str, steps: Ints) -> float:
    """How many points a series has that came in buckets, judged by its last one."""
    return len(steps) * len(log.part(series, int(steps[-2]) + 1, int(steps[-1]))[0])


def _extreme(
    steps: Ints, values: Floats, first: int | None, again: Callable[..., tuple[Ints, Floats]] | None, *, sign: int
) -> tuple[float, int | None]:
    """The largest of sign × value with the first step that has it; a bucket's points are read `again` to find it."""
    finite = np.isfinite(values)
    if not finite.any():
        return math.nan, None
    place = int(np.argmax(np.where(finite, sign * values, -np.inf)))
    if again is None:
        return float(values[place]), int(steps[place])
    return _extreme(*again(int(steps[place - 1]) + 1 if place else first, int(steps[place])), None, None, sign=sign)
