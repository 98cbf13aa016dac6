"""The tab Compare: any runs, any of their series, means over repetitions, and the settings they differ in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradiometer.dashboard.desk import Desk, Open, info_of
from gradiometer.dashboard.shape import Axis, Chart, Control, Empty, Fact, Line, Number, Option, TableOf, View
from gradiometer.dashboard.views.compare_lines import curve_of, mean_of, reading_of
from gradiometer.dashboard.views.series import called
from gradiometer.maths.ensembles import Ensemble, ensemble
from gradiometer.metrics import resolve
from gradiometer.store.comparison import Reading, Source, chosen, mean_std, quantities
from gradiometer.store.differences import (
    BY_NAME,
    BY_SEED,
    UNGROUPED,
    Differences,
    differences,
    grouped,
    groupings,
    usual_grouping,
)
from gradiometer.store.matching import matching

__all__ = ["compare"]

MOST_CHARTS = 24
MOST_OPTIONS = 400
FEW, FEWER_POINTS, LEAST_POINTS = 8, 400, 120
"""Up to `FEW` runs have all the points that were asked for; more have at most 400 a line, and fifty have 160."""
POINTS_IN_ALL = 8_000
"""Of one chart."""
DIGITS = 5
"""Significant ones in the tables: they are sent anew while a run grows."""
SAID = {UNGROUPED: "not at all", BY_SEED: "runs that differ only in their seed", BY_NAME: "name without its number"}
NOTHING = Empty(
    title="These runs hold no series yet",
    cause="Nothing was measured or logged in any of them.",
    fix="Wait for the first measured step, or choose other runs.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A run with where it keeps each quantity."""

    run: Open
    label: str
    book: Mapping[str, Source]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """What of one quantity is known: of the runs, by id, and of the groups of several."""

    quantity: str
    readings: Mapping[str, Reading]
    groups: Mapping[str, Sequence[str]]


def compare(desk: Desk) -> View:
    """Curves of the chosen quantities, with mean and band where runs are grouped; a table of them; settings that differ."""
    members = [_Member(run=run, label=called(desk, run), book=quantities(run.names)) for run in desk.runs]
    books = [member.book for member in members]
    facts = {run.id: run.log.facts for run in desk.runs}
    found = differences(facts)
    by = desk.ask.option("group") or usual_grouping(facts, found)
    groups = grouped(facts, by, found)
    if not any(books):
        return View(view="compare", title="Compare", runs=list(facts), facts=_facts(found), empty=NOTHING)
    match, names = desk.ask.option("match"), _named(desk, books)
    wanted = chosen(books, match=match, names=names)
    pictures = [_picture(desk, members, groups, quantity) for quantity in wanted[:MOST_CHARTS]]
    charts = _told_apart([_chart(desk, members, picture) for picture in pictures])
    return View(
        view="compare",
        title="Compare",
        runs=list(facts),
        header=_header(members, groups, by, found, len(wanted)) + _elsewhere(desk, groups),
        controls=_controls(books, match, names if match else names or wanted, by, groupings(facts, found)),
        charts=[*charts, *_group_table(pictures), *_table(members, pictures)],
        facts=_facts(found),
    )


def _named(desk: Desk, books: Sequence[Mapping[str, Source]]) -> list[str]:
    """What `metric` asks for: given again and again, or with commas between."""
    there = {key for book in books for key in book}
    given = desk.ask.every("metric")
    parts = [part for text in given for part in ([text] if text in there else text.split(","))]
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _picture(desk: Desk, members: Sequence[_Member], groups: Mapping[str, Sequence[str]], quantity: str) -> _Picture:
    readings = {
        member.run.id: reading
        for member in members
        if quantity in member.book and (reading := reading_of(desk, member.run, member.book[quantity])) is not None
    }
    several = {name: [run for run in runs if run in readings] for name, runs in groups.items()}
    return _Picture(
        quantity=quantity, readings=readings, groups={name: runs for name, runs in several.items() if len(runs) > 1}
    )


