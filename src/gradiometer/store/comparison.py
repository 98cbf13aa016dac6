"""Several runs beside each other.

`quantities` and `read`: what they share under whatever names, each in a few numbers. `differences`
and `grouped`: in which settings, versions and commits they differ, and which are repetitions of one
another. `matching`: series by a regular expression.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import PurePath
from typing import Any, Literal

import numpy as np

from gradiometer.errors import UnknownName, UsageError
from gradiometer.metrics import Metric, read_names, resolve
from gradiometer.store.logs import Log
from gradiometer.store.reader import Floats, Ints, Run
from gradiometer.store.thinning import Thinned

__all__ = [
    "BY_NAME",
    "BY_SEED",
    "OWN",
    "UNGROUPED",
    "ComparedSeries",
    "Difference",
    "Differences",
    "Source",
    "better",
    "by_default",
    "chosen",
    "config_of",
    "differences",
    "grouped",
    "groupings",
    "matching",
    "mean_std",
    "pattern",
    "quantities",
    "read",
    "tail",
    "usual_grouping",
]

EXACT, AT_MOST = 4_000, 20_000
"""Points of a series that are read at once, and up to which it is read again whole."""
TAIL = 0.1
"""The last tenth of a run is where it ended up."""
GOALS = ("reward", "val/reward", "success_rate", "val/success_rate", "loss", "val/loss")
BESIDES = ("grad/all/norm/raw", "entropy", "grad/all/clip/rate")
NUM_DEFAULT = 4
HIGHER = re.compile(
    r"(^|[/_. ])(rewards?|returns?|scores?|success|success_rate|accuracy|acc|explained_variance)$"
)
LOWER = re.compile(r"(^|[/_. ])(loss|value_loss|error|perplexity|ppl)$")

LONGEST_MATCH = 1_000
MATCH_WORK = 20_000_000
"""Steps of a search that may be taken here: about 0.2 s."""
MATCH_SECONDS = 2.0
MATCHES_AT_ONCE = threading.BoundedSemaphore(2)
SEARCH = """
import json, re, sys
match, names = json.load(sys.stdin)
print(json.dumps([place for place, name in enumerate(names) if re.search(match, name)]))
"""

UNGROUPED, BY_SEED, BY_NAME = "none", "seed", "name"
CONFIG = "config"
Facts = Mapping[str, Any]

GROUPS = {"config": CONFIG, "seed": CONFIG, "versions": "versions", "git": "git", "meter": "meter"}
MACHINE = ("hardware", "platform", "python", "parameter_dtype")
NOT_COMPARED = ("started", "schema_version", "cwd", "imported", "names", "measured")
"""Differ between any two runs, or say how a log was read."""
OWN = re.compile(
    r"seeds?|\w+_seed|run|(run|exp|experiment)_?(name|id)|name|group|(output|log|logging|save|run|default_local)_?(dir|path)"
    r"|tensorboard_log|wandb_\w+",
    re.IGNORECASE,
)
"""Settings that repetitions of one experiment may differ in: the seed, where a run is kept."""
NUMBER = re.compile(r"[-_. ]*\d+$")
MOST_SAID, MOST_LISTED = 3, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a run keeps a quantity: ours = sign × theirs."""

    series: str
    sign: int = 1
    estimator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSeries:
    """A series with its sign put right. Of a very long one all is exact but `values` and `tail`."""

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
        high = self.high, self.high_step
        value, step = high if direction == "max" else (self.low, self.low_step)
        return (value, step) if direction and step is not None else None


def quantities(names: Iterable[str], facts: Facts | None = None) -> dict[str, Source]:
    """What a run has, by the name it is compared under: the catalogue's where a library calls it
    otherwise.

    A name of its own goes before an alias, and of two aliases the one listed first; the other keeps
    its own name. `facts` may hold meanings that an imported run remembers.
    """
    names = sorted(names)
    found = {name: Source(series=name) for name in names}
    for name, reading in read_names(names, kept=(facts or {}).get("names")).items():
        key, alias = _compared_as(reading.metric), reading.alias
        if key is None or key in found or alias is None or alias.offset:
            continue
        del found[name]
        found[key] = Source(series=name, sign=alias.sign, estimator=alias.estimator)
    return {key: found[key] for key in sorted(found)}


