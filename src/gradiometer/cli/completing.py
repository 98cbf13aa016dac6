"""What the shell offers behind a verb: runs and logs, labs, and the faults of a lab. Loaded in full only when it asks.

Where nothing is offered the shell completes file names, as always.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

__all__ = ["labs", "metrics", "overrides", "runs"]

MOST_FOLDERS = 200
"""Looked into at each level: somebody waits with a finger on the key."""
FAULT = "fault"


def runs(incomplete: str) -> list[str]:
    """The runs and logs below the folder that is typed so far."""
    from gradiometer.store.folders import logs_below

    typed = incomplete[: incomplete.rfind("/") + 1]
    folder = Path(typed or ".")
    return _begun(
        (typed + path.relative_to(folder).as_posix() for path in logs_below(folder, MOST_FOLDERS)), incomplete
    )


def labs(incomplete: str) -> list[str]:
    """The labs."""
    from gradiometer.labs import LABS

    return _begun(LABS, incomplete)


def metrics(incomplete: str) -> list[str]:
    """The names of the catalogue that a shell takes as they are, without a place to fill in."""
    from gradiometer.metrics import CATALOGUE

    return _begun((name for name in CATALOGUE if "<" not in name), incomplete)


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """The faults of the lab, as `fault=NAME`; bash takes that for three words, and wants the last."""
    from gradiometer.labs.faults import faults_of

    lab, before = ctx.params.get("lab"), ctx.params.get("overrides") or []
    names = [each.name for each in faults_of(str(lab))]
    if before[-2:] == [FAULT, "="] or (before[-1:] == [FAULT] and not incomplete):
        return _begun(names, incomplete)
    return _begun((f"{FAULT}={name}" for name in names), incomplete)


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
