"""From a question to the JSON of a view; with a cursor, only to what is new in it.

The cursor is `<layout>.<words>.<pictures>.<last steps>`: digests (of pictures one a chart) and,
run-length coded, the last step of each line in the order the view took them. The server keeps
nothing about its readers, so a tick costs no more with fifty of them. When the layout is another
one (a new series, a resumed run) the whole view is sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gradiometer.charts.model import Chart, Empty, Line, Points
from gradiometer.dashboard.bare import bare_tabs
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query
from gradiometer.dashboard.request import OpenRun, PointsLater, ViewRequest
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.shape import Verdict, View
from gradiometer.dashboard.views import VIEWS
from gradiometer.errors import UnknownName
from gradiometer.store.database import FIRST_STEP, LAST_STEP
from gradiometer.store.strictjson import to_json

__all__ = ["answer", "encode"]

WORDS = ("header", "verdicts", "answers", "findings", "controls", "facts", "empty")
PICTURE_BYTES = 3
NO_RUN = Empty(
    title="No runs here yet",
    cause="The served folder contains no run.db and no readable log.",
    fix="Start a training with the meter, or try the demo; the page updates automatically.",
    code="gradiometer demo",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What the page has."""

    layout: str
    words: str
    pictures: str
    lasts: tuple[int | None, ...]

    def __str__(self) -> str:
        runs = ((last, len(list(group))) for last, group in groupby(self.lasts))
        coded = "_".join(f"{'' if last is None else last}x{count}" for last, count in runs)
        return f"{self.layout}.{self.words}.{self.pictures}.{coded}"


def answer(index: RunIndex, diagnoses: Diagnoses, name: str, query: Query) -> View:
    """A view of the runs that are asked for; what came since `query.after` when that still fits."""
    if name not in VIEWS:
        raise UnknownName("view", name, VIEWS, hint=f"(there are {', '.join(VIEWS)})")
    if not query.runs and not index.ids():
        return View(view=name, title=name.capitalize(), runs=(), empty=NO_RUN)
    had = _read(query.after)
    if had is not None:
        view, now = _make(index, diagnoses, name, query, had.lasts)
        if now.layout == had.layout:
            return _difference(view, had, now)
    view, now = _make(index, diagnoses, name, query, ())
    return replace(view, cursor=str(now))


def encode(content: Any) -> bytes:
    """Strict JSON, quickly: dataclasses as objects, long lists of numbers untouched."""
    try:
        return json.dumps(content, default=_fields, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # a NaN that nobody spelled out: slowly, then
        return to_json(content).encode()


def _make(
    index: RunIndex, diagnoses: Diagnoses, name: str, query: Query, after: Sequence[int | None]
) -> tuple[View, Cursor]:
    with ViewRequest(index, diagnoses, query, after) as request:
        made = VIEWS[name](request)
        wanted = {chart.section for chart in made.charts if not chart.fold}
        wanted |= {chart.section for chart in made.charts if query.opens(chart.section)}
        charts = tuple(_sent(chart, chart.section in wanted) for chart in made.charts)
        view = replace(made, charts=charts, bare=bare_tabs(request))
        asked = name, replace(query, after="")
        runs = [_beginning(run) for run in request.runs]
        layout = _digest([asked, runs, [_outline(chart) for chart in view.charts]])
        return view, Cursor(
            layout="" if _went_back(request, after) else layout,
            words=_digest([_wording(getattr(view, part)) for part in WORDS]),
            pictures="".join(_digest(_picture(chart), PICTURE_BYTES) for chart in view.charts),
            lasts=tuple(request.lasts),
        )


NO_POINTS = Points(steps=(), values=())


def _sent(chart: Chart, wanted: bool) -> Chart:
    """With its numbers; one in a closed section without them, which are then not even read."""
    if wanted or chart.empty is not None:
        return replace(chart, lines=[_read_now(line) for line in chart.lines])
    lines = [replace(line, points=NO_POINTS) for line in chart.lines]
    return replace(chart, lines=lines, bars=(), marks=(), matrix=None, table=None, later=True)


def _read_now(line: Line) -> Line:
    points = line.points
    return replace(line, points=points.read()) if isinstance(points, PointsLater) else line


def _beginning(run: OpenRun) -> Any:
    """Changes when what was told no longer holds: a new run under an old name, or a resumed one."""
    imported = run.log.facts.get("imported")
    returns = imported.get("returns") if isinstance(imported, Mapping) else None
    return run.id, run.log.facts.get("started"), len(run.log.events("resumed")), returns


def _went_back(request: ViewRequest, after: Sequence[int | None]) -> bool:
    """Whether the page has steps that a run no longer has, as of a log that was written anew."""
    newest = {run.id: run.log.newest_step for run in request.runs}
    ends = ((last, newest.get(line.run)) for line, last in zip(request.lines, after, strict=False))
    return any(last is not None and end is not None and last > end for last, end in ends)


def _difference(view: View, had: Cursor, now: Cursor) -> View:
    size = 2 * PICTURE_BYTES
    charts = [
        replace(chart, lines=[line for line in chart.lines if line.points.steps], info=())
        for place, chart in enumerate(view.charts)
        if any(line.points.steps for line in chart.lines)
        or had.pictures[place * size : (place + 1) * size]
        != now.pictures[place * size : (place + 1) * size]
    ]
    parts = WORDS if had.words != now.words else ()
    left_out: dict[str, Any] = {part: () for part in WORDS if part not in parts and part != "empty"}
    return replace(view, charts=charts, cursor=str(now), delta=True, parts=parts, **left_out)


def _outline(chart: Chart) -> Any:
    lines = [(line.run, line.name, line.label, line.role) for line in chart.lines]
    return chart.id, chart.kind, lines


def _picture(chart: Chart) -> Any:
    return replace(chart, lines=())


def _wording(part: Any) -> Any:
    """What the reader would notice: how far the doctor has read is not a change of what it says."""
    if isinstance(part, Sequence) and part and isinstance(part[0], Verdict):
        return [replace(verdict, step=None) for verdict in part]
    return part


def _read(text: str) -> Cursor | None:
    """None for no cursor, and for one that is not ours: then the whole view is the right answer."""
    parts = text.split(".")
    if len(parts) != 4 or not re.fullmatch(
        r"((-?\d{0,19}x\d{1,6})(_-?\d{0,19}x\d{1,6})*)?", parts[3]
    ):
        return None
    lasts: list[int | None] = []
    for piece in filter(None, parts[3].split("_")):
        last, _, count = piece.partition("x")
        if len(lasts) + int(count) > 100_000 or last == "-":
            return None
        step = int(last) if last else None
        if step is not None and not FIRST_STEP <= step <= LAST_STEP:
            return None
        lasts += [step] * int(count)
    return Cursor(layout=parts[0], words=parts[1], pictures=parts[2], lasts=tuple(lasts))


def _digest(content: Any, size: int = 6) -> str:
    return hashlib.blake2b(encode(content), digest_size=size).hexdigest()


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | frozenset | set):
        return list(value)
    item = getattr(value, "tolist", None)  # numpy's scalars and arrays
    return item() if item is not None else str(value)