def _compared_as(metric: Metric) -> str | None:
    key = metric.name.replace("<block>", "all")  # other trainers log the norm of everything only
    return None if "<" in key else key


def _key_of(name: str) -> str:
    """What a quantity is compared under that somebody asks for by any of its names."""
    known = resolve(name)
    return name if known is None or known[1] is None else _compared_as(known[0]) or name


def better(quantity: str) -> Literal["max", "min", ""]:
    """Whether more of it is better, or less; empty where neither is."""
    if quantity == "policy_loss":  # the surrogate is near zero whatever the policy does
        return ""
    if HIGHER.search(quantity.lower()):
        return "max"
    return "min" if LOWER.search(quantity.lower()) else ""


def by_default(books: Sequence[Mapping[str, Source]]) -> list[str]:
    """What one looks at first: goal, gradient, entropy and clipping; else what the runs share."""
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
    wanted = [name if name in there else _key_of(name) for name in names]
    for name, key in zip(names, wanted, strict=True):
        if key not in there:
            raise UnknownName("metric", name, there, hint=f"(the runs have {len(there)} series)")
    if match:
        theirs = {key: {key, *(book[key].series for book in books if key in book)} for key in there}
        found = matching(match, (name for names in theirs.values() for name in names))
        own = [key for key in there if theirs[key] & found]
        if not own and not wanted:
            raise UsageError(
                f"no series of these runs matches {match!r}; there are {len(there)}, such as"
                f" {there[0]}"
            )
        wanted += own
    return list(dict.fromkeys(wanted))


def read(
    log: Run | Log, source: Source, first: int | None = None, last: int | None = None
) -> ComparedSeries | None:
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
    return ComparedSeries(
        series=source.series,
        steps=steps,
        values=values,
        buckets=None if exact else found,
        last=float(ending[-1]),
        last_step=int(steps[-1]),
        tail=tail(values),
        low=low,
        low_step=low_step,
        high=high,
        high_step=high_step,
    )


def tail(values: Floats) -> float:
    """The mean of the finite values among the last tenth, at least one; NaN when none is."""
    ending = values[len(values) - max(1, round(TAIL * len(values))) :]
    finite = ending[np.isfinite(ending)]
    return float(finite.mean()) if len(finite) else math.nan


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over runs; NaN where one has a NaN, or is alone."""
    numbers = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan


def _about(log: Run | Log, series: str, steps: Ints) -> float:
    """How many points a series has that came in buckets, judged by its last one."""
    return len(steps) * len(log.part(series, int(steps[-2]) + 1, int(steps[-1]))[0])


def _extreme(
    steps: Ints,
    values: Floats,
    first: int | None,
    again: Callable[..., tuple[Ints, Floats]] | None,
    *,
    sign: int,
) -> tuple[float, int | None]:
    """The largest of sign × value with its first step; a bucket's points are read `again`."""
    finite = np.isfinite(values)
    if not finite.any():
        return math.nan, None
    place = int(np.argmax(np.where(finite, sign * values, -np.inf)))
    if again is None:
        return float(values[place]), int(steps[place])
    start = int(steps[place - 1]) + 1 if place else first
    return _extreme(*again(start, int(steps[place])), None, None, sign=sign)


def pattern(match: str) -> re.Pattern[str]:
    """A regular expression over names of series; one that is none is an error that says why."""
    if len(match) > LONGEST_MATCH:
        raise UsageError(
            f"match has {len(match)} characters: at most {LONGEST_MATCH} can be searched for"
        )
    try:
        return re.compile(match)
    except (re.error, OverflowError, RecursionError) as problem:
        raise UsageError(f"match {match!r} is not a regular expression ({problem})") from problem


