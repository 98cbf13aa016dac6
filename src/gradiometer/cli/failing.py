"""`--fail-on`: which severities and states make the exit code 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradiometer.doctor.state import STATES
from gradiometer.errors import UnknownName

__all__ = ["FailOn", "fail_on"]

SEVERITIES = ("info", "warn", "critical")
NO_LIMIT = "none"
STATE = "state:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOn:
    """The least severity that fails, if any, and the states that do."""

    severity: str | None = None
    states: frozenset[str] = frozenset()

    def exit_code(self, severities: Iterable[str], states: Iterable[str] = ()) -> int:
        """1 where a severity is at or above the limit, or a state among those named; else 0."""
        least = len(SEVERITIES) if self.severity is None else SEVERITIES.index(self.severity)
        severe = any(SEVERITIES.index(each) >= least for each in severities)
        return int(severe or not self.states.isdisjoint(states))


def fail_on(text: str, *, states: bool = True) -> FailOn:
    """From `warn`, `state:broken`, or several with commas; of two severities the lower counts."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    known = (*SEVERITIES, *(f"{STATE}{state}" for state in STATES if states))
    for word in words:
        if word not in (NO_LIMIT, *known):
            kind = "state" if states and word.startswith(STATE) else "severity"
            hint = f"(there are {', '.join(SEVERITIES)}, or none"
            raise UnknownName(
                kind, word, known, hint=f"{hint}; or {STATE} and a state)" if states else f"{hint})"
            )
    limits = [word for word in words if word in SEVERITIES]
    return FailOn(
        severity=min(limits, key=SEVERITIES.index) if limits else None,
        states=frozenset(word.removeprefix(STATE) for word in words if word.startswith(STATE)),
    )
