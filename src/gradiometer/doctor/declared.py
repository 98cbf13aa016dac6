"""Rules that are data: a metric, the sign that is looked for in it, and words.

    declare(
        "ppo-clip-saturated",
        '''
        cause: A clipped sample has no gradient ...
        fix: Lower {key}
        confirm: ...
        ''',
        family="stepsize",
        metric="clip_fraction",
        sign=Stays(above=("stepsize/saturated", "stepsize/half")),
        title="PPO clips {percent} of the samples",
        settings={"key": ("step", "the learning rate or the epochs over a rollout")},
    )

A sign has a strength, a since and a reading, whatever the reward does; up to three thresholds, by
their names in thresholds.toml, are where it is present, strong and total. `role` says what the
outcome has to do with it and `severity.weigh` what follows. `{key}` in the words is what the
trainer of the log calls the setting. `over` looks at many series, one for each block or layer, and
tells the worst; a test is corrected for how many were looked at. `beside` adds what the rest of the
run says, and `also` other metrics in which the same fault shows. Where a sign takes more than one
metric to see, only that is a function, under `@seen(...)`, and the rest stays data:

    @seen("depth-imbalance", WORDS, title="{first} gets {now} times ...", needs=(NORM,))
    def depth_imbalance(run: RunData) -> Sign | Verdict:
        ...
        return Sign(series=first, strength="strong", ...)

A rule that needs more is a function (`rule.py`), which may use the same signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TypeAlias

import numpy as np

from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.rule import (
    CannotSay,
    Draft,
    Verdict,
    Words,
    finding,
    needed,
    rule,
    too_short,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import Role, Strength
from gradiometer.doctor.signs import (
    enough,
    in_words,
    layered,
    level,
    log10,
    persists,
    shown,
    since,
    trend,
    where,
)
from gradiometer.doctor.thresholds import value
from gradiometer.doctor.trainers import Field, field_of, key_for
from gradiometer.records import Basis, Evidence, Severity
from gradiometer.words import fmt

__all__ = [
    "Constant",
    "Detector",
    "FallsTo",
    "Look",
    "RisesPast",
    "Sign",
    "Stays",
    "blocks",
    "declare",
    "drafted",
    "lasting",
    "seen",
    "worst",
]

Settings: TypeAlias = Mapping[str, tuple[str, str]]
"""A brace of the words, an entry of trainers.SETTINGS and our own words for it."""
NO_SETTINGS: Settings = {}
STRENGTHS: tuple[Strength, ...] = ("present", "strong", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What a series shows, how strongly and since when, whatever the reward does."""

    series: Series
    strength: Strength
    since: int | None
    reading: str
    said: Mapping[str, str] = field(default_factory=dict)
    """Numbers for a title: `{level}`, `{percent}`, `{start}`, `{end}`, `{since}`."""
    rank: float = 0.0
    """Among those of like strength in several series the largest is told."""
    p_value: float | None = None
    """Of the test behind it, before it is corrected for how many series were looked at."""
    role: Role | None = None
    """Instead of the rule's, where it depends on what was seen."""
    basis: Basis | None = None
    """The same of what it rests on."""
    more: tuple[Evidence, ...] = ()
    """What else shows it."""
    fix: tuple[str, ...] = ()
    title: str = ""
    """These three instead of the rule's, where one rule has several sentences."""
    words: Words | str | None = None
    severity: Severity | None = None

    @property
    def evidence(self) -> Evidence:
        """The reading, where it holds."""
        return shown(self.series, self.reading, first_step=self.since)


Detector: TypeAlias = Callable[[Series], Sign | None]
Beside: TypeAlias = Callable[[RunData, Sign], Sign | None]
Fact: TypeAlias = Callable[[RunData], Verdict]


