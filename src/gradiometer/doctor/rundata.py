"""What a rule reads: each series of a run or log by its name in the catalogue, sign and unit right.

A rule asks for `entropy` and gets it, whether the log calls it `train/entropy_loss` (negative, SB3)
or `actor/entropy` (verl), and a share as a share where the log has per cent. Nothing of a lab is
read here: no name, no fault, no config of ours. The facts a rule may ask for are those any trainer
could have written down (`facts(...)`), looked up by the names people give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from gradiometer import metrics
from gradiometer.records import Event, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Floats, Ints, Run

__all__ = ["Named", "RunData", "Series", "first_step", "once"]

Read = TypeVar("Read")

NOT_EVIDENCE = ("lab", "fault", "run")
"""Facts no rule may see: which lab this is and which fault it was given would be the answer."""
NORM = "grad/<block>/norm/raw"
CERTAINLY_PER_CENT = 1.5
"""A share is at most 1; rounding and smoothing do not take it here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements of one quantity by step, each step once. A NaN is a recorded NaN."""

    name: str
    """As the run or log calls it."""
    metric: metrics.Metric
    parts: Mapping[str, str] = field(default_factory=dict)
    """What stands in the placeholders of the catalogue's name: block, term, ..."""
    steps: Ints
    values: Floats
    estimator: str = ""
    """Which estimator the origin uses, where libraries differ: k1, k2, k3."""
    library: str = ""
    """Whose name it goes by; empty for ours."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def finite(self) -> Series:
        """Without NaN and Inf."""
        there = np.isfinite(self.values)
        return self if there.all() else self._at(there)

    def since(self, step: int) -> Series:
        """From that step on."""
        return self._at(self.steps >= step)

    def until(self, step: int) -> Series:
        """Up to that step."""
        return self._at(self.steps <= step)

    def last(self, share: float) -> Series:
        """The last share of the measurements, at least one."""
        return self._at(np.arange(len(self)) >= len(self) - max(1, round(share * len(self))))

    def first(self, share: float) -> Series:
        """The first share of the measurements, at least one."""
        return self._at(np.arange(len(self)) < max(1, round(share * len(self))))

    def _at(self, where: Any) -> Series:
        return replace(self, steps=self.steps[where], values=self.values[where])


def first_step(since: int | None, newest: int | None) -> int | None:
    """The step to look from; a negative `since` counts from the end, -500 for the last 500."""
    return since if since is None or since >= 0 else max(0, (newest or 0) + 1 + since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """How a column came to its meaning, where its name alone does not say it or others could be
    meant."""

    column: str
    meaning: str
    how: str
    """`guessed` by its words, `told` by the user, or `listed` as a tool's name."""
    instead_of: tuple[str, ...] = ()
    """Other columns of the same meaning, which are not read."""


