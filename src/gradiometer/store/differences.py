"""In what runs differ: settings, versions and commits beside each other, and which runs are repetitions of one another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gradiometer.errors import UnknownName

__all__ = [
    "BY_NAME",
    "BY_SEED",
    "UNGROUPED",
    "Difference",
    "Differences",
    "differences",
    "grouped",
    "groupings",
    "usual_grouping",
]

UNGROUPED, BY_SEED, BY_NAME = "none", "seed", "name"
CONFIG = "config"
Facts = Mapping[str, Any]

GROUPS = {"config": CONFIG, "seed": CONFIG, "versions": "versions", "git": "git", "meter": "meter"}
MACHINE = ("hardware", "platform", "python", "parameter_dtype")
NOT_COMPARED = ("started", "schema_version", "cwd", "imported")
"""Differ between any two runs, or say how a log was read."""
OWN = re.compile(
    r"seeds?|\w+_seed|run|(run|exp|experiment)_?(name|id)|name|group|(output|log|logging|save|run|default_local)_?(dir|path)"
    r"|tensorboard_log|wandb_\w+",
    re.IGNORECASE,
)
"""Settings that two repetitions of one experiment may differ in: the seed, and where the run is kept."""
NUMBER = re.compile(r"[-_. ]*\d+$")
MOST_SAID, MOST_LISTED = 3, 12


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
    """What runs can be grouped by: nothing, the seed, their names, and each setting that several of them share."""
    shared = [
        _option(row.name)
        for row in found.differs
        if row.group == CONFIG and len({row.values.get(run) for run in facts}) < len(facts)
    ]
    return [UNGROUPED, BY_SEED, BY_NAME, *shared]


def usual_grouping(facts: Mapping[str, Facts], found: Differences) -> str:
    """By seed where that puts two runs together, else not at all."""
    return BY_SEED if any(len(runs) > 1 for runs in grouped(facts, BY_SEED, found).values()) else UNGROUPED


def grouped(facts: Mapping[str, Facts], by: str, found: Differences) -> dict[str, list[str]]:
    """The runs by the name of their group, in order; a run that belongs to no other is a group of its own."""
    if by == UNGROUPED:
        return {run: [run] for run in facts}
    if by == BY_SEED:
        return _repetitions(facts)
    if by == BY_NAME:
        return _collected((stem(run), run) for run in facts)
    name = by.removeprefix(f"{CONFIG}.")
    row = next((row for row in found.differs if row.group == CONFIG and row.name in (by, name)), None)
    if row is None:
        known = groupings(facts, found)
        more = ", ..." if len(known) > MOST_LISTED else ""
        raise UnknownName("grouping", by, known, hint=f"(there are {', '.join(known[:MOST_LISTED])}{more})")
    return _collected(
        (f"{row.name} = {row.values[run]}" if run in row.values else f"{row.name} not set", run) for run in facts
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
    """Runs of one script whose config is the same but for the seed. Who wrote no config down has no known repetition."""
    recipes = {run: _recipe(known) for run, known in facts.items()}
    alike = list(_collected((json.dumps(recipe) if recipe else run, run) for run, recipe in recipes.items()).values())
    stems = [{stem(run) for run in runs} for runs in alike if len(runs) > 1]
    by_name = all(len(names) == 1 for names in stems) and len(set.union(set(), *stems)) == len(stems)
    several = [recipes[runs[0]] for runs in alike if len(runs) > 1]
    named: dict[str, list[str]] = {}
    for runs in alike:
        name = runs[0] if len(runs) == 1 else stem(runs[0]) if by_name else _told(recipes[runs[0]], several)
        while name in named:
            name += " (another)"
        named[name] = runs
    return named


def _recipe(known: Facts) -> dict[str, str]:
    config = known.get("config")
    if not isinstance(config, Mapping) or not config:
        return {}
    kept = {name: value for name, value in _leaves(config) if not OWN.fullmatch(name.rpartition(".")[2])}
    return {" script": PurePath(str(known.get("script", ""))).name} | dict(sorted(kept.items()))


def _told(recipe: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> str:
    """What sets one recipe apart from the others."""
    own = [f"{name.strip()} = {value}" for name, value in recipe.items() if any(o.get(name) != value for o in others)]
    return ", ".join(own[:MOST_SAID]) + (", ..." if len(own) > MOST_SAID else "") or "same config"


def _settings(facts: Facts) -> dict[str, dict[str, str]]:
    """By group and dotted name, as text."""
    found: dict[str, dict[str, str]] = {}
    for key, value in facts.items():
        if key in NOT_COMPARED or (key in ("argv", "script") and facts.get("config")):
            continue
        group = GROUPS.get(key) or ("machine" if key in MACHINE else "start")
        named = _leaves(value) if isinstance(value, Mapping) and key in GROUPS else _leaves({key: value})
        for name, text in named:
            found.setdefault(group, {}).setdefault(name, text)
    return dict(sorted(found.items(), key=lambda pair: pair[0] != CONFIG))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
