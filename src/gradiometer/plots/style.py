"""How every figure looks: colours that colour-blind readers can tell apart, small type, fonts that
travel with a PDF."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradiometer.errors import MissingExtra, UnknownName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FORMATS",
    "GREY",
    "INK",
    "WIDTH",
    "check_format",
    "colour",
    "headline",
    "legend_key",
    "marker",
    "render",
    "sheet",
    "shortened",
    "styled",
    "under",
]

FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 200
WIDTH = 7.0
"""Inches: the text width of a two-column paper."""
CAPTION_SIZE, CAPTION_LINE, CAPTION_COLUMNS = 6.6, 0.125, 21
"""Under a figure: points, inches a line, letters an inch."""
MARKS_A_LINE = 4

# Okabe and Ito's palette, which the common forms of colour blindness leave distinct.
TERM_COLOURS = {
    "task": "#0072B2",
    "policy": "#0072B2",
    "entropy": "#D55E00",
    "kl": "#009E73",
    "total": "#000000",
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
TERM_MARKERS = {"task": "o", "policy": "o", "entropy": "s", "kl": "^", "total": "D"}
OTHER_MARKERS = ("v", "P", "h", "X")
GREY, INK = "#8A8A8A", "#262626"

SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-3, 4),
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.size": 1.5,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "legend.fontsize": 6.8,
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "hatch.color": "#A8A8A8",
    "lines.linewidth": 0.8,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "gradiometer",
    "savefig.dpi": DOTS_PER_INCH,
}


def check_format(name: str) -> str:
    """The format, or an error that lists those there are."""
    wanted = name.lower().removeprefix(".")
    if wanted not in FORMATS:
        raise UnknownName("format", name, FORMATS, hint=f"(there are {', '.join(FORMATS)})")
    return wanted


def colour(name: str, names: tuple[str, ...] = ()) -> str:
    """A term's colour: the same in every figure."""
    others = [other for other in names if other not in TERM_COLOURS]
    return (
        TERM_COLOURS.get(name)
        or OTHER_COLOURS[others.index(name) % len(OTHER_COLOURS) if name in others else 0]
    )


def marker(name: str, names: tuple[str, ...] = ()) -> str:
    """A term's marker, so that a figure printed in grey still tells the terms apart."""
    others = [other for other in names if other not in TERM_MARKERS]
    return (
        TERM_MARKERS.get(name)
        or OTHER_MARKERS[others.index(name) % len(OTHER_MARKERS) if name in others else 0]
    )


@contextmanager
def styled() -> Iterator[None]:
    """Our settings while a figure is made, the user's own again afterwards."""
    try:
        import matplotlib
    except ImportError as problem:
        raise MissingExtra("matplotlib", "plots", "drawing a figure") from problem
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(SETTINGS)
        yield


def sheet(width: float, height: float) -> Figure:
    """An empty figure, in inches, that belongs to nobody's pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def render(figure: Figure, kind: str) -> bytes:
    """The finished file as bytes; the same figure always gives the same bytes."""
    made = io.BytesIO()
    no_date = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    figure.savefig(made, format=kind, metadata=no_date[kind])
    return made.getvalue()


def shortened(name: str) -> str:
    """A run's name as long as a header has room for it."""
    return name if len(name) <= 40 else f"{name[:39]}…"


def headline(figure: Figure, title: str, small: str) -> None:
    """The title, and in small print below it what the figure rests on."""
    width, height = (float(side) for side in figure.get_size_inches())
    lines = textwrap.wrap(small, round(1.05 * CAPTION_COLUMNS * width))
    # The blank lines keep the place of the small print.
    figure.suptitle(title + "\n" * len(lines), fontsize=9, fontweight="bold", x=0.01, ha="left")
    look: dict[str, Any] = {"ha": "left", "va": "top", "fontsize": 6.3, "color": "#5A5A5A"}
    figure.text(0.01, 1 - 0.205 / height, "\n".join(lines), **look)


def under(
    figure: Figure, marks: Sequence[Any], caption: Sequence[str], *, columns: int | None = None
) -> None:
    """The legend and below it the caption: the sheet grows, and the panels keep theirs."""
    width, body = (float(side) for side in figure.get_size_inches())
    columns = columns or (len(marks) if len(marks) <= MARKS_A_LINE else MARKS_A_LINE - 1)
    lines = [
        line for words in caption for line in textwrap.wrap(words, round(CAPTION_COLUMNS * width))
    ]
    text = CAPTION_LINE * len(lines) + 0.06 if lines else 0.0
    below = text + (0.08 + 0.15 * math.ceil(len(marks) / columns) if marks else 0.0)
    height = body + below
    figure.set_size_inches(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.0, below / height, 1.0, body / height))
    if marks:
        figure.legend(
            handles=list(marks),
            loc="upper center",
            bbox_to_anchor=(0.5, below / height),
            ncols=columns,
            columnspacing=1.4,
            borderaxespad=0.0,
        )
    if lines:
        top = (text - 0.03) / height
        figure.text(
            0.01, top, "\n".join(lines), ha="left", va="top", fontsize=CAPTION_SIZE, color=INK
        )


def legend_key(label: str, **look: Any) -> Any:
    """A line of the legend."""
    from matplotlib.lines import Line2D

    usual: dict[str, Any] = {"linestyle": "", "marker": "o", "color": INK, "markersize": 4}
    return Line2D([], [], label=label, **(usual | look))
