"""The one shape of every view: what `/<view>.json` answers. The page draws what it is told here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradiometer.charts.model import Chart, Empty, Severity
from gradiometer.doctor.experts.answers import Tone

__all__ = [
    "Control",
    "ExpertAnswer",
    "Fact",
    "FindingCard",
    "Option",
    "Problem",
    "RunCard",
    "RunList",
    "Verdict",
    "View",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of a control."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the reader may choose on this view. It sets a parameter of the URL, and the view is
    asked anew."""

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
class RunList:
    """What `/runs.json` answers: every run there is, the newest first."""

    root: str
    """The name of the served folder."""
    runs: Sequence[RunCard]
    views: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the doctor says of a run in a sentence."""

    run: str
    state: str
    """The doctor's word for the run, with which `text` begins."""
    text: str
    severity: Literal["fine", "warn", "critical", "unknown"]
    """The colour of the state, not only of the findings: a run that did not learn is not fine."""
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
class ExpertAnswer:
    """A question about experts, answered for a run."""

    run: str
    question: str
    verdict: str
    tone: Tone
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
    answers: Sequence[ExpertAnswer] = ()
    findings: Sequence[FindingCard] = ()
    controls: Sequence[Control] = ()
    charts: Sequence[Chart] = ()
    facts: Sequence[Fact] = ()
    empty: Empty | None = None
    bare: dict[str, str] = field(default_factory=dict)
    """Tabs that have nothing to show of these runs, and what would fill them."""
    cursor: str = ""
    """Give it back as `after=` to get only what came since."""
    delta: bool = False
    """Lines hold only new points; charts in which nothing is new, and all `info`, are left out; of
    the rest only `parts` are given."""
    parts: Sequence[str] = ()
    """Of a delta: which of header, verdicts, answers, findings, controls, facts and empty
    changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The one shape of every error."""

    error: str
    """unknown-run, unknown-view, bad-request, forbidden, unreadable, fault"""
    message: str
    """What, what was found and what to do."""
