"""What was expected against what was said first: the confusion matrix of a clinic, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradiometer.plots.style import GREY, INK, headline, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_confusion"]

HEALTHY, NOTHING = "healthy", "nothing"
ROW = 0.2
"""Inches."""
RIGHT, OTHER = "#0072B2", "#E69F00"
NAMED = 3
"""Wrong findings that are written out beside a bar."""


def draw_confusion(counts: Mapping[str, Mapping[str, int]]) -> Figure:
    """A row for each finding that should come first: the share of trainings where it did, where
    another one did, and where nothing was said; beside it what was said instead."""
    shares = {row: _shares(row, said) for row, said in counts.items()}
    rows = sorted(counts, key=lambda row: (row != HEALTHY, shares[row][0], row))
    figure = sheet(7.0, 1.3 + ROW * len(rows))
    ax = figure.subplots()
    for place, row in enumerate(rows):
        left = 0.0
        for share, colour in zip(shares[row], (RIGHT, OTHER, GREY), strict=True):
            ax.barh(place, share, left=left, color=colour, height=0.72)
            left += share
        ax.text(1.03, place, _instead(row, counts[row]), va="center", fontsize=6, color=INK)
    ax.set_yticks(range(len(rows)), [f"{row} ({sum(counts[row].values())})" for row in rows])
    ax.set_xlim(0, 2.6)  # the words stand behind the bars
    ax.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    ax.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
    headline(
        figure,
        "What was wrong, and what the doctor said first",
        f"{sum(sum(said.values()) for said in counts.values())} trainings · blue: the finding"
        " expected · orange: another one · grey: nothing · beside it: said instead",
    )
    return figure


def _is_right(row: str, said: str) -> bool:
    return said == row or (row, said) == (HEALTHY, NOTHING)


def _shares(row: str, said: Mapping[str, int]) -> tuple[float, float, float]:
    """Right, another finding, nothing."""
    total = sum(said.values())
    right = sum(count for id, count in said.items() if _is_right(row, id)) / total
    silent = said.get(NOTHING, 0) / total if row != HEALTHY else 0.0
    return right, 1 - right - silent, silent


def _instead(row: str, said: Mapping[str, int]) -> str:
    wrong = sorted(
        ((count, id) for id, count in said.items() if not _is_right(row, id)), reverse=True
    )
    words = [f"{id} {count}" for count, id in wrong[:NAMED]]
    more = sum(count for count, _ in wrong[NAMED:])
    return ", ".join([*words, *[f"others {more}"] * bool(more)])