def lasting(
    series: Series,
    holds: Callable[[float], bool],
    *,
    strength: Strength = "strong",
    reading: str = "median {level} over the last half",
    windows: int | None = None,
) -> Sign | None:
    """What holds in three windows at the end (or so many), and from where on; None where it does
    not, or where too few measurements tell."""
    if not persists(series, holds, windows=windows):
        return None
    now, at = level(series.last(0.5)), since(series, holds)
    said = {"level": fmt(now), "percent": f"{100 * now:.3g} %", "since": str(at)}
    reading = reading.format_map(said)
    return Sign(series=series, strength=strength, since=at, reading=reading, said=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """The median lies beyond a bound in three windows at the end, and in two of them beyond the
    stronger ones: one, two or three bounds."""

    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    size: bool = False
    """Of |x|: an estimator with a sign is near zero whatever the policy does."""
    first: Strength = "strong"
    """What the first bound stands for; the next ones are stronger."""

    def __call__(self, series: Series) -> Sign | None:
        """The strongest bound that holds; ends the rule where there are too few measurements."""
        seen = replace(series, values=np.abs(series.values)) if self.size else series
        found: Sign | None = None
        for place, name in enumerate(self.above or self.below):
            holds = self._beyond(value(name))
            if persists(seen, holds) is None:
                raise CannotSay(too_short(series, 9))
            # what grows is as strong as it has become: the first bound alone must hold for longer
            windows = 2 if place else None
            sign = lasting(seen, holds, strength=_above(self.first, place), windows=windows)
            found = sign or found
        return found

    def _beyond(self, bound: float) -> Callable[[float], bool]:
        return (lambda x: x >= bound) if self.above else (lambda x: x <= bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallsTo:
    """It fell to a share of its start and stays there; a series that is never negative."""

    shares: tuple[str, ...]
    first: Strength = "strong"

    def __call__(self, series: Series) -> Sign | None:
        """The smallest share it stays below."""
        finite = series.finite
        if not len(finite):
            raise CannotSay(too_short(series, 9))
        # what falls at once has most of its start in the first value
        start = max(float(finite.values[0]), level(finite.first(0.05)))
        if not start > 0.0:
            return None
        found: Sign | None = None
        for place, name in enumerate(self.shares):
            bound = value(name) * start
            held = persists(finite, lambda x, bound=bound: x <= bound)  # type: ignore[misc]
            if held is None:
                raise CannotSay(too_short(series, 9))
            at = since(finite, lambda x, bound=bound: x <= bound)  # type: ignore[misc]
            if held and at is not None:
                found = _from_start(finite, start, at, _above(self.first, place))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RisesPast:
    """It grew along a trend to a multiple of its start."""

    times: tuple[str, ...]
    first: Strength = "strong"

    def __call__(self, series: Series) -> Sign | None:
        """The largest multiple it has passed."""
        size = replace(series.finite, values=np.abs(series.finite.values))
        if len(size) < 9:
            raise CannotSay(too_short(series, 9))
        start, end = level(size.first(0.1)), level(size.last(0.2))
        passed = [name for name in self.times if start > 0.0 and end >= value(name) * start]
        if not passed or trend(size).direction != "rises":
            return None
        at = since(size, lambda x: x >= value(passed[0]) * start)
        grown = _from_start(size, start, at, _above(self.first, len(passed) - 1))
        return replace(grown, series=series)


def _above(first: Strength, by: int) -> Strength:
    return STRENGTHS[STRENGTHS.index(first) + by]


def _from_start(series: Series, start: float, at: int | None, strength: Strength) -> Sign:
    """A series that went from its start to somewhere else."""
    end = level(series.last(0.2))
    said = {
        "start": fmt(start),
        "end": fmt(end),
        "percent": f"{100 * end / start:.2g} %",
        "times": f"{end / start:.3g}",
        "since": str(at),
    }
    reading = f"{fmt(start)} at the start, {fmt(end)} at the end (median of the last fifth)"
    return Sign(series=series, strength=strength, since=at, reading=reading, said=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Every measurement is the same, or nearly: the spread over the size is below a bound."""

    within: str
    least: str
    strength: Strength = "strong"

    def __call__(self, series: Series) -> Sign | None:
        """From the first measurement on."""
        finite = series.finite
        if len(finite) < value(self.least):
            raise CannotSay(too_short(series, value(self.least)))
        low, high = float(finite.values.min()), float(finite.values.max())
        if high - low > value(self.within) * max(abs(low), abs(high)):
            return None
        return Sign(
            series=series,
            strength=self.strength,
            since=int(finite.steps[0]),
            reading=f"{fmt(low)} at all {len(finite)} measurements",
            said={"level": fmt(low), "count": str(len(finite))},
        )


def drafted(
    run: RunData, sign: Sign, *, settings: Settings = NO_SETTINGS, then: bool = True
) -> Draft:
    """A finding of a sign: its title with what the outcome did, both as evidence; without `then`
    the title stands alone."""
    progress = outcome_of(run)
    did = f", and the {progress.noun} {progress.then}" if then and progress is not None else ""
    keys = {name: key_for(run, *named, sign.series) for name, named in settings.items()}
    draft = finding(
        sign.title.format_map(sign.said) + did,
        sign.evidence,
        *sign.more,
        progress and progress.evidence,
        strength=sign.strength,
        role=sign.role or "plain",
        basis=sign.basis or "heuristic",
        since_step=sign.since,
        block=sign.series.parts.get("block"),
        words=sign.words,
        fix=sign.fix,
    )
    return replace(draft, severity=sign.severity, values={**sign.said, **keys})


Sees: TypeAlias = Callable[[RunData], Sign | Verdict]


def seen(
    id: str,
    text: str,
    *,
    title: str = "",
    needs: tuple[str, ...] = (),
    family: str = "",
    role: Role = "plain",
    basis: Basis = "heuristic",
    settings: Settings = NO_SETTINGS,
    then: bool = True,
) -> Callable[[Sees], Sees]:
    """Register a rule whose sign the decorated function sees; what is none is the verdict."""

    def register(sees: Sees) -> Sees:
        @wraps(sees)
        def judge(run: RunData) -> Verdict:
            sign = sees(run)
            if not isinstance(sign, Sign):
                return sign
            how = replace(
                sign,
                title=sign.title or title,
                role=sign.role or role,
                basis=sign.basis or basis,
            )
            return drafted(run, how, settings=settings, then=then)

        rule(id, text, needs=needs, family=family)(judge)
        return sees

    return register


def blocks(
    template: str, least: str, *, log: bool = False, layers: bool = False
) -> Callable[[RunData], list[Series]]:
    """The series of every block (and layer) that are long enough, log10 of them if asked."""

    def chosen(run: RunData) -> list[Series]:
        all_ = [each for each in run.every(template) if layers or not layered(each)]
        found = [each for each in map(log10 if log else _same, all_) if enough(each, value(least))]
        if not found:
            raise CannotSay(too_short(run.every(template), value(least), metric=template))
        return found

    return chosen


def _same(series: Series) -> Series:
    return series.finite


def worst(series: Sequence[Series], sign: Detector, level: str | None = None) -> Sign | None:
    """The strongest sign among several series, with how many of them show it; those with a p-value
    must hold for all at once (Bonferroni)."""
    found = [each for each in map(sign, series) if each is not None]
    if level is not None:
        found = [x for x in found if x.p_value is None or x.p_value * len(series) < value(level)]
    if not found:
        return None
    most = max(found, key=lambda each: (STRENGTHS.index(each.strength), each.rank))
    count = f"; {len(found)} of {len(series)} blocks" if len(series) > 1 else ""
    said = {"block": in_words(where(most.series)), **most.said}
    return replace(most, reading=most.reading + count, said=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One place where a rule's fault may show, with a title of its own."""

    metric: str
    sign: Detector
    title: str
    role: Role | None = None
    """Instead of the rule's."""
    words: Words | str | None = None
    """The same of its words."""
    over: Callable[[RunData], Sequence[Series]] | None = None
    """The series that are looked at where they are several."""
    level: str | None = None
    """What their p-values must reach together."""
    beside: Beside | None = None
    """The sign with what else the run shows, or None."""

    def seen(self, run: RunData) -> Sign | None:
        """The sign, where it shows; ends the rule where it cannot be told."""
        series = [needed(run, self.metric)] if self.over is None else self.over(run)
        found = worst(series, self.sign, self.level)
        return self.beside(run, found) if found is not None and self.beside is not None else found


def declare(
    id: str,
    text: str,
    *,
    family: str,
    metric: str,
    sign: Detector,
    title: str,
    role: Role = "plain",
    basis: Basis = "heuristic",
    settings: Settings = NO_SETTINGS,
    fields: tuple[Field, ...] = (),
    unless: Callable[[RunData, Sign], bool] | None = None,
    over: Callable[[RunData], Sequence[Series]] | None = None,
    level: str | None = None,
    beside: Beside | None = None,
    also: tuple[Look, ...] = (),
    fact: Fact | None = None,
    about: str = "",
) -> None:
    """Register a rule that is data. `fields`: where it applies, everywhere without; `unless`: what
    excuses the sign; `also`: where else it may show, in order; `fact`: a finding that needs no
    sign; `about`: what the docs say of it, instead of its title."""
    first = Look(metric=metric, sign=sign, title=title, over=over, level=level, beside=beside)
    looks = (first, *also)

    def sees(run: RunData) -> Sign | Verdict:
        if fields and field_of(run) not in fields:
            return None
        if fact is not None and (proved := fact(run)) is not None:
            return proved
        look, found = _first_seen(run, looks)
        if found is None or (unless is not None and unless(run, found)):
            return None
        return replace(found, title=look.title, role=found.role or look.role, words=look.words)

    sees.__doc__ = about or re.sub(r"\{\w+\}", "…", title.replace("{block}", "a block")) + "."
    one = fact is None and all(look.metric == metric for look in looks)
    needs = (metric,) if one else ()
    seen(id, text, needs=needs, family=family, role=role, basis=basis, settings=settings)(sees)


def _first_seen(run: RunData, looks: Sequence[Look]) -> tuple[Look, Sign | None]:
    """The first look that shows something; where none could look, why the first could not."""
    lacking: list[CannotSay] = []
    for look in looks:
        try:
            found = look.seen(run)
        except CannotSay as why:
            lacking.append(why)
        else:
            if found is not None:
                return look, found
    if len(lacking) == len(looks):
        raise lacking[0]
    return looks[0], None
