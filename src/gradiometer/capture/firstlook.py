"""The part of an audit that costs nothing, done by the meter at its first step: is every trained parameter stepped, once?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradiometer.capture.roster import Roster
from gradiometer.capture.rounds import Round

__all__ = ["first_look"]

NAMED = 5  # parameters a message names


def first_look(roster: Roster, current: Round) -> dict[str, Any]:
    """Checks in the form of `gm.audit`: parameters with a gradient that no optimizer holds, or that two of them hold."""
    orphans = [roster.names[i] for i in sorted(current.captured - roster.trained)]
    twice = [roster.names[i] for i in roster.held_twice]
    return {
        "checks": [
            # Another optimizer may hold them, one that watch() was not given: so this is no proof.
            _check(
                "not-in-optimizer", orphans, "get a gradient and are in no optimizer that watch() was given", "warn"
            ),
            _check("in-two-optimizers", twice, "are stepped by two optimizers", "warn"),
        ]
    }


def _check(id: str, names: Sequence[str], what: str, severity: str) -> dict[str, Any]:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    message = f"{len(names)} parameters {what}: {', '.join(names[:NAMED])}{more}" if names else f"no parameters {what}"
    fix = ["Give the optimizer all parameters you train, each to one optimizer only."] if names else []
    state = "failed" if names else "ok"
    return {
        "id": id,
        "state": state,
        "severity": severity,
        "message": message,
        "numbers": {"count": len(names)},
        "fix": fix,
    }
