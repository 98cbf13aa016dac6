"""How every figure looks: colours that colour-blind readers can tell apart, small type, fonts that travel with a PDF."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradiometer.errors import MissingExtra, UnknownName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "GREY", "INK", "check_format", "colour", "marker", "render", "sheet", "styled"]

FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 200

# Okabe and Ito's palette, which the common forms of colour blindness leave distinct.
TERM_COLOURS = {"task": "#0072B2", "policy": "#0072B2", "entropy": "#D55E00", "kl": "#009E73", "total": "#000000"}
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
    return TERM_COLOURS.get(name) or OTHER_COLOURS[others.index(name) % len(OTHER_COLOURS) if name in others else 0]


def marker(name: str, names: tuple[str, ...] = ()) -> str:
    """A term's marker, so that a figure printed in grey still tells the terms apart."""
    others = [other for other in names if other not in TERM_MARKERS]
    return TERM_MARKERS.get(name) or OTHER_MARKERS[others.index(name) % len(OTHER_MARKERS) if name in others else 0]


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