class RunData:
    """Reads a run or a log once, on demand. `max_points` thins long series, for a live look;
    `told` gives columns a meaning, as do the names that an imported run remembers."""

    def __init__(
        self,
        source: Run | Log,
        *,
        since: int | None = None,
        max_points: int | None = None,
        told: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self._since, self._max_points = first_step(since, source.newest_step), max_points
        self._read: dict[str, Series] = {}
        self._names: dict[str, list[metrics.Meaning]] = {}
        names = source.names()
        metrics.check_told(told or {}, names)
        found = metrics.read_names(names, told=told, kept=source.facts.get("names"))
        self.unknown: list[str] = [name for name in names if name not in found]
        """Series the catalogue does not know: listed, never dropped in silence."""
        for reading in found.values():
            self._names.setdefault(reading.metric.name, []).append(reading)
        # before the clip or after it: who logs one norm alone means the whole gradient's
        if own := self._names.get("total_grad_norm"):
            self._names.setdefault(NORM, [replace(own[0], parts={"block": "all"})])

    def get(self, template: str, **parts: str) -> Series | None:
        """The series of a catalogue's name with these parts; of several origins the first."""
        if template not in metrics.CATALOGUE:
            raise KeyError(f"{template!r} is not in the catalogue")
        there = self._names.get(template, [])
        wanted = [x for x in there if all(x.parts.get(k) == v for k, v in parts.items())]
        # other trainers log the whole one only
        if template == NORM and parts.get("block") == "all":
            wanted = wanted or [x for x in there if x.alias is not None]
        return self._series(wanted[0]) if wanted else None

    def every(self, template: str) -> list[Series]:
        """All series of a name with placeholders: one for each block, term, expert, ..."""
        if template not in metrics.CATALOGUE:
            raise KeyError(f"{template!r} is not in the catalogue")
        return [self._series(found) for found in self._names.get(template, ())]

    def has(self, template: str) -> bool:
        """Whether anything was recorded under that name of the catalogue."""
        return template in self._names

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What the training may be for, as the catalogue orders it; what the user told of first."""
        told = {name for name, found in self._names.items() if found[0].told}
        return tuple(sorted(metrics.OUTCOMES, key=lambda name: name not in told))

    @property
    def named(self) -> tuple[Named, ...]:
        """What was guessed or told, and outcomes of which there are several; outcomes first."""
        order = [*self.outcomes, *(name for name in self._names if name not in metrics.OUTCOMES)]
        found = []
        for template in order:
            first, *others = self._names.get(template, ()) or (None,)
            if first is None or "<" in template:
                continue
            choice = others if template in metrics.OUTCOMES and first.alias is not None else []
            if first.told or first.guessed or choice:
                how = "told" if first.told else "guessed" if first.guessed else "listed"
                found.append(
                    Named(
                        column=first.name,
                        meaning=template,
                        how=how,
                        instead_of=tuple(each.name for each in choice),
                    )
                )
        return tuple(found)

    def first_step(self, name: str) -> int | None:
        """The first step of a series that a rule has read, by the run's name for it; else None."""
        read = self._read.get(name)
        return int(read.steps[0]) if read is not None and len(read) else None

    @property
    def longest(self) -> int:
        """The points of the longest series that a rule has read."""
        return max(map(len, self._read.values()), default=0)

    def events(self, kind: str) -> list[Event]:
        """What the meter noted of that kind; a log of another tool has none."""
        return [
            event
            for event in self.source.events(kind)
            if self._since is None or event.step >= self._since
        ]

    def table(self, name: str) -> Any:
        """The newest table of that name; None when there is none."""
        tables = self.tables(name)
        return tables[-1].content if tables else None

    def tables(self, name: str) -> Sequence[Table]:
        """Every table of that name, the oldest first; none where the run has none."""
        return self.source.tables(name) if name in self.source.table_names() else ()

    def fact(self, *names: str) -> Any:
        """The first of these settings that the run wrote down, wherever in its facts; else None.

        Names are compared without case, `-` and `_`; a dotted one (`baseline.momentum`) is the end
        of a path.
        """
        for wanted in names:
            for path, value in self._settings:
                if path == _plain(wanted) or path.endswith("." + _plain(wanted)):
                    return value
        return None

    @cached_property
    def _settings(self) -> list[tuple[str, Any]]:
        facts = dict(self.source.facts)
        config = facts.pop("config", None)
        held = config if isinstance(config, Mapping) else {}
        settings = list(_leaves(held)) + list(_leaves(facts))
        return [
            (path, value) for path, value in settings if path.rpartition(".")[2] not in NOT_EVIDENCE
        ]

    @cached_property
    def last_step(self) -> int | None:
        """The newest step of any series."""
        return self.source.newest_step

    def _series(self, found: metrics.Meaning) -> Series:
        name, alias = found.name, found.alias
        if name not in self._read:
            steps, values = _in_order(*self.source.series(name))
            if self._since is not None:
                steps, values = steps[steps >= self._since], values[steps >= self._since]
            if self._max_points is not None and len(steps) > self._max_points:
                kept = np.unique(np.linspace(0, len(steps) - 1, self._max_points).astype(np.int64))
                steps, values = steps[kept], values[kept]
            self._read[name] = Series(
                name=name,
                metric=found.metric,
                parts=found.parts,
                steps=steps,
                values=_as_ours(values, found),
                estimator="" if alias is None else alias.estimator,
                library="" if alias is None else alias.library,
            )
        return self._read[name]


def once(read: Callable[[RunData], Read]) -> Callable[[RunData], Read]:
    """Reads a run once, and forgets it with the run."""
    known: WeakKeyDictionary[RunData, Read] = WeakKeyDictionary()

    @wraps(read)
    def first(run: RunData) -> Read:
        if run not in known:
            known[run] = read(run)
        return known[run]

    return first


def _as_ours(values: Floats, found: metrics.Meaning) -> Floats:
    """With our sign, and as a share where the log has per cent: above 1 and at most 100."""
    alias = found.alias
    if alias is None:
        return values
    ours = alias.offset + alias.sign * values if alias.offset else alias.sign * values
    finite = ours[np.isfinite(ours)] if found.metric.rate else ours[:0]
    if len(finite) and finite.min() >= 0.0 and CERTAINLY_PER_CENT < finite.max() <= 100.0:
        return ours / 100.0
    return ours


def _in_order(steps: Ints, values: Floats) -> tuple[Ints, Floats]:
    """By step, each once: a log that goes backwards was resumed, and what came later counts."""
    if len(steps) < 2 or bool((np.diff(steps) > 0).all()):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    newest = np.append(steps[1:] != steps[:-1], True)
    return steps[newest], values[newest]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        path = f"{prefix}{_plain(str(key))}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
