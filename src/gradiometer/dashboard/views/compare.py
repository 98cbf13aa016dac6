"""The tab Compare: any runs, any of their series, means over repetitions, and the settings they
differ in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gradiometer.charts.model import Axis, Chart, Empty, Line, Number, Points, TableOf, info_of
from gradiometer.dashboard.byte_cache import ByteCache
from gradiometer.dashboard.request import OpenRun, ViewRequest, points_of, spoken
from gradiometer.dashboard.shape import Control, Fact, Option, View
from gradiometer.dashboard.views.series import called
from gradiometer.dashboard.views.sweep import (
    SweepOutcome,
    goal_of,
    outcome_from,
    sweep_charts,
    sweep_words,
)
from gradiometer.maths.ensembles import Ensemble, ensemble
from gradiometer.metrics import resolve
from gradiometer.store.comparison import (
    BY_NAME,
    BY_SEED,
    UNGROUPED,
    ComparedSeries,
    Differences,
    Source,
    chosen,
    differences,
    grouped,
    groupings,
    matching,
    mean_std,
    quantities,
    read,
    usual_grouping,
)
from gradiometer.store.thinning import Floats, Ints, Thinned, bucket_edges, thin, whole
from gradiometer.words import some

__all__ = ["compare"]

MOST_CHARTS = 24
MOST_OPTIONS = 400
FEW, FEWER_POINTS, LEAST_POINTS = 8, 400, 120
"""Up to `FEW` runs have all the points that were asked for; more have at most 400 a line, and fifty
have 160."""
POINTS_IN_ALL = 8_000
"""Of one chart."""
DIGITS = 5
"""Significant ones in the tables: they are sent anew while a run grows."""
SAID = {
    UNGROUPED: "not at all",
    BY_SEED: "runs that differ only in their seed",
    BY_NAME: "name without its number",
}
NOTHING = Empty(
    title="These runs have no data yet",
    cause="Nothing was measured or logged in these runs.",
    fix="Wait for the first measured step, or choose other runs.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A run with where it keeps each quantity."""

    run: OpenRun
    label: str
    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """What of one quantity is known: of the runs, by id, and of the groups of several."""

    quantity: str
    readings: Mapping[str, ComparedSeries]
    groups: Mapping[str, Sequence[str]]


def compare(request: ViewRequest) -> View:
    """Curves of the chosen quantities, means of groups, a table, and settings that differ."""
    members = [
        _Member(run=run, label=called(request, run), sources=quantities(run.names, run.log.facts))
        for run in request.runs
    ]
    by_run = [member.sources for member in members]
    facts = {run.id: run.log.facts for run in request.runs}
    found = differences(facts)
    by = request.query.option("group") or usual_grouping(facts, found)
    groups = grouped(facts, by, found)
    if not any(by_run):
        return View(
            view="compare", title="Compare", runs=list(facts), facts=_facts(found), empty=NOTHING
        )
    match, names = request.query.option("match"), _named(request, by_run)
    wanted = chosen(by_run, match=match, names=names)
    pictures = [_picture(request, members, groups, quantity) for quantity in wanted[:MOST_CHARTS]]
    charts = _told_apart([_chart(request, members, picture) for picture in pictures])
    outcome = _outcome(request, members)
    labels = {member.run.id: member.label for member in members}
    sweep = sweep_charts(labels, found, outcome)
    return View(
        view="compare",
        title="Compare",
        runs=list(facts),
        header=[
            *sweep_words(found, outcome),
            *_header(members, groups, by, found, len(wanted)),
            *_elsewhere(request, groups),
        ],
        controls=_controls(
            by_run, match, names if match else names or wanted, by, groupings(facts, found)
        ),
        charts=[*charts, *sweep, *_group_table(pictures), *_table(members, pictures)],
        facts=_facts(found),
    )


def _outcome(request: ViewRequest, members: Sequence[_Member]) -> SweepOutcome | None:
    goal = goal_of([member.sources for member in members])
    if goal is None:
        return None
    having = [member for member in members if goal in member.sources]
    read_ones = {
        member.run.id: reading_of(request, member.run, member.sources[goal]) for member in having
    }
    readings = {run: reading for run, reading in read_ones.items() if reading is not None}
    return outcome_from(
        goal, {run: (reading.tail, reading.best(goal)) for run, reading in readings.items()}
    )


