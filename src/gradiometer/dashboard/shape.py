"""The one shape of every view: what `/<view>.json` answers, and all that the page draws.

A view is decided here, on the server, down to the last label; the page only draws it. Numbers are as the run has them: a
missing value is absent or null, NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "Answer",
    "Axis",
    "Bars",
    "Chart",
    "Control",
    "Empty",
    "Fact",
    "FindingCard",
    "Info",
    "Level",
    "Line",
    "Marks",
    "Matrix",
    "Option",
    "Points",
    "Problem",
    "RunCard",
    "Shelved",
    "Span",
    "TableOf",
    "Verdict",
    "View",
]

Number = float | int | str | None
Scale = Literal["linear", "log"]
Severity = Literal["info", "warn", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A series, or as much of it as travels. Where it was thinned, a point stands for a bucket: `values` are means,
    `low` and `high` its extremes, so no spike is lost; `steps` are the last steps of the buckets."""

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
    """What it is among its like, for colour and dash: raw, clipped, expert:0:top, term:policy; empty: the run's colour."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Points, joined by a line or not, each with an interval or not: clouds of replicates, curves against group size."""

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
    """One picture. Of `lines`, `bars`, `marks`, `matrix` and `table` it has what its kind needs."""

    id: str
    """Stable: it names the chart in links and exported files."""
    kind: Literal["lines", "map", "bars", "marks", "matrix", "table"]
    title: str
    section: str = ""
    subtitle: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    lines: Sequence[Line] = ()
    levels: Sequence[Level] = ()
    spans: Sequence[Span] = ()
    reduce: Literal["max", "min", "mean"] = "max"
    """Of a map: which of a bucket's numbers is its colour."""
    colours: Literal["sequential", "diverging", "health"] = "sequential"
    bars: Sequence[Bars] = ()
    marks: Sequence[Marks] = ()
    matrix: Matrix | None = None
    table: TableOf | None = None
    info: Sequence[Info] = ()
    empty: Empty | None = None
    wide: bool = False
    """Whether it takes the whole row."""
    pick: str = ""
    """A parameter of the URL that a click on a row sets to the row's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of a control."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the reader may choose on this view. It sets a parameter of the URL, and the view is asked anew."""

    kind: Literal["choice", "slider", "many", "text"]
    name: str
    label: str
    value: str
    options: Sequence[Option] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """A run in the picker."""

    id: str
    """Its path below the served folder."""
    name: str
    colour: int
    """Its place in the palette: a run keeps it while later ones come."""
    state: Literal["live", "still", "unreadable"]
    newest_step: int | None
    started: str
    changed: float
    """When its file last changed, in seconds since the epoch."""
    kind: str
    """run, or whose log it is."""
    problem: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelved:
    """What `/runs.json` answers: every run there is, the newest first."""

    root: str
    """The name of the served folder."""
    runs: Sequence[RunCard]
    views: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the doctor says of a run in a sentence."""

    run: str
    text: str
    severity: Literal["fine", "info", "warn", "critical", "unknown"]
    finding: FindingCard | None = None
    """The one to act on first."""
    counts: dict[str, int]
    """Findings by severity."""
    step: int | None = None
    """Up to where the doctor has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCard:
    """A finding, with the charts that show its evidence."""

    run: str
    id: str
    title: str
    severity: Severity
    basis: str
    since_step: int | None
    block: str | None
    evidence: Sequence[dict[str, Any]]
    """series, reading, first_step, last_step"""
    cause: str
    fix: Sequence[str]
    confirm: str
    references: Sequence[str]
    folded: Sequence[str] = ()
    """Consequences, in words."""
    charts: Sequence[str] = ()
    """Ids of charts of this view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question of source 002, answered for a run."""

    run: str
    question: str
    verdict: str
    tone: Literal["good", "bad", "unsure"]
    source_reading: str
    sound_reading: str
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact of a run: a setting, a version, a commit."""

    group: str
    name: str
    values: dict[str, str]
    """By run id."""
    differs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A whole view, or with `delta` only what is new in it."""

    view: str
    title: str
    runs: Sequence[str]
    """The ids of the runs it is about, the one in focus first."""
    header: Sequence[str] = ()
    """Lines above everything."""
    verdicts: Sequence[Verdict] = ()
    answers: Sequence[Answer] = ()
    findings: Sequence[FindingCard] = ()
    controls: Sequence[Control] = ()
    charts: Sequence[Chart] = ()
    facts: Sequence[Fact] = ()
    empty: Empty | None = None
    cursor: str = ""
    """Give it back as `after=` to get only what came since."""
    delta: bool = False
    """Lines hold only new points; charts in which nothing is new, and all `info`, are left out; of the rest only `parts`
    are given."""
    parts: Sequence[str] = ()
    """Of a delta: which of header, verdicts, answers, findings, controls, facts and empty changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The one shape of every error."""

    error: str
    """unknown-run, unknown-view, bad-request, forbidden, unreadable, fault"""
    message: str
    """What, what was found and what to do."""
