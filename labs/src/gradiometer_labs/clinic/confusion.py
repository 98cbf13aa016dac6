"""What was expected against what was said: the confusion matrix of a clinic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gradiometer.plots.style import GREY, INK, headline, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_confusion"]

HEALTHY, NOTHING = "healthy", "nothing"
CELL = 0.17
"""Inches of a cell: one digit, and a long name beside it."""


def draw_confusion(counts: Mapping[str, Mapping[str, int]]) -> Figure:
    """Rows: the finding that names the fault. Columns: what the doctor said first. Shares of a row
    by colour, counts in it."""
    rows = sorted(counts, key=lambda name: (name == HEALTHY, name))
    said = {name for found in counts.values() for name in found}
    columns = [name for name in rows if name in said] + sorted(said - set(rows) - {NOTHING})
    columns += [NOTHING] if NOTHING in said else []
    table = np.array(
        [[counts[row].get(column, 0) for column in columns] for row in rows], dtype=float
    )
    figure = sheet(3.4 + CELL * len(columns), 2.6 + CELL * len(rows))
    ax = figure.subplots()
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    for (y, x), count in np.ndenumerate(table):
        if count:
            right = columns[x] == rows[y] or (rows[y], columns[x]) == (HEALTHY, NOTHING)
            colour = "white" if shares[y, x] > 0.6 else INK if right else "#B03A00"
            ax.text(x, y, f"{int(count)}", ha="center", va="center", fontsize=5.5, color=colour)
    ax.set_xticks(range(len(columns)), columns, rotation=90)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=GREY, linewidth=0.2)
    ax.tick_params(which="both", length=0)
    ax.set_xlabel("said first")
    ax.set_ylabel("expected")
    runs = int(table.sum())
    headline(
        figure,
        "What was expected, and what the doctor said first",
        f"{runs} trainings · shares of a row by colour",
    )
    return figure
