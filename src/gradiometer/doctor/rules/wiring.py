"""Wiring: is what is trained what was meant? Each of these ids is served twice by one rule, from the log and from the audit.

`wired("dead-term")` registers a rule that looks at the log and reads, besides, the checks of that id in the tables `audit` of
the run ({"checks": [{"id", "state", "severity", "basis", "message", "numbers", "fix", "block"}]}). A failed check is proof
unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from gradiometer.doctor.chart import Chart
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.records import Basis, Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["audited", "wired"]

Judge = Callable[[Chart], Verdict]

ALSO: dict[str, tuple[str, ...]] = {"not-in-optimizer": ("in-two-optimizers",)}
"""Checks of the audit that have no finding of their own, by the finding they belong to."""

SUBJECTS = ("term", "block", "parameter")
"""Names in the numbers of a check that say what it is about."""


def wired(id: str) -> Callable[[Judge], Judge]:
    """Register the decorated function as the rule of this id, joined with what the audit says about it."""

    def register(judge: Judge) -> Judge:
        def both(chart: Chart) -> Verdict:
            return _joined(id, judge(chart), chart)

        both.__doc__ = judge.__doc__
        return rule(id)(both)

    return register


def audited(chart: Chart, id: str) -> list[Finding]:
    """The failed checks of that id as findings."""
    return [_finding(id, step, check) for step, check in _failed(chart, id)]


def _joined(id: str, seen: Verdict, chart: Chart) -> Verdict:
    failed = _failed(chart, id)
    if isinstance(seen, Skipped):
        passed = any(check.get("state") == "ok" for _, check in _checks(chart, id))
        return [_finding(id, step, check) for step, check in failed] or (None if passed else seen)
    logged = [seen] if isinstance(seen, Finding) else list(seen or ())
    return [*logged, *(_finding(id, step, check) for step, check in failed if not _said(check, logged))]


def _said(check: Mapping[str, Any], logged: list[Finding]) -> bool:
    """Whether the log told the same already: about the same subject, or about whatever where the check names none."""
    numbers = _numbers(check)
    named = [check.get("block"), *(numbers.get(name) for name in SUBJECTS)]
    subjects = [name for name in named if isinstance(name, str)]
    told = " ".join(f"{finding.title} {finding.block!r}" for finding in logged)
    return bool(logged) and all(repr(subject) in told for subject in subjects)


def _failed(chart: Chart, id: str) -> list[tuple[int, Mapping[str, Any]]]:
    return [(step, check) for step, check in _checks(chart, id) if check.get("state") == "failed"]


def _checks(chart: Chart, id: str) -> list[tuple[int, Mapping[str, Any]]]:
    """The checks of an id with their step; those of a newer audit replace the older ones."""
    found: list[tuple[int, Mapping[str, Any]]] = []
    for table in chart.run.tables("audit") if "audit" in chart.run.table_names() else ():
        content = table.content
        listed = content.get("checks") if isinstance(content, Mapping) else None
        checks = [check for check in listed if isinstance(check, Mapping)] if isinstance(listed, list) else []
        mine = [(table.step, check) for check in checks if check.get("id") in (id, *ALSO.get(id, ()))]
        found = mine or found
    return found


def _finding(id: str, step: int, check: Mapping[str, Any]) -> Finding:
    numbers = _numbers(check)
    message = str(check.get("message") or f"the check {id} of the audit failed").strip().rstrip(".")
    fix, block = check.get("fix"), check.get("block", numbers.get("block"))
    return Finding(
        id=id,
        title=message[:1].upper() + message[1:],
        severity=next((known for known in get_args(Severity) if known == check.get("severity")), "warn"),
        basis=next((known for known in get_args(Basis) if known == check.get("basis")), "proved"),
        since_step=step,
        block=block if isinstance(block, str) else None,
        evidence=(Evidence(series="audit", reading=_reading(message, numbers), first_step=step, last_step=step),),
        cause=str(check.get("cause") or "Seen by the audit, on a batch held still: no statistics are needed for it."),
        fix=tuple(str(line) for line in fix)
        if isinstance(fix, Iterable) and not isinstance(fix, str | Mapping)
        else (),
        confirm="Run gm.audit again with the same arguments after the change: this check must pass.",
    )


def _numbers(check: Mapping[str, Any]) -> Mapping[str, Any]:
    numbers = check.get("numbers")
    return numbers if isinstance(numbers, Mapping) else {}


def _reading(message: str, numbers: Mapping[str, Any]) -> str:
    shown = [
        f"{name} {fmt(value) if isinstance(value, float) else value}"
        for name, value in numbers.items()
        if isinstance(value, int | float | str)
    ]
    return f"{message} ({', '.join(shown)})" if shown else message