def matching(match: str, names: Iterable[str]) -> frozenset[str]:
    """Those of the names in which the expression finds something, or an error after two seconds.

    Python's `re` keeps every other thread waiting while it searches and cannot be stopped, and
    `(\\w+)+!` over one long name takes years. What might take long is therefore searched in a
    process of its own, which can be stopped.
    """
    return _matching(match, tuple(sorted(set(names))))


@lru_cache(maxsize=16)
def _matching(match: str, names: tuple[str, ...]) -> frozenset[str]:
    compiled = pattern(match)
    if _is_quick(match, names):
        return frozenset(name for name in names if compiled.search(name))
    if not MATCHES_AT_ONCE.acquire(timeout=MATCH_SECONDS):
        raise UsageError(f"match {match!r} has to wait for other searches: try again in a moment")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", SEARCH],
            input=json.dumps([match, names]),
            capture_output=True,
            text=True,
            timeout=MATCH_SECONDS,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as problem:
        raise UsageError(
            f"match {match!r} takes too long over {len(names)} names: leave out repetitions, above"
            " all of repetitions"
        ) from problem
    finally:
        MATCHES_AT_ONCE.release()
    return frozenset(names[place] for place in json.loads(done.stdout))


def _is_quick(match: str, names: Iterable[str]) -> bool:
    """Whether backtracking cannot explode: n choices, no repeated group, take length^(n + 1)."""
    if re.search(r"\)[*+?{]", match):
        return False
    choices = sum(map(match.count, "*+?{|"))
    return bool(sum(len(name) ** (choices + 1) for name in names) <= MATCH_WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that is not the same in all runs."""

    group: str
    """config, versions, git, meter, machine or start"""
    name: str
    values: Mapping[str, str]
    """By run; a run that does not have it is not there."""

    @property
    def contested(self) -> bool:
        """Two runs have different values: more than that some runs do not have it."""
        return len(set(self.values.values())) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What differs, and how much does not."""

    differs: tuple[Difference, ...]
    equal: Mapping[str, int]
    """By group: settings that all runs have alike."""
    unknown: tuple[str, ...]
    """Runs that wrote no config down: they cannot be compared in it."""


def differences(facts: Mapping[str, Facts]) -> Differences:
    """Setting by setting, by run; a group that a run did not write down at all is no difference."""
    settings = {run: _settings(known) for run, known in facts.items()}
    rows: list[Difference] = []
    equal: dict[str, int] = {}
    for group in dict.fromkeys(group for known in settings.values() for group in known):
        those = {run: known[group] for run, known in settings.items() if group in known}
        for name in dict.fromkeys(name for known in those.values() for name in known):
            values = {run: known[name] for run, known in those.items() if name in known}
            if len(values) == len(those) and len(set(values.values())) == 1:
                equal[group] = equal.get(group, 0) + 1
            else:
                rows.append(Difference(group=group, name=name, values=values))
    rows.sort(key=lambda row: (row.group != CONFIG, not row.contested))
    unknown = tuple(run for run, known in facts.items() if not known.get("config"))
    return Differences(differs=tuple(rows), equal=equal, unknown=unknown)


def groupings(facts: Mapping[str, Facts], found: Differences) -> list[str]:
    """What runs can be grouped by: nothing, seed, name, and each setting that several share."""
    settings = (row for row in found.differs if row.group == CONFIG)
    shared = [row for row in settings if len({row.values.get(run) for run in facts}) < len(facts)]
    return [UNGROUPED, BY_SEED, BY_NAME, *(_option(row.name) for row in shared)]


def usual_grouping(facts: Mapping[str, Facts], found: Differences) -> str:
    """By seed where that puts two runs together, else not at all."""
    groups = grouped(facts, BY_SEED, found).values()
    return BY_SEED if any(len(runs) > 1 for runs in groups) else UNGROUPED


def grouped(facts: Mapping[str, Facts], by: str, found: Differences) -> dict[str, list[str]]:
    """The runs by the name of their group, in order; a run of no group is one of its own."""
    if by == UNGROUPED:
        return {run: [run] for run in facts}
    if by == BY_SEED:
        return _repetitions(facts)
    if by == BY_NAME:
        return _collected((stem(run), run) for run in facts)
    name = by.removeprefix(f"{CONFIG}.")
    rows = (row for row in found.differs if row.group == CONFIG and row.name in (by, name))
    row = next(rows, None)
    if row is None:
        known = groupings(facts, found)
        more = ", ..." if len(known) > MOST_LISTED else ""
        hint = f"(there are {', '.join(known[:MOST_LISTED])}{more})"
        raise UnknownName("grouping", by, known, hint=hint)
    return _collected(
        (f"{row.name} = {row.values[run]}" if run in row.values else f"{row.name} not set", run)
        for run in facts
    )


def stem(run: str) -> str:
    """A run's name without the number at its end: `ppo-7` and `ppo-8` are both `ppo`."""
    return NUMBER.sub("", run).rstrip("/") or "runs"


def _option(name: str) -> str:
    return f"{CONFIG}.{name}" if name in (UNGROUPED, BY_SEED, BY_NAME) else name


def _collected(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for group, run in pairs:
        groups.setdefault(group, []).append(run)
    return groups


def _repetitions(facts: Mapping[str, Facts]) -> dict[str, list[str]]:
    """Runs of one script with the same config but for the seed; without a config there are none."""
    recipes = {run: _recipe(known) for run, known in facts.items()}
    keys = ((json.dumps(recipe) if recipe else run, run) for run, recipe in recipes.items())
    alike = list(_collected(keys).values())
    stems = [{stem(run) for run in runs} for runs in alike if len(runs) > 1]
    by_name = all(len(names) == 1 for names in stems) and len(set.union(set(), *stems)) == len(
        stems
    )
    several = [recipes[runs[0]] for runs in alike if len(runs) > 1]
    named: dict[str, list[str]] = {}
    for runs in alike:
        if len(runs) == 1:
            name = runs[0]
        else:
            name = stem(runs[0]) if by_name else _told(recipes[runs[0]], several)
        while name in named:
            name += " (another)"
        named[name] = runs
    return named


def _recipe(known: Facts) -> dict[str, str]:
    config = known.get("config")
    if not isinstance(config, Mapping) or not config:
        return {}
    leaves = _leaves(config)
    kept = {name: text for name, text in leaves if not OWN.fullmatch(name.rpartition(".")[2])}
    return {" script": PurePath(str(known.get("script", ""))).name} | dict(sorted(kept.items()))


def _told(recipe: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> str:
    """What sets one recipe apart from the others."""
    apart = [name for name in recipe if any(o.get(name) != recipe[name] for o in others)]
    own = [f"{name.strip()} = {recipe[name]}" for name in apart]
    return ", ".join(own[:MOST_SAID]) + (", ..." if len(own) > MOST_SAID else "") or "same config"


def _settings(facts: Facts) -> dict[str, dict[str, str]]:
    """By group and dotted name, as text."""
    found: dict[str, dict[str, str]] = {}
    for key, value in facts.items():
        if key in NOT_COMPARED or (key in ("argv", "script") and facts.get("config")):
            continue
        group = GROUPS.get(key) or ("machine" if key in MACHINE else "start")
        nested = isinstance(value, Mapping) and key in GROUPS
        named = _leaves(value if nested else {key: value})
        for name, text in named:
            found.setdefault(group, {}).setdefault(name, text)
    return dict(sorted(found.items(), key=lambda pair: pair[0] != CONFIG))


def config_of(facts: Facts) -> dict[str, str]:
    """The settings of a run by dotted name, as text, its seed among them."""
    return _settings(facts).get(CONFIG, {})


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{key}", text
