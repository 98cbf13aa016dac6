"""Every number the rules compare with: `thresholds.toml`, read once.

    limits = thresholds.group("exploration")
    ... entropy < limits.collapsed * start

A rule reads `limits.collapsed` each time it judges, so that `overridden({"exploration/collapsed":
0.05})` tries another value without touching a file; `clinic --sweep` does nothing else. `value` is
the same by name, for rules that are data.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files

__all__ = [
    "SHARED",
    "THRESHOLDS",
    "Group",
    "Threshold",
    "edition",
    "group",
    "overridden",
    "recorded",
    "value",
]

SHARED = ("signs", "course", "state")
"""Groups that no rule owns: what became of a run is judged by them."""

TRADES = {
    "more": "raising it finds more, and alarms more often",
    "fewer": "raising it alarms less often, and misses more",
    "later": "raising it asks for more measurements: later and surer",
    "fixed": "a convention or a cost; nothing is traded",
}
"""What a threshold trades, by the word in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One number of a rule, why it is that number, and what another one would do."""

    name: str
    """`group/name`; a group is a family of rules, or what all of them share."""
    value: float
    source: str
    trades: str


class Group:
    """The thresholds of one family as attributes: `limits.collapsed`."""

    def __init__(self, name: str, values: Mapping[str, float]) -> None:
        self.__dict__.update(values)
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> float:
        raise AttributeError(f"thresholds.toml has no {name!r} in [{self.__dict__['_name']}]")


def _read() -> dict[str, Threshold]:
    text = files(__package__).joinpath("thresholds.toml").read_text(encoding="utf-8")
    return {
        f"{family}/{name}": Threshold(
            name=f"{family}/{name}", value=number, source=source, trades=TRADES[word]
        )
        for family, numbers in tomllib.loads(text).items()
        for name, (number, word, source) in numbers.items()
    }


THRESHOLDS: Mapping[str, Threshold] = _read()
"""As the file has them, whatever is tried at the moment."""

_GROUPS: dict[str, Group] = {
    family: Group(
        family,
        {
            each.name.partition("/")[2]: each.value
            for each in THRESHOLDS.values()
            if each.name.startswith(f"{family}/")
        },
    )
    for family in dict.fromkeys(name.partition("/")[0] for name in THRESHOLDS)
}
_EDITION = [0]


def group(name: str) -> Group:
    """The thresholds of a family."""
    return _GROUPS[name]


def value(name: str) -> float:
    """The number in force under that name, `group/name`."""
    family, _, own = name.partition("/")
    if name not in THRESHOLDS:
        raise KeyError(f"{name!r} is not in thresholds.toml")
    found: float = getattr(_GROUPS[family], own)
    return found


def edition() -> int:
    """Another number whenever a shared threshold has changed: an outcome that was judged before is
    worth nothing."""
    return _EDITION[0]


@contextmanager
def overridden(others: Mapping[str, float]) -> Iterator[None]:
    """Other values for the thresholds of these names, as long as the block runs."""
    before = {name: value(name) for name in others}
    _set(others)
    try:
        yield
    finally:
        _set(before)


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The names of the thresholds that are read while the block runs."""
    read: set[str] = set()

    class Recording(Group):
        def __getattribute__(self, name: str) -> float:
            held = object.__getattribute__(self, "__dict__")
            if name in held:
                read.add(f"{held['_name']}/{name}")
            found: float = object.__getattribute__(self, name)
            return found

    for each in _GROUPS.values():
        each.__class__ = Recording
    try:
        yield read
    finally:
        for each in _GROUPS.values():
            each.__class__ = Group


def _set(values: Mapping[str, float]) -> None:
    if any(name.partition("/")[0] in SHARED for name in values):
        _EDITION[0] += 1
    for name, new in values.items():
        family, _, own = name.partition("/")
        # a count stays a whole number: it is printed, and slices are made with it
        kept = int(new) if isinstance(THRESHOLDS[name].value, int) else float(new)
        _GROUPS[family].__dict__[own] = kept
