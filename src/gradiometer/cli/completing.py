"""What the shell offers behind a verb: runs, logs, labs, metrics. Loaded in full only when it asks.

Where nothing is offered the shell completes file names, as always.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["labs", "metrics", "names_that_begin", "runs"]

MOST_FOLDERS = 200
"""Looked into at each level: somebody waits with a finger on the key."""


def runs(incomplete: str) -> list[str]:
    """The runs and logs below the folder that is typed so far."""
    from gradiometer.store.importers import logs_below

    typed = incomplete[: incomplete.rfind("/") + 1]
    folder = Path(typed or ".")
    return names_that_begin(
        (typed + path.relative_to(folder).as_posix() for path in logs_below(folder, MOST_FOLDERS)),
        incomplete,
    )


def labs(incomplete: str) -> list[str]:
    """The labs, where they are installed."""
    from gradiometer.cli.labs import installed

    if not installed():
        return []
    from gradiometer_labs import LABS

    return names_that_begin(LABS, incomplete)


def metrics(incomplete: str) -> list[str]:
    """The names of the catalogue that a shell takes as they are, without a place to fill in."""
    from gradiometer.metrics import CATALOGUE

    return names_that_begin((name for name in CATALOGUE if "<" not in name), incomplete)


def names_that_begin(names: Iterable[str], incomplete: str) -> list[str]:
    """Those that go on from what is typed so far, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))
