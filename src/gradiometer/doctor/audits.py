"""What `gradiometer audit` found, joined with what a rule says of a log: an id is served by both.

A table `audit` holds {"checks": [{"id", "state", "severity", "basis", "message", "numbers", "fix",
"block"}]}. A failed check is proof unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from gradiometer.doctor.rundata import RunData, once
from gradiometer.doctor.signs import mapping
from gradiometer.records import Basis, Evidence, Finding, Severity, Table
from gradiometer.words import fmt

__all__ = ["failed_checks", "is_said", "passed"]

ALSO: dict[str, tuple[str, ...]] = {"not-in-optimizer": ("in-two-optimizers",)}
"""Checks that have no finding of their own, by the finding they belong to."""

SUBJECTS = ("term", "block", "parameter")
"""Names in the numbers of a check that say what it is about."""

Check = Mapping[str, Any]


def failed_checks(run: RunData, id: str) -> list[tuple[Check, Finding]]:
    """The checks of an id that failed, with what each finds."""
    checks = _checks(run, id)
    return [(x, _finding(id, step, x)) for step, x in checks if x.get("state") == "failed"]


def passed(run: RunData, id: str) -> bool:
    """Whether a check of this id was made and holds."""
    return any(check.get("state") == "ok" for _, check in _checks(run, id))


def is_said(check: Check, titles: Iterable[str]) -> bool:
    """Whether the log told the same: of the same subject, or of any where the check names none."""
    numbers, told = mapping(check.get("numbers")), " ".join(titles)
    named = [check.get("block"), *(numbers.get(name) for name in SUBJECTS)]
    return bool(told) and all(repr(name) in told for name in named if isinstance(name, str))


def _checks(run: RunData, id: str) -> list[tuple[int, Check]]:
    """The checks of an id with their step; those of a newer audit replace the older ones."""
    found: list[tuple[int, Check]] = []
    for table in _tables(run):
        given = mapping(table.content).get("checks")
        checks = [mapping(check) for check in given] if isinstance(given, list) else []
        mine = [check for check in checks if check.get("id") in (id, *ALSO.get(id, ()))]
        found = [(table.step, check) for check in mine] or found
    return found


@once
def _tables(run: RunData) -> Sequence[Table]:
    """Asked for by every rule."""
    return run.tables("audit")


def _finding(id: str, step: int, check: Check) -> Finding:
    numbers = mapping(check.get("numbers"))
    message = str(check.get("message") or f"the check {id} of the audit failed").strip().rstrip(".")
    fix, block = check.get("fix"), check.get("block", numbers.get("block"))
    listed = fix if isinstance(fix, Iterable) and not isinstance(fix, str | Mapping) else ()
    read = _reading(message, numbers)
    held_still = "Seen by the audit, on a batch held still: no statistics are needed for it."
    return Finding(
        id=id,
        title=message[:1].upper() + message[1:],
        severity=_known(check.get("severity"), get_args(Severity), "warn"),
        basis=_known(check.get("basis"), get_args(Basis), "proved"),
        since_step=step,
        block=block if isinstance(block, str) else None,
        evidence=(Evidence(series="audit", reading=read, first_step=step, last_step=step),),
        cause=str(check.get("cause") or held_still),
        fix=tuple(map(str, listed)),
        confirm="Run gm.audit again with the same arguments after the change: this check must"
        " pass.",
    )


def _known(given: Any, allowed: tuple[Any, ...], otherwise: Any) -> Any:
    return given if given in allowed else otherwise


def _reading(message: str, numbers: Mapping[str, Any]) -> str:
    shown = [
        f"{name} {fmt(value) if isinstance(value, float) else value}"
        for name, value in numbers.items()
        if isinstance(value, int | float | str)
    ]
    return f"{message} ({', '.join(shown)})" if shown else message
