"""The record of a loss: its parts, what each is multiplied by, and which blocks it reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.rounds import Round, SeenPart
from gradiometer.capture.statistics import Fetched
from gradiometer.capture.termgradients import shortfall
from gradiometer.records import Table

__all__ = ["WiringNotices"]

CHANGED = 0.1
"""Of a coefficient: less is a schedule, and the wiring is the same."""


class WiringNotices:
    """Writes the table `wiring` when the parts of the loss are first known and when they change.

    Parts that were not in a round stay as they were: an actor may be trained less often.
    """

    def __init__(self, put: Callable[[Table], None]) -> None:
        self._put = put
        self._rows: dict[str, dict[str, Any]] = {}

    def note(self, current: Round, fetched: Fetched, blocks: Blocks) -> None:
        """Take in a round whose losses were read."""
        if not current.wiring:
            return
        reached = {} if current.terms is None else current.terms.reached
        changed = False
        for part in current.wiring:
            below = reached.get(f"term/{part.name}", part.reached)
            row, before = _row(part, below, fetched, blocks), self._rows.get(part.name)
            if before is not None and not row["reaches"]:
                row["reaches"] = before["reaches"]  # it was not measured this time
            if before is None or _differs(before, row):
                changed, self._rows[part.name] = True, row
        if changed:
            error = None if current.terms is None else shortfall(current.terms, fetched)
            content = {
                "loss": fetched.scalars.get("wiring/loss"),
                "terms": list(self._rows.values()),
                "additivity_error": error,
                "backward": max(row["backward"] for row in self._rows.values()),
            }
            self._put(Table(step=current.step, name="wiring", content=content))


def _differs(before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a part is another, whatever its value."""
    a, b = before["coefficient"], row["coefficient"]
    moved = (a is None) != (b is None) or (a is not None and abs(a - b) > CHANGED * abs(a))
    same = all(before[name] == row[name] for name in ("role", "alive", "reaches", "backward"))
    return moved or not same


def _row(
    part: SeenPart, reached: Collection[int], fetched: Fetched, blocks: Blocks
) -> dict[str, Any]:
    below = set(reached)
    return {
        "name": part.name,
        "role": part.role,
        "coefficient": part.coefficient,
        "value": fetched.scalars.get(f"wiring/part/{part.name}"),
        "alive": part.alive,
        "reaches": [name for name, held in blocks.named.items() if not below.isdisjoint(held)],
        "named_by": part.named_by,
        "backward": part.backward,
    }
