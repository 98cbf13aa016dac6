"""What surrounds the figures of replicates: the sheet, its header, the legend with the caption below, and the looks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradiometer.plots.panels import Reading
from gradiometer.plots.studies import TRACE, Studies
from gradiometer.plots.style import INK, OTHER_COLOURS, TERM_COLOURS, sheet
from gradiometer.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "framed",
    "header",
    "headline",
    "label_numbers",
    "lacks_interval",
    "legend_key",
    "look_of",
    "no_interval_key",
    "shaded",
    "shortened",
    "under",
]

COLOURS = (*(TERM_COLOURS[term] for term in ("task", "entropy", "kl")), *OTHER_COLOURS[:3])
MARKERS = ("o", "s", "^", "v", "P", "h", "D")
"""One more than colours, so that the seventh estimator looks like none before it."""
CAPTION_SIZE, CAPTION_LINE, CAPTION_COLUMNS = 6.6, 0.125, 21
"""Under a figure: points, inches a line, letters an inch."""
MARKS_A_LINE = 4


def framed(width: float, rows: float) -> Figure:
    """Room for the rows, their axis and the header; `under` adds what it needs."""
    figure = sheet(width, 1.1 + max(rows, 0.5))
    engine: Any = figure.get_layout_engine()
    engine.set(wspace=0.06)
    return figure


def header(figure: Figure, found: Studies, title: str, *, intervals: bool = True) -> None:
    """What is shown, of which run, and what it was measured on."""
    replicates = {study.num_replicates for study in found.studies}
    sure = {study.num_units for study in found.studies if study.reading(TRACE).low is not None}
    loc, problem = found.common("num_loc"), found.common("problem")
    parts = [
        f"{problem}{f', {loc} nodes' if loc else ''}" if problem else "",
        counted(found.common("num_instances"), "instance"),
        counted(found.common("num_starts"), "rollout"),
        counted(replicates.pop() if len(replicates) == 1 else None, "replicate"),
        f"{found.common('reduction')} reduction" if found.common("reduction") else "",
        f"intervals over {sure.pop()} units of instances" if intervals and len(sure) == 1 else "",
    ]
    headline(figure, f"{title} · {shortened(found.run)}", " · ".join(part for part in parts if part))


def shortened(name: str) -> str:
    """A run's name as long as a header has room for it."""
    return name if len(name) <= 40 else f"{name[:39]}…"


def headline(figure: Figure, title: str, small: str) -> None:
    """The title, and in small print below it what the figure rests on."""
    width, height = (float(side) for side in figure.get_size_inches())
    lines = textwrap.wrap(small, round(1.05 * CAPTION_COLUMNS * width)) or [""]
    # The blank lines keep the place of the small print.
    figure.suptitle(title + "\n" * len(lines), fontsize=9, fontweight="bold", x=0.01, ha="left")
    figure.text(0.01, 1 - 0.205 / height, "\n".join(lines), ha="left", va="top", fontsize=6.3, color="#5A5A5A")


def under(figure: Figure, marks: Sequence[Any], caption: Sequence[str], *, columns: int | None = None) -> None:
    """The legend and below it the caption: the sheet grows by their height, and the panels keep theirs."""
    width, body = (float(side) for side in figure.get_size_inches())
    columns = columns or (len(marks) if len(marks) <= MARKS_A_LINE else MARKS_A_LINE - 1)
    lines = [line for words in caption for line in textwrap.wrap(words, round(CAPTION_COLUMNS * width))]
    text = CAPTION_LINE * len(lines) + 0.06 if lines else 0.0
    below = text + (0.08 + 0.15 * math.ceil(len(marks) / columns) if marks else 0.0)
    height = body + below
    figure.set_size_inches(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.0, below / height, 1.0, body / height))
    if marks:
        figure.legend(
            handles=list(marks), loc="upper center", bbox_to_anchor=(0.5, below / height), ncols=columns,
            columnspacing=1.4, borderaxespad=0.0,
        )  # fmt: skip
    if lines:
        top = (text - 0.03) / height
        figure.text(0.01, top, "\n".join(lines), ha="left", va="top", fontsize=CAPTION_SIZE, color=INK)


def label_numbers(ax: Axes, words: str, drawn: Sequence[float]) -> None:
    """An axis on which nothing stands has no numbers either."""
    ax.set_xlabel(words)
    if not drawn:
        ax.tick_params(axis="x", bottom=False, labelbottom=False)
        ax.grid(visible=False, axis="x")


def shaded(scale: str) -> str:
    return ", shaded: linear" if scale in ("function", "symlog") else ""


def look_of(found: Studies, row: int) -> dict[str, Any]:
    """An estimator's colour and marker, the same in every figure; a sweep is of one estimator."""
    place = 0 if found.curve is not None else row
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def lacks_interval(reading: Reading) -> bool:
    return reading.value is not None and math.isfinite(reading.value) and reading.low is None


def legend_key(label: str, **look: Any) -> Any:
    from matplotlib.lines import Line2D

    usual: dict[str, Any] = {"linestyle": "", "marker": "o", "color": INK, "markersize": 4}
    return Line2D([], [], label=label, **(usual | look))


def no_interval_key() -> Any:
    return legend_key("no interval: fewer than 4 units", fillstyle="left", markerfacecoloralt="white")
