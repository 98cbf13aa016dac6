"""Structural facts that the meter wrote down: events with the id of a finding, and the table
`proofs` of what it could check (capture/proofs.py)."""

from __future__ import annotations

from dataclasses import replace

from gradiometer.doctor.rule import Draft, Skipped, Words, finding
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Evidence, Severity

__all__ = ["known_events", "place", "proved_events", "proved_finding"]


def proved_events(run: RunData, id: str) -> list[Event] | Skipped:
    """The facts of an id that still stand; why there can be none where nobody has looked."""
    events = run.events(id)
    state = _state(run, id)
    if events and state != "ok":  # a later look may have shown that it is not so
        return events
    if state == "ok" or events:
        return []
    if state is None:
        return Skipped(
            why="the meter reads it off the graph of the loss: gm.watch, gradiometer run"
        )
    return Skipped(why=state.removeprefix("unmeasurable: "))


def known_events(run: RunData, id: str) -> list[Event]:
    """The same for a rule that has more to look at: none where nobody has looked."""
    events = proved_events(run, id)
    return [] if isinstance(events, Skipped) else events


def _state(run: RunData, id: str) -> str | None:
    table = run.table("proofs")
    state = table.get(id) if isinstance(table, dict) else None
    return state if isinstance(state, str) else None


def proved_finding(
    event: Event,
    title: str,
    *,
    severity: Severity = "critical",
    block: str | None = None,
    words: Words | None = None,
    fix: tuple[str, ...] = (),
    **values: str,
) -> Draft:
    """A fact as a finding; what the meter wrote down is its evidence."""
    draft = finding(
        title,
        Evidence(series="proofs", reading=event.message, first_step=event.step),
        severity=severity,
        basis="proved",
        since_step=event.step,
        block=block,
        words=words,
        fix=fix,
    )
    return replace(draft, values=values)


def place(event: Event) -> str:
    """`, train.py:41` where the meter knows the line."""
    file, line = event.detail.get("file"), event.detail.get("line")
    if not isinstance(file, str) or not isinstance(line, int):
        return ""
    return f" ({file.replace(chr(92), '/').rpartition('/')[2]}:{line})"
