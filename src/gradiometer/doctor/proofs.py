"""Structural facts that the meter wrote down: events with the id of a finding, and the table
`proofs` of what it could check (capture/proofs.py). A rule that is nothing else is data: `fact`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gradiometer.doctor.rule import Draft, Skipped, Verdict, Words, finding, rule
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Evidence, Severity

__all__ = ["BRACES", "Way", "Ways", "fact", "known_events", "looked", "proved_finding", "told"]


def fact(
    id: str, text: str, *, about: str, ways: Ways, each: bool = True, family: str = "wiring"
) -> None:
    """Register what the meter proved as a rule: a finding for each of its events, or for the
    first."""

    def judge(run: RunData) -> Verdict:
        events = _proved(run, id)
        if isinstance(events, Skipped):
            return events
        chosen = events if each else events[:1]
        return [_said(ways, run, event) for event in chosen]

    judge.__doc__ = about
    rule(id, text, family=family)(judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a fact is said."""

    title: str
    """What the meter noted stands in its braces: {parameter}, {place}, {message}."""
    fix: tuple[str, ...] = ()
    words: Words | str | None = None
    """These two instead of the rule's."""
    severity: Severity = "critical"
    block: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    """For the braces of the words."""


Ways: TypeAlias = Way | Mapping[str, Way] | Callable[[RunData, Event], Way]
"""One, or by `how` it came about with one called `` for the others, or as a function chooses."""


def told(run: RunData, id: str, ways: Ways, which: slice = slice(None)) -> list[Draft]:
    """The facts of an id as findings; none where nobody has looked."""
    return [_said(ways, run, event) for event in known_events(run, id)[which]]


def _said(ways: Ways, run: RunData, event: Event) -> Draft:
    if isinstance(ways, Mapping):
        ways = ways.get(str(event.detail.get("how"))) or ways[""]
    return proved_finding(event, ways if isinstance(ways, Way) else ways(run, event))


def proved_finding(event: Event, way: Way) -> Draft:
    """A fact as a finding; what the meter wrote down is its evidence."""
    noted = _Noted({**event.detail, "place": _place(event), "message": event.message})
    draft = finding(
        way.title.format_map(noted),
        Evidence(series="proofs", reading=event.message, first_step=event.step),
        severity=way.severity,
        basis="proved",
        since_step=event.step,
        block=way.block,
        words=way.words,
        fix=way.fix,
    )
    return replace(draft, values=way.values)


BRACES = str.maketrans({"{": "{{", "}": "}}"})
"""Of names of the run that are put into a title."""


class _Noted(dict[str, object]):
    def __missing__(self, name: str) -> None:
        """What an older edition did not note."""


def known_events(run: RunData, id: str) -> list[Event]:
    """The facts of an id that still stand; none where nobody has looked."""
    events = _proved(run, id)
    return [] if isinstance(events, Skipped) else events


def looked(run: RunData, id: str) -> bool:
    """Whether the meter could check it, whatever it found."""
    return not isinstance(_proved(run, id), Skipped)


def _proved(run: RunData, id: str) -> list[Event] | Skipped:
    """The same with why there can be none where nobody has looked."""
    events, table = run.events(id), run.table("proofs")
    state = table.get(id) if isinstance(table, dict) else None
    if events and state != "ok":  # a later look may have shown that it is not so
        return events
    if state == "ok" or events:
        return []
    if not isinstance(state, str):
        return Skipped(
            why="the meter reads it off the graph of the loss: gm.watch, gradiometer run"
        )
    return Skipped(why=state.removeprefix("unmeasurable: "))


def _place(event: Event) -> str:
    """`, train.py:41` where the meter knows the line."""
    file, line = event.detail.get("file"), event.detail.get("line")
    if not isinstance(file, str) or not isinstance(line, int):
        return ""
    return f" ({file.replace(chr(92), '/').rpartition('/')[2]}:{line})"