def _named(request: ViewRequest, by_run: Sequence[Mapping[str, Source]]) -> list[str]:
    """What `metric` asks for: given again and again, or with commas between."""
    there = {key for own in by_run for key in own}
    given = request.query.every("metric")
    parts = [part for text in given for part in ([text] if text in there else text.split(","))]
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _picture(
    request: ViewRequest,
    members: Sequence[_Member],
    groups: Mapping[str, Sequence[str]],
    quantity: str,
) -> _Picture:
    readings = {
        member.run.id: reading
        for member in members
        if quantity in member.sources
        and (reading := reading_of(request, member.run, member.sources[quantity])) is not None
    }
    several = {name: [run for run in runs if run in readings] for name, runs in groups.items()}
    return _Picture(
        quantity=quantity,
        readings=readings,
        groups={name: runs for name, runs in several.items() if len(runs) > 1},
    )


def _chart(request: ViewRequest, members: Sequence[_Member], picture: _Picture) -> Chart:
    quantity = picture.quantity
    known = resolve(quantity)
    axis = (
        Axis(title="" if known is None or known[0].unit == "1" else known[0].unit)
        if known
        else Axis()
    )
    scale = known[0].scale if known else "linear"
    lines, notes = _lines(request, members, picture, log=scale == "log")
    return Chart(
        id="compare-" + re.sub(r"\W+", "-", quantity),
        kind="lines",
        title=quantity,
        subtitle="; ".join([*notes, *_otherwise(members, quantity)]),
        x=Axis(title="step"),
        y=Axis(title=axis.title, scale=scale),
        lines=lines,
        info=info_of(quantity),
    )


def _told_apart(charts: Sequence[Chart]) -> list[Chart]:
    """`a/b` and `a.b` would have one id."""
    taken: Counter[str] = Counter()
    made = []
    for chart in charts:
        taken[chart.id] += 1
        made.append(
            replace(chart, id=f"{chart.id}--{taken[chart.id]}") if taken[chart.id] > 1 else chart
        )
    return made


def _lines(
    request: ViewRequest, members: Sequence[_Member], picture: _Picture, *, log: bool
) -> tuple[list[Line], list[str]]:
    """Members of a group faintly, other runs, then the means; and what to say about means."""
    most = _most(request)
    group_of = {run: f"group:{name}" for name, runs in picture.groups.items() for run in runs}
    having = [member for member in members if picture.quantity in member.sources]
    lines = [
        curve_of(
            request,
            member.run,
            member.sources[picture.quantity],
            member.label,
            most=most,
            role="faint" if member.run.id in group_of else "",
            key=group_of.get(member.run.id, ""),
        )
        for member in sorted(having, key=lambda member: member.run.id not in group_of)
    ]
    notes, open_runs = [], {member.run.id: member.run for member in members}
    for name, runs in picture.groups.items():
        mean = _ensemble(picture, runs)
        if not len(mean.steps):
            notes.append(f"{name}: no mean, its runs share no steps")
            continue
        inside = [open_runs[run] for run in runs]
        label = f"{name}: mean ± std of {mean.count} runs" + (
            ", interpolated" if mean.interpolated else ""
        )
        lines.append(
            mean_of(request, name, inside, picture.quantity, label, mean, most=most, log=log)
        )
    return lines, notes


def _ensemble(picture: _Picture, runs: Sequence[str]) -> Ensemble:
    readings = [picture.readings[run] for run in runs]
    return ensemble([(reading.steps, reading.values) for reading in readings])


