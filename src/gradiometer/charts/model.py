"""What a chart is: all that the page draws of it, and what a figure is drawn from.

A chart is decided down to the last label before anybody draws it. Numbers are as the run has them:
a missing value is absent or null, NaN and the infinities are the strings "NaN", "Infinity" and
"-Infinity".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradiometer.charts.drawing import Drawing
from gradiometer.metrics import resolve

__all__ = [
    "Axis",
    "Bars",
    "Chart",
    "Dots",
    "Empty",
    "Info",
    "Level",
    "Line",
    "Matrix",
    "Number",
    "Onset",
    "Parallel",
    "ParallelAxis",
    "Points",
    "Scale",
    "Severity",
    "Span",
    "TableOf",
    "axis_of",
    "info_of",
]

Number = float | int | str | None
Scale = Literal["linear", "log"]
Severity = Literal["info", "warn", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A series, or as much of it as travels. Where it was thinned, a point stands for a bucket:
    `values` are means, `low` and `high` its extremes, so no spike is lost; `steps` are the last
    steps of the buckets.
    """

    steps: Sequence[int]
    values: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    x: Sequence[Number] | None = None
    """Where each point lies on the asked axis; null when that is the step."""
    nans: Sequence[int] = ()
    """Last steps of the buckets (or the steps) that hold a NaN or an Inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series of a run: a curve of a chart of kind `lines`, or a row of one of kind `map`."""

    run: str
    """The id of the run."""
    name: str
    """The series in the run's file."""
    label: str
    role: str = ""
    """What it is among its like, for colour and dash: raw, clipped, expert:0:top, term:policy;
    empty: the run's colour."""
    key: str = ""
    """What a click on it puts into the URL, where the chart has `pick`."""
    points: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value to compare with, and what it means."""

    value: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Steps worth looking at. On an axis that is not the step the page leaves it out."""

    first: int
    last: int | None
    """null: to the end."""
    label: str
    severity: Severity | Literal["fine"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """Something that began at a step and holds since then: a lane of its own below the lines. Like
    a span it is left out on an axis that is not the step."""

    step: int
    label: str
    note: str = ""
    """What to say on hover."""
    severity: Severity = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A title, a scale, and fixed ends where they mean something."""

    title: str = ""
    scale: Scale = "linear"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One colour of a bar chart: a value for each category, with intervals where there are any."""

    label: str
    role: str = ""
    categories: Sequence[str]
    values: Sequence[Number]
    low: Sequence[Number] | None = None
    """The interval's ends, not distances."""
    high: Sequence[Number] | None = None
    notes: Sequence[str] | None = None
    """What to say on hover, for each."""
    significant: Sequence[bool] | None = None
    """Whether a test tells each from chance; null where none was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points with or without intervals, joined or not: clouds of replicates, curves."""

    label: str
    role: str = ""
    run: str = ""
    x: Sequence[Number | str]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    notes: Sequence[str] | None = None
    joined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Numbers by row and column: cosines between terms, a histogram over time, layer × expert."""

    rows: Sequence[str]
    columns: Sequence[str | float | int]
    cells: Sequence[Sequence[Number]]
    notes: Sequence[Sequence[str]] | None = None
    low: float | None = None
    high: float | None = None
    scale: Scale = "linear"
    colours: Literal["sequential", "diverging", "health"] = "sequential"
    written: bool = False
    """Whether the numbers are written into the cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOf:
    """A table; cells are text or numbers."""

    columns: Sequence[str]
    cells: Sequence[Sequence[Number]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelAxis:
    """One setting of several runs."""

    name: str
    scale: Scale = "linear"
    names: Sequence[str] = ()
    """Of a setting that is no number: `values` are places in it."""
    values: Sequence[Number]
    """For each run; null where it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Runs as lines through their settings, coloured by their outcome."""

    runs: Sequence[str]
    labels: Sequence[str]
    axes: Sequence[ParallelAxis]
    outcome: str
    lower: bool
    """Whether less is better."""
    values: Sequence[Number]
    """The outcome of each run; null where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What ⓘ says, from the catalogue."""

    name: str
    meaning: str
    unit: str = ""
    healthy: str = ""
    source: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """Why there is nothing, and how there would be something."""

    title: str
    cause: str
    fix: str
    code: str = ""
    """Lines to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture. Of `lines`, `bars`, `marks`, `matrix`, ... it has what its kind needs."""

    id: str
    """Stable: it names the chart in links and exported files."""
    kind: Literal["lines", "map", "bars", "marks", "matrix", "table", "drawing", "parallel"]
    title: str
    section: str = ""
    subtitle: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    lines: Sequence[Line] = ()
    levels: Sequence[Level] = ()
    spans: Sequence[Span] = ()
    onsets: Sequence[Onset] = ()
    """In the order in which they came."""
    reduce: Literal["max", "min", "mean"] = "max"
    """Of a map: which of a bucket's numbers is its colour."""
    colours: Literal["sequential", "diverging", "health"] = "sequential"
    bars: Sequence[Bars] = ()
    marks: Sequence[Dots] = ()
    matrix: Matrix | None = None
    table: TableOf | None = None
    drawing: Drawing | None = None
    """With the numbers of it in `table`."""
    parallel: Parallel | None = None
    info: Sequence[Info] = ()
    empty: Empty | None = None
    wide: bool = False
    """Whether it takes the whole row."""
    fold: bool = False
    """Whether its section is closed until the reader opens it."""
    later: bool = False
    """Whether its numbers were left out, because its section is closed."""
    pick: str = ""
    """A parameter of the URL that a click on a row sets to the row's key."""


def axis_of(name: str, *, low: float | None = None, high: float | None = None) -> Axis:
    """The axis of a series' values: its unit and its scale."""
    known = resolve(name)
    if known is None:
        return Axis(low=low, high=high)
    metric, alias = known
    signed = alias is not None and alias.estimator == "k1"  # log p/q of samples, often below zero
    scale: Scale = "linear" if signed else metric.scale
    return Axis(title="" if metric.unit == "1" else metric.unit, scale=scale, low=low, high=high)


def info_of(*names: str) -> tuple[Info, ...]:
    """What the catalogue says about metrics or series, each entry once."""
    found = {known[0].name: known[0] for name in names if (known := resolve(name))}
    return tuple(
        Info(
            name=metric.name,
            meaning=metric.meaning,
            unit=metric.unit,
            healthy=metric.healthy,
            source=metric.source,
            remedy=metric.remedy,
        )
        for metric in found.values()
    )