def _chart(desk: Desk, members: Sequence[_Member], picture: _Picture) -> Chart:
    quantity = picture.quantity
    known = resolve(quantity)
    axis = Axis(title="" if known is None or known[0].unit == "1" else known[0].unit) if known else Axis()
    scale = known[0].scale if known else "linear"
    lines, notes = _lines(desk, members, picture, log=scale == "log")
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
        made.append(replace(chart, id=f"{chart.id}--{taken[chart.id]}") if taken[chart.id] > 1 else chart)
    return made


def _lines(desk: Desk, members: Sequence[_Member], picture: _Picture, *, log: bool) -> tuple[list[Line], list[str]]:
    """Members of a group faintly, runs of their own, and above them the means; with what to say about the means."""
    most = _most(desk)
    group_of = {run: f"group:{name}" for name, runs in picture.groups.items() for run in runs}
    having = [member for member in members if picture.quantity in member.book]
    lines = [
        curve_of(
            desk,
            member.run,
            member.book[picture.quantity],
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
        label = f"{name}: mean ± std of {mean.count} runs" + (", interpolated" if mean.interpolated else "")
        lines.append(mean_of(desk, name, inside, picture.quantity, label, mean, most=most, log=log))
    return lines, notes


def _ensemble(picture: _Picture, runs: Sequence[str]) -> Ensemble:
    readings = [picture.readings[run] for run in runs]
    return ensemble([(reading.steps, reading.values) for reading in readings])


def _most(desk: Desk) -> int:
    asked, num_runs = desk.ask.most, len(desk.runs)
    return asked if num_runs <= FEW else max(LEAST_POINTS, min(asked, FEWER_POINTS, POINTS_IN_ALL // num_runs))


def _otherwise(members: Sequence[_Member], quantity: str) -> list[str]:
    """Runs that have it under another name, with another sign or estimator, and how many do not have it."""
    notes = []
    for member in members:
        source = member.book.get(quantity)
        if source is not None and source.series != quantity:
            turned = ", its sign turned" if source.sign < 0 else ""
            estimator = f", estimator {source.estimator}" if source.estimator else ""
            notes.append(f"{member.label} logs it as {source.series}{turned}{estimator}")
    if len(notes) > FEW:
        notes = [f"{len(notes)} runs log it under another name"]
    without = [member.label for member in members if quantity not in member.book]
    if without:
        names = f": {', '.join(without)}" if len(without) <= FEW else ""
        notes.append(f"{len(without)} of {len(members)} runs do not have it{names}")
    return notes


def _header(
    members: Sequence[_Member], groups: Mapping[str, Sequence[str]], by: str, found: Differences, num_wanted: int
) -> list[str]:
    lines = [f"{len(members)} runs" if len(members) > 1 else "One run: choose more in the picker to compare them."]
    several = {name: runs for name, runs in groups.items() if len(runs) > 1}
    if several:
        sizes = ", ".join(f"{name} ({len(runs)})" for name, runs in list(several.items())[:FEW])
        more = f" and {len(several) - FEW} more" if len(several) > FEW else ""
        lines = [
            f"{lines[0]}, grouped by {SAID.get(by, by)}: {sizes}{more}.",
            "Bands are mean ± one sample standard deviation over the runs of a group, at steps that all of them cover.",
        ]
    elif by != UNGROUPED:
        lines.append(f"Grouped by {SAID.get(by, by)}, every run stands by itself.")
    if num_wanted > MOST_CHARTS:
        lines.append(f"{MOST_CHARTS} of {num_wanted} matching series are drawn: a narrower match shows the others.")
    if len(members) > 1:
        lines.append(_differing(members, found))
    return lines


def _elsewhere(desk: Desk, groups: Mapping[str, Sequence[str]]) -> list[str]:
    if desk.ask.x == "step" or all(len(runs) == 1 for runs in groups.values()):
        return []
    return [f"Means are taken at equal steps; on the axis {desk.ask.x} a mean stands at the mean of its runs' places."]


def _differing(members: Sequence[_Member], found: Differences) -> str:
    rows = [row for row in found.differs if row.group == "config"]
    config = [row.name for row in rows if row.contested]
    names = f" ({', '.join(config[:FEW])}{', ...' if len(config) > FEW else ''})" if config else ""
    partly = f"{len(rows) - len(config)} are set in some runs only, " if len(rows) > len(config) else ""
    equal = found.equal.get("config", 0)
    said = f"Config: {len(config)} settings differ{names}, {partly}{equal} are equal."
    others, alike = len(found.differs) - len(rows), sum(found.equal.values()) - equal
    if others:
        said += f" Of versions, git and the rest {others} differ, {alike} are equal."
    labels = {member.run.id: member.label for member in members}
    if found.unknown and len(found.unknown) == len(members):
        return "None of these runs wrote a config down."
    unknown = [labels[run] for run in found.unknown]
    return said + (f" Without a config: {', '.join(unknown[:FEW])}{', ...' * (len(unknown) > FEW)}." if unknown else "")


def _controls(
    books: Sequence[Mapping[str, Source]], match: str, names: Sequence[str], by: str, options: Sequence[str]
) -> list[Control]:
    there = _offered(books, match, names)
    num = len({key for book in books for key in book})
    return [
        Control(
            kind="text", name="match", label="Match", value=match,
            hint="a regular expression: every series whose name it finds is drawn",
        ),
        Control(
            kind="many", name="metric", label="Metrics", value=",".join(names),
            options=[Option(value=key, label=key) for key in there],
            hint=f"{len(there)} of {num} series; match finds the others" if len(there) < num else "",
        ),
        Control(
            kind="choice", name="group", label="Group by", value=by,
            options=[Option(value=option, label=SAID.get(option, option)) for option in options],
        ),
    ]  # fmt: skip


def _offered(books: Sequence[Mapping[str, Source]], match: str, names: Sequence[str]) -> list[str]:
    """What can be ticked: all there is, or all that matches; of very many not the single layers."""
    there = sorted({key for book in books for key in book})
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
                [picture.quantity, member.label, *map(_short, numbers), None if best is None else best[1]],
            )
    columns = ("metric", "run", "last", "mean of the last 10 %", "min", "max", "best at step")
    averaged = any(not reading.exact for picture in pictures for reading in picture.readings.values())
    subtitle = "Very long series: the mean of the last 10 % is taken from averages of a few steps." if averaged else ""
    return [_table_chart("compare-summary", "Runs in numbers", subtitle, columns, cells)] if cells else []


def _group_table(pictures: Sequence[_Picture]) -> list[Chart]:
    cells: list[list[Number]] = []
    for picture in pictures:
        for name, runs in picture.groups.items():
            readings = [picture.readings[run] for run in runs]
            bests = [reading.best(picture.quantity) for reading in readings]
            best = mean_std([found[0] for found in bests if found is not None]) if all(bests) else None
            ends = (mean_std([r.last for r in readings]), mean_std([r.tail for r in readings]), best)
            row = [number for pair in ends for number in (map(_short, pair) if pair else (None, None))]
            cells.append([picture.quantity, name, len(runs), *row])
    columns = ("metric", "group", "runs", "last", "± std", "mean of the last 10 %", "± std", "best", "± std")
    subtitle = "Mean and sample standard deviation over the runs of a group, of each run's own number."
    return [_table_chart("compare-groups", "Groups in numbers", subtitle, columns, cells)] if cells else []


def _table_chart(
    id: str, title: str, subtitle: str, columns: Sequence[str], cells: Sequence[Sequence[Number]]
) -> Chart:
    return Chart(
        id=id, kind="table", title=title, subtitle=subtitle, section="In numbers", wide=True,
        table=TableOf(columns=columns, cells=cells),
    )  # fmt: skip


def _short(value: float) -> Number:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{DIGITS}g}")


def _facts(found: Differences) -> list[Fact]:
    return [Fact(group=row.group, name=row.name, values=dict(row.values), differs=True) for row in found.differs]
