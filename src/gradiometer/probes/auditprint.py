"""The audit as text: the reach matrix, then a line for each check, with what to change below a failure."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from gradiometer.probes.auditcheck import Check
from gradiometer.probes.auditreach import Cell

__all__ = ["lines_of", "text", "verdict"]

MARKS = {"ok": "✓", "failed": "✗", "skipped": "–"}
WIDEST, NARROWEST = 120, 60
MOST_BLOCKS = 8


def text(checks: Sequence[Check], reach: Mapping[str, Mapping[str, Cell]]) -> str:
    """Everything, as wide as the terminal."""
    return "\n".join([*_matrix(reach), "", *lines_of(checks), "", verdict(checks)])


def _matrix(reach: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Norms of the terms' gradients on the named blocks, or on the layers where there are no such blocks."""
    blocks = list(next(iter(reach.values())))
    named = [block for block in blocks if not block.startswith("layer.")]
    shown = named if len(named) > 1 else blocks[:MOST_BLOCKS]
    titles = ["gradient of", *(block.removeprefix("layer.") for block in shown)]
    rows = [[term, *(_cell(row[block]) for block in shown)] for term, row in reach.items()]
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    made = [_line(row, widths) for row in [titles, *rows]]
    hidden = len(blocks) - len(shown) if len(named) == 1 else 0
    return [made[0], "─" * len(made[0]), *made[1:], *([f"and {hidden} more layers"] if hidden else [])]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    )


def _cell(cell: Cell) -> str:
    return "no path" if cell.norm is None else "0" if cell.state == "zero" else f"{cell.norm:.3g}"


def lines_of(checks: Iterable[Check]) -> list[str]:
    """A mark, what was looked at, what was found, what to change."""
    listed = list(checks)
    name = max((len(check.name) for check in listed), default=0)
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((100, 24)).columns))
    lines: list[str] = []
    for check in listed:
        head = f"{MARKS[check.state]} {check.name.ljust(name)}  "
        severity = f"{check.severity}: " if check.state == "failed" else "skipped: " if check.state == "skipped" else ""
        lines += _wrapped(head, severity + check.message, width)
        for fix in check.fix:
            lines += _wrapped(" " * (len(head) - 2) + "→ ", fix, width)
    return lines


def _wrapped(head: str, body: str, width: int) -> list[str]:
    room = max(30, width - len(head))
    first, *rest = textwrap.wrap(body, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [head + first, *(" " * len(head) + line for line in rest)]


def verdict(checks: Sequence[Check]) -> str:
    """One line."""
    count = {state: sum(check.state == state for check in checks) for state in MARKS}
    failed = [check for check in checks if check.state == "failed"]
    first = f": begin with {failed[0].id}" if failed else ""
    return f"{count['failed']} failed, {count['ok']} ok, {count['skipped']} skipped{first}"
