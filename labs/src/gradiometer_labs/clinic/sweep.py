"""What other thresholds would find, and what they would cry wolf about, on logs that are there.

Each log is read once. A first pass notes which thresholds each rule reads on it; then a rule is run
again only where a threshold that it reads has another value: the ends of the range everywhere, what
lies between only where an end changes what is said. Counted is a rule by itself: whether
it warns (a warning or critical) where it is among the findings that name what is wrong (recall), on
healthy logs (alarms), and elsewhere. Which finding leads is the full clinic's question.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.rule import Rule, Skipped, rules
from gradiometer.doctor.thresholds import SHARED, THRESHOLDS, overridden, recorded
from gradiometer.errors import UnknownName
from gradiometer_labs.clinic.cases import LabelledCase

__all__ = ["SweepCount", "SweepPoint", "SweepRow", "plain_rows", "sweep", "swept_values"]

TIMES = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0)
"""What a threshold is multiplied with; of a share near 1 its distance from 1 is."""
NEAR_ONE = 0.5
FIXED = "nothing is traded"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCount:
    """How often one rule warns."""

    found: int
    """Of the logs that it should name."""
    of: int
    alarms: int
    """Of the healthy ones."""
    healthy: int
    elsewhere: int
    """Of those that are ill in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One value of a threshold, and what the rule says with it."""

    value: float
    count: SweepCount


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """A rule and one threshold that it reads."""

    rule: str
    threshold: str
    value: float
    """As it is."""
    trades: str
    now: SweepCount
    points: tuple[SweepPoint, ...]
    """With other values, in their order."""

    @property
    def stretches(self) -> list[tuple[list[float], SweepCount]]:
        """Neighbouring values that say the same, in order, and what they say."""
        every = [*((point.value, point.count) for point in self.points), (self.value, self.now)]
        every.sort(key=itemgetter(0))
        return [
            ([value for value, _ in those], count)
            for count, those in groupby(every, key=itemgetter(1))
        ]

    @property
    def moves(self) -> bool:
        """Whether any of the values changes what is counted."""
        return any(point.count != self.now for point in self.points)


Said = dict[tuple[str, int], bool]
"""By rule and case: whether it warns."""


def sweep(
    cases: Sequence[LabelledCase],
    *,
    only: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> list[SweepRow]:
    """A row for each rule and each threshold it reads anywhere; `only` names thresholds or rules.

    Thresholds that all rules share are swept when they are named: every rule runs again for them.
    """
    chosen = _chosen(only)
    by_rule = {each.id: each for each in rules() if not chosen.rules or each.id in chosen.rules}
    said, readers = _first_pass(cases, by_rule.values())
    wanted = [name for name in THRESHOLDS if chosen.wants(name)]
    rows = []
    for done, name in enumerate(wanted):
        progress(done, len(wanted))
        read = _concerned(name, by_rule, readers, len(cases))
        rows += _rows(name, cases, {by_rule[id]: places for id, places in read.items()}, said)
    progress(len(wanted), len(wanted))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    rules: frozenset[str]
    thresholds: frozenset[str]

    def wants(self, name: str) -> bool:
        if self.thresholds:
            return name in self.thresholds
        return name.partition("/")[0] not in SHARED and FIXED not in THRESHOLDS[name].trades


def _chosen(only: Sequence[str]) -> _Chosen:
    ids = {each.id for each in rules()}
    for name in only:
        if name not in ids and name not in THRESHOLDS:
            raise UnknownName("rule or threshold", name, (*ids, *THRESHOLDS))
    return _Chosen(rules=frozenset(only) & ids, thresholds=frozenset(only) & set(THRESHOLDS))


def _first_pass(
    cases: Sequence[LabelledCase], chosen: Iterable[Rule]
) -> tuple[Said, dict[str, dict[str, list[int]]]]:
    """What is said with the thresholds as they are; and by threshold and rule, where it is read."""
    said: Said = {}
    readers: dict[str, dict[str, list[int]]] = {}
    for place, case in enumerate(cases):
        with np.errstate(all="ignore"):
            outcome_of(case.data)  # its own thresholds are read here, and not by the first rule
        for each in chosen:
            with recorded() as read:
                said[each.id, place] = _warns(each, case)
            for name in read:
                readers.setdefault(name, {}).setdefault(each.id, []).append(place)
    return said, readers


def _warns(rule: Rule, case: LabelledCase) -> bool:
    found = rule(case.data)
    return not isinstance(found, Skipped) and any(each.severity != "info" for each in found)


def _concerned(
    name: str,
    by_rule: Mapping[str, Rule],
    readers: Mapping[str, Mapping[str, list[int]]],
    count: int,
) -> Mapping[str, list[int]]:
    """The rules that read a threshold, and on which cases; all of them where it is shared."""
    if name.partition("/")[0] in SHARED:
        return {id: list(range(count)) for id in by_rule}
    return readers.get(name, {})


def _rows(
    name: str, cases: Sequence[LabelledCase], read: Mapping[Rule, list[int]], said: Said
) -> list[SweepRow]:
    known = THRESHOLDS[name]
    rows = []
    for each, places in read.items():
        anew = _anew(name, each, cases, places, said)
        points = tuple(
            SweepPoint(value=value, count=_count(each.id, cases, said, anew[value]))
            for value in sorted(anew)
        )
        rows.append(
            SweepRow(
                rule=each.id,
                threshold=name,
                value=known.value,
                trades=known.trades,
                now=_count(each.id, cases, said, {}),
                points=points,
            )
        )
    return rows


def _anew(
    name: str, rule: Rule, cases: Sequence[LabelledCase], places: Sequence[int], said: Said
) -> dict[float, dict[int, bool]]:
    """By value: what the rule says on the cases where that may be something else than today.

    What a threshold trades goes one way, so a case on which neither end of the range changes
    anything is left out between them.
    """
    values = swept_values(THRESHOLDS[name].value)
    found: dict[float, dict[int, bool]] = {}
    left = list(places)
    for value in (*_ends(values), *values[1:-1]):
        with overridden({name: value}):
            found[value] = {place: _warns(rule, cases[place]) for place in left}
        if len(found) == len(_ends(values)):
            ends = list(found.values())
            left = [at for at in places if any(end[at] != said[rule.id, at] for end in ends)]
    return found


def _ends(values: Sequence[float]) -> list[float]:
    return [values[0], values[-1]] if len(values) > 1 else list(values)


def _count(
    id: str, cases: Sequence[LabelledCase], said: Said, anew: Mapping[int, bool]
) -> SweepCount:
    warned: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for place, case in enumerate(cases):
        kind = "healthy" if case.healthy else "named" if id in case.accept else "elsewhere"
        there[kind] += 1
        warned[kind] += anew.get(place, said[id, place])
    return SweepCount(
        found=warned["named"],
        of=there["named"],
        alarms=warned["healthy"],
        healthy=there["healthy"],
        elsewhere=warned["elsewhere"],
    )


def swept_values(value: float) -> list[float]:
    """Other values to try, in order: whole numbers stay whole, shares stay shares."""
    if NEAR_ONE < value < 1.0:
        found = [1.0 - (1.0 - value) * times for times in TIMES]
        found = [each for each in found if each > 0.0]
    else:
        found = [value * times for times in TIMES]
    if isinstance(value, int):
        found = [float(max(1, round(each))) for each in found]
    kept = {each for each in found if each != value and math.isfinite(each)}
    return sorted(kept)


def plain_rows(rows: Iterable[SweepRow], cases: Sequence[LabelledCase]) -> dict[str, Any]:
    """For --json: how many logs of which origin, and every row."""
    origins = Counter((case.origin, "healthy" if case.healthy else "ill") for case in cases)
    return {
        "logs": [
            {"origin": origin, "label": label, "count": count}
            for (origin, label), count in sorted(origins.items())
        ],
        "rows": list(rows),
    }