def _most(request: ViewRequest) -> int:
    asked, num_runs = request.query.most, len(request.runs)
    return (
        asked
        if num_runs <= FEW
        else max(LEAST_POINTS, min(asked, FEWER_POINTS, POINTS_IN_ALL // num_runs))
    )


def _otherwise(members: Sequence[_Member], quantity: str) -> list[str]:
    """Runs that have it under another name or sign, and how many do not have it."""
    found: dict[str, list[str]] = {}
    for member in members:
        source = member.sources.get(quantity)
        if source is not None and source.series != quantity:
            turned = ", its sign turned" if source.sign < 0 else ""
            estimator = f", estimator {source.estimator}" if source.estimator else ""
            found.setdefault(f"{source.series}{turned}{estimator}", []).append(member.label)
    notes = [
        f"logged as {name}"
        if len(labels) == len(members)
        else f"{some(labels, FEW)} {'logs' if len(labels) == 1 else 'log'} it as {name}"
        for name, labels in found.items()
    ]
    if len(notes) > FEW:
        notes = [f"{sum(map(len, found.values()))} runs log it under another name"]
    without = [member.label for member in members if quantity not in member.sources]
    if without:
        names = f": {', '.join(without)}" if len(without) <= FEW else ""
        notes.append(f"{len(without)} of {len(members)} runs do not have it{names}")
    return notes


def _header(
    members: Sequence[_Member],
    groups: Mapping[str, Sequence[str]],
    by: str,
    found: Differences,
    num_wanted: int,
) -> list[str]:
    lines = [
        (
            f"{len(members)} runs"
            if len(members) > 1
            else "One run: choose more in the picker to compare them."
        )
    ]
    several = {name: runs for name, runs in groups.items() if len(runs) > 1}
    if several:
        sizes = some((f"{name} ({len(runs)})" for name, runs in several.items()), FEW)
        lines = [
            f"{lines[0]}, grouped by {SAID.get(by, by)}: {sizes}.",
            (
                "Bands are mean ± one sample standard deviation over the runs of a group, at steps"
                " that all of them cover."
            ),
        ]
    elif by != UNGROUPED:
        lines.append(f"Grouped by {SAID.get(by, by)}, every run is its own group.")
    if num_wanted > MOST_CHARTS:
        lines.append(
            f"{MOST_CHARTS} of {num_wanted} matching series are drawn: a narrower match shows the"
            " others."
        )
    if len(members) > 1:
        lines.append(_differing(members, found))
    return lines


def _elsewhere(request: ViewRequest, groups: Mapping[str, Sequence[str]]) -> list[str]:
    if request.query.x == "step" or all(len(runs) == 1 for runs in groups.values()):
        return []
    return [
        f"Means are taken at equal steps; on the axis {request.query.x} a mean stands at the mean"
        " of its runs' places."
    ]


def _differing(members: Sequence[_Member], found: Differences) -> str:
    rows = [row for row in found.differs if row.group == "config"]
    config = [row.name for row in rows if row.contested]
    names = f" ({', '.join(config[:FEW])}{', ...' if len(config) > FEW else ''})" if config else ""
    partly = (
        f"{len(rows) - len(config)} are set in some runs only, " if len(rows) > len(config) else ""
    )
    equal = found.equal.get("config", 0)
    said = f"Config: {len(config)} settings differ{names}, {partly}{equal} are equal."
    others, alike = len(found.differs) - len(rows), sum(found.equal.values()) - equal
    if others:
        said += f" Of versions, git and the rest {others} differ, {alike} are equal."
    labels = {member.run.id: member.label for member in members}
    if found.unknown and len(found.unknown) == len(members):
        return "None of these runs has a config."
    unknown = [labels[run] for run in found.unknown]
    return said + (
        f" Without a config: {', '.join(unknown[:FEW])}{', ...' * (len(unknown) > FEW)}."
        if unknown
        else ""
    )


def _controls(
    by_run: Sequence[Mapping[str, Source]],
    match: str,
    names: Sequence[str],
    by: str,
    options: Sequence[str],
) -> list[Control]:
    there = _offered(by_run, match, names)
    num = len({key for own in by_run for key in own})
    return [
        Control(
            kind="text",
            name="match",
            label="Match",
            value=match,
            hint="a regular expression: every series whose name it finds is drawn",
        ),
        Control(
            kind="many",
            name="metric",
            label="Metrics",
            value=",".join(names),
            options=[Option(value=key, label=key) for key in there],
            hint=(
                f"{len(there)} of {num} series; match finds the others" if len(there) < num else ""
            ),
        ),
        Control(
            kind="choice",
            name="group",
            label="Group by",
            value=by,
            options=[Option(value=option, label=SAID.get(option, option)) for option in options],
        ),
    ]


def _offered(by_run: Sequence[Mapping[str, Source]], match: str, names: Sequence[str]) -> list[str]:
    """What can be ticked: all there is, or all that matches; of very many not the single layers."""
    there = sorted({key for own in by_run for key in own})
    offered = matching(match, there) if match else there
    first = sorted(sorted(offered), key=lambda key: "layer." in key)[:MOST_OPTIONS]
    return sorted({*first, *(name for name in names if name in there)})


def _table(members: Sequence[_Member], pictures: Sequence[_Picture]) -> list[Chart]:
    """Runs × quantities: where each ended up, how far it went, and when it was best."""
    cells: list[list[Number]] = []
    for picture in pictures:
        for member in members:
            reading = picture.readings.get(member.run.id)
            if reading is None:
                continue
            best = reading.best(picture.quantity)
            numbers = (reading.last, reading.tail, reading.low, reading.high)
            cells.append(
                [
                    picture.quantity,
                    member.label,
                    *map(_short, numbers),
                    None if best is None else best[1],
                ]
            )
    columns = ("metric", "run", "last", "mean of the last 10 %", "min", "max", "best at step")
    averaged = any(
        not reading.exact for picture in pictures for reading in picture.readings.values()
    )
    subtitle = (
        "Very long series: the mean of the last 10 % is taken from averages of a few steps."
        if averaged
        else ""
    )
    return (
        [_table_chart("compare-summary", "Runs in numbers", subtitle, columns, cells)]
        if cells
        else []
    )


def _group_table(pictures: Sequence[_Picture]) -> list[Chart]:
    cells: list[list[Number]] = []
    for picture in pictures:
        for name, runs in picture.groups.items():
            readings = [picture.readings[run] for run in runs]
            bests = [reading.best(picture.quantity) for reading in readings]
            best = (
                mean_std([found[0] for found in bests if found is not None]) if all(bests) else None
            )
            ends = (
                mean_std([r.last for r in readings]),
                mean_std([r.tail for r in readings]),
                best,
            )
            row = [
                number for pair in ends for number in (map(_short, pair) if pair else (None, None))
            ]
            cells.append([picture.quantity, name, len(runs), *row])
    columns = (
        "metric",
        "group",
        "runs",
        "last",
        "± std",
        "mean of the last 10 %",
        "± std",
        "best",
        "± std",
    )
    subtitle = (
        "Mean and sample standard deviation over the runs of a group, of each run's own number."
    )
    return (
        [_table_chart("compare-groups", "Groups in numbers", subtitle, columns, cells)]
        if cells
        else []
    )


def _table_chart(
    id: str, title: str, subtitle: str, columns: Sequence[str], cells: Sequence[Sequence[Number]]
) -> Chart:
    return Chart(
        id=id,
        kind="table",
        title=title,
        subtitle=subtitle,
        section="In numbers",
        wide=True,
        table=TableOf(columns=columns, cells=cells),
    )


def _short(value: float) -> Number:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{DIGITS}g}")


def _facts(found: Differences) -> list[Fact]:
    return [
        Fact(group=row.group, name=row.name, values=dict(row.values), differs=True)
        for row in found.differs
    ]


KEPT_BYTES = 64 << 20
"""Of series kept between requests."""


def _weight(reading: ComparedSeries | None) -> int:
    if reading is None:
        return 200
    buckets = reading.buckets
    several = () if buckets is None else (buckets.steps, buckets.mean, buckets.low, buckets.high)
    arrays = (reading.steps, reading.values, *several)
    return 400 + sum(int(array.nbytes) for array in arrays)


_KEPT: ByteCache[ComparedSeries | None] = ByteCache(KEPT_BYTES, _weight)


def reading_of(request: ViewRequest, run: OpenRun, source: Source) -> ComparedSeries | None:
    """A quantity of a run within the asked steps, kept until the run's file changes."""
    # The card was read before the run was opened: what is kept is never older than its stamp.
    state = (run.card.changed, run.card.newest_step)
    first, last = request.query.first, request.query.last
    key = (request.index.root, run.id, source.series, source.sign, first, last)
    return _KEPT.get(key, state, lambda: read(run.log, source, first, last))


def curve_of(
    request: ViewRequest,
    run: OpenRun,
    source: Source,
    label: str,
    *,
    most: int,
    role: str = "",
    key: str = "",
) -> Line:
    """A run's own line."""

    def make(after: int | None) -> Line:
        reading = reading_of(request, run, source)
        if reading is None:
            points = Points(steps=[], values=[])
        elif reading.buckets is None or after is None:
            points = _of_read(request, run, reading, most, after)
        else:
            new = points_of(
                run.log,
                source.series,
                request.query,
                most=most,
                after=after,
                axis=partial(request.axis, run),
            )
            points = _signed(new, source.sign)
        return Line(run=run.id, name=source.series, label=label, role=role, key=key, points=points)

    return request.grown(make)


def mean_of(
    request: ViewRequest,
    group: str,
    runs: Sequence[OpenRun],
    quantity: str,
    label: str,
    found: Ensemble,
    *,
    most: int,
    log: bool,
) -> Line:
    """The mean over a group, mean ± std as its band; on a log axis that stays above zero."""

    def make(after: int | None) -> Line:
        new = slice(
            0 if after is None else int(np.searchsorted(found.steps, after, side="right")), None
        )
        low = np.where(found.low > 0, found.low, found.lowest) if log else found.low
        steps, (mean, low, high) = _averaged(
            found.steps[new], [found.mean[new], low[new], found.high[new]], most
        )
        x = None if request.query.x == "step" else spoken(_mean_axis(request, runs, steps))
        points = Points(
            steps=steps.tolist(),
            values=spoken(mean),
            low=spoken(low),
            high=spoken(high),
            x=x,
            nans=steps[~np.isfinite(mean)].tolist(),
        )
        return Line(
            run=f"group:{group}",
            name=quantity,
            label=label,
            role="mean",
            key=f"group:{group}",
            points=points,
        )

    return request.grown(make)


def _of_read(
    request: ViewRequest, run: OpenRun, reading: ComparedSeries, most: int, after: int | None
) -> Points:
    """What `points_of` would have read, from what was read already."""
    new = slice(
        0 if after is None else int(np.searchsorted(reading.steps, after, side="right")), None
    )
    found = _thinned(reading.steps[new], reading.values[new], reading.buckets, most)
    bounds = {} if found.whole else {"low": spoken(found.low), "high": spoken(found.high)}
    return Points(
        steps=found.steps.tolist(),
        values=spoken(found.mean),
        **bounds,
        x=None if request.query.x == "step" else spoken(request.axis(run, found.steps)),
        nans=found.steps[found.broken].tolist(),
    )


def _thinned(steps: Ints, values: Floats, buckets: Thinned | None, most: int) -> Thinned:
    """The points in at most so many buckets; what came in buckets already keeps their extremes."""
    if len(steps) <= most:
        return whole(steps, values) if buckets is None else buckets
    edges = bucket_edges(int(steps[0]), int(steps[-1]), most)
    found = thin(steps, values, edges)
    if buckets is None:
        return found
    low, high, broken = (
        thin(steps, part, edges)
        for part in (buckets.low, buckets.high, buckets.broken.astype(float))
    )
    return replace(found, low=low.low, high=high.high, broken=broken.high > 0)


def _averaged(steps: Ints, columns: Sequence[Floats], most: int) -> tuple[Ints, list[Floats]]:
    """Columns in buckets of steps, each by its mean: single runs show the spikes."""
    if len(steps) <= most:
        return steps, list(columns)
    edges = bucket_edges(int(steps[0]), int(steps[-1]), most)
    found = [thin(steps, column, edges) for column in columns]
    return found[0].steps, [each.mean for each in found]


def _mean_axis(request: ViewRequest, runs: Sequence[OpenRun], steps: Ints) -> Floats:
    """Where a mean lies on an axis: the mean of where its runs lie, NaN where none says."""
    where = np.stack([request.axis(run, steps) for run in runs])
    known = np.isfinite(where)
    mean = np.full(len(steps), np.nan)
    np.divide(
        np.where(known, where, 0.0).sum(axis=0),
        known.sum(axis=0),
        out=mean,
        where=known.any(axis=0),
    )
    return mean


def _signed(points: Points, sign: int) -> Points:
    if sign > 0:
        return points
    low, high = (None if ends is None else _turned(ends) for ends in (points.high, points.low))
    return Points(
        steps=points.steps,
        values=_turned(points.values),
        low=low,
        high=high,
        x=points.x,
        nans=points.nans,
    )


def _turned(values: Sequence[Number]) -> list[Number]:
    words = {"Infinity": "-Infinity", "-Infinity": "Infinity"}
    return [
        words.get(value, value) if isinstance(value, str) else None if value is None else -value
        for value in values
    ]
