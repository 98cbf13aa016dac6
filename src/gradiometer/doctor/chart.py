"""The patient's chart: every series of a run or a log under the name of the catalogue, with its sign and unit put right.

A rule asks for `entropy` and gets it, whether the log calls it `train/entropy_loss` (negative, SB3) or `actor/entropy` (verl).
Nothing of a lab is read here: no name, no fault, no config of ours. The facts a rule may ask for are those any trainer could
have written down (`facts(...)`), looked up by the names people give them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gradiometer import metrics
from gradiometer.records import Event
from gradiometer.store.logs import Log
from gradiometer.store.readable import Floats, Ints
from gradiometer.store.reader import Run

__all__ = ["Chart", "Series"]

NOT_EVIDENCE = ("lab", "fault", "run")
"""Facts no rule may see: which lab this is and which fault it was given would be the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements of one quantity, in the order of their steps, each step once. A NaN is a recorded NaN."""

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


class Chart:
    """Reads a run or a log once, on demand. `max_points` thins long series evenly, for live evaluation."""

    def __init__(self, run: Run | Log, *, since: int | None = None, max_points: int | None = None) -> None:
        self.run = run
        self._since, self._max_points = since, max_points
        self._read: dict[str, Series] = {}
        self._names: dict[str, list[tuple[int, str, dict[str, str], metrics.Alias | None]]] = {}
        self.unknown: list[str] = []
        """Series the catalogue does not know: listed, never dropped in silence."""
        for name in run.names():
            found = metrics.resolve(name)
            if found is None:
                self.unknown.append(name)
                continue
            metric, alias = found
            parts = metrics.parse(metric.name, name) if alias is None else None
            order = -1 if alias is None else metric.aliases.index(alias)
            self._names.setdefault(metric.name, []).append((order, name, parts or {}, alias))

    def get(self, template: str, **parts: str) -> Series | None:
        """The series of a name of the catalogue with these parts; of several origins the one listed first."""
        if template not in metrics.CATALOGUE:
            raise KeyError(f"{template!r} is not in the catalogue")
        wanted = [x for x in self._names.get(template, ()) if all(x[2].get(k) == v for k, v in parts.items())]
        if template == "grad/<block>/norm/raw" and parts.get("block") == "all":  # other trainers log the whole one only
            wanted = wanted or [x for x in self._names.get(template, ()) if x[3] is not None]
        return self._series(template, min(wanted, key=lambda x: x[:2])) if wanted else None

    def every(self, template: str) -> list[Series]:
        """All series of a name with placeholders: one for each block, term, expert, ..."""
        if template not in metrics.CATALOGUE:
            raise KeyError(f"{template!r} is not in the catalogue")
        return [self._series(template, found) for found in sorted(self._names.get(template, ()), key=lambda x: x[:2])]

    def has(self, template: str) -> bool:
        """Whether anything was recorded under that name of the catalogue."""
        return template in self._names

    def first_step(self, name: str) -> int | None:
        """The first step of a series that a rule has read, by the name the run has for it; None of any other."""
        read = self._read.get(name)
        return int(read.steps[0]) if read is not None and len(read) else None

    @property
    def longest(self) -> int:
        """The points of the longest series that a rule has read."""
        return max(map(len, self._read.values()), default=0)

    def events(self, kind: str) -> list[Event]:
        """What the meter noted of that kind; a log of another tool has none."""
        return [event for event in self.run.events(kind) if self._since is None or event.step >= self._since]

    def table(self, name: str) -> Any:
        """The newest table of that name; None when there is none."""
        tables = self.run.tables(name) if name in self.run.table_names() else []
        return tables[-1].content if tables else None

    def fact(self, *names: str) -> Any:
        """The first of these settings that the run wrote down, wherever in its facts; None when none is there.

        Names are compared without case, `-` and `_`; a dotted one (`baseline.momentum`) is the end of a path.
        """
        for wanted in names:
            for path, value in self._settings:
                if path == _plain(wanted) or path.endswith("." + _plain(wanted)):
                    return value
        return None

    @cached_property
    def _settings(self) -> list[tuple[str, Any]]:
        facts = dict(self.run.facts)
        config = facts.pop("config", None)
        held = config if isinstance(config, Mapping) else {}
        settings = list(_leaves(held)) + list(_leaves(facts))
        return [(path, value) for path, value in settings if path.rpartition(".")[2] not in NOT_EVIDENCE]

    @cached_property
    def last_step(self) -> int | None:
        """The newest step of any series."""
        return self.run.newest_step

    def _series(self, template: str, found: tuple[int, str, dict[str, str], metrics.Alias | None]) -> Series:
        _, name, parts, alias = found
        if name not in self._read:
            steps, values = _in_order(*self.run.series(name))
            if self._since is not None:
                steps, values = steps[steps >= self._since], values[steps >= self._since]
            if self._max_points is not None and len(steps) > self._max_points:
                kept = np.unique(np.linspace(0, len(steps) - 1, self._max_points).astype(np.int64))
                steps, values = steps[kept], values[kept]
            self._read[name] = Series(
                name=name,
                metric=metrics.CATALOGUE[template],
                parts=parts,
                steps=steps,
                values=values if alias is None else alias.sign * values,
                estimator="" if alias is None else alias.estimator,
                library="" if alias is None else alias.library,
            )
        return self._read[name]


def _in_order(steps: Ints, values: Floats) -> tuple[Ints, Floats]:
    """By step, each once: a log that goes backwards was resumed, and what came later is what happened."""
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
