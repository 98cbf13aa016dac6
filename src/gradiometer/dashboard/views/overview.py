"""The tab Overview: is the run healthy, and where to look."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradiometer.charts.model import Axis, Chart, Empty, Level, Line, Number, Span, TableOf, info_of
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Fact, Verdict, View
from gradiometer.dashboard.views.findings import verdict_of
from gradiometer.dashboard.views.series import (
    STAGES,
    Curves,
    RunBlocks,
    best,
    block_title,
    blocks_of,
    called,
    chart,
    in_model_order,
    measured_at,
    named,
    norm_lines,
    reward_of,
    said,
    watch_it,
)
from gradiometer.doctor.report import lacking
from gradiometer.records import Event
from gradiometer.store.importers import Log
from gradiometer.words import some

__all__ = ["facts_of", "overview", "shortened"]

MOST_VERDICTS = 4
MOST_EVENTS = 50
MOST_COLUMNS = 200
"""Of the strip of health."""
ROUTINE = ("experts", "imported", "warm-start")
"""Events that say how a run was set up, and nothing of how it goes."""
MOST_MESSAGE = 300
MOST_STRIPS = 64
"""Layers in the strip of health; what has more is looked at on the tab Gradients."""
SECTION = "Curves"


def overview(request: ViewRequest) -> View:
    """The verdict first, then a few curves, health over time, events and facts."""
    verdicts = [verdict_of(request, run) for run in request.runs]
    curves = Curves(request)
    charts = [*_curves(curves), *_health(curves, request.focus), *_system(curves)]
    if not any(chart.lines for chart in charts):
        charts = _anything(curves)
    return View(
        view="overview",
        title="Overview",
        runs=[run.id for run in request.runs],
        verdicts=verdicts,
        charts=[*(_with_spans(chart, verdicts[0]) for chart in charts), *_events(request)],
        facts=facts_of(request.runs),
        empty=None if charts else _nothing(request),
    )


def _curves(curves: Curves) -> list[Chart]:
    outliers = Level(value=0.2, label="outliers only: below 0.2")
    return [
        *chart("reward", "Reward", _rewards(curves), section=SECTION),
        *_losses(curves),
        *_norms(curves),
        *chart("entropy", "Entropy", curves.of("entropy"), section=SECTION),
        *chart(
            "clip",
            "Clip rate",
            _clips(curves),
            section=SECTION,
            low=0.0,
            high=1.0,
            levels=[outliers],
        ),
        *chart("kl", "KL from the policy that sampled", curves.of("approx_kl"), section=SECTION),
        *chart("kl_ref", "KL from the reference policy", curves.of("kl_ref"), section=SECTION),
    ]


def _rewards(curves: Curves) -> list[Line]:
    found = ((run, reward_of(run)) for run in curves.request.runs)
    return [curves.line(run, name, said(name)) for run, name in found if name is not None]


PARTS_OF_LOSS = ("policy_loss", "value_loss")


def _losses(curves: Curves) -> list[Chart]:
    """Of runs without a reward, which are after the loss; and of logs, which have little else."""
    runs = [
        run for run in curves.request.runs if reward_of(run) is None or isinstance(run.log, Log)
    ]
    # A sum of policy and value loss says less than they do.
    whole = [run for run in runs if not any(best(run, part) for part in PARTS_OF_LOSS)]
    return [
        *chart("loss", "Loss", curves.of("loss", whole), section=SECTION),
        *chart("val_loss", "Validation loss", curves.of("val/loss", runs), section=SECTION),
        *chart("policy_loss", "Policy loss", curves.of("policy_loss", runs), section=SECTION),
        *chart("value_loss", "Value loss", curves.of("value_loss", runs), section=SECTION),
    ]


def _norms(curves: Curves) -> list[Chart]:
    """The whole gradient at each stage; of many runs only as it came out of backward."""
    runs = curves.request.runs
    stages = STAGES[:1] if curves.crowded else STAGES
    made = chart(
        "norm",
        "Gradient norm by stage",
        [line for run in runs for line in norm_lines(curves, run, stages)],
        section=SECTION,
        subtitle="raw only, of so many runs" if curves.crowded else "",
    )
    if made:
        return made
    empty = _no_norm(curves.request)
    info = info_of("grad/<block>/norm/raw")
    return [
        Chart(
            id="norm",
            kind="lines",
            title="Gradient norm by stage",
            section=SECTION,
            info=info,
            empty=empty,
        )
    ]


def _no_norm(request: ViewRequest) -> Empty:
    run = request.focus
    more = lacking(request.latest_diagnosis(run).diagnosis).measured
    fix = "Put the meter around the training" + (
        f": it lets {more} more checks run." if more else "."
    )
    return Empty(
        title="No gradient norm",
        cause=f"{called(request, run)} has no series that is known as a gradient norm.",
        fix=fix,
        code=watch_it(run=run),
    )


def _clips(curves: Curves) -> list[Line]:
    """The share of clipped steps, of the model or of blocks clipped by themselves."""
    lines = []
    for run in curves.request.runs:
        whole = _clip_name(run, "all")
        if whole is not None:
            lines.append(curves.line(run, whole, whole))
            continue
        for block in blocks_of(run).named:
            name = _clip_name(run, block)
            lines += [] if name is None else [curves.line(run, name, block, role=f"block:{block}")]
    return lines


def _clip_name(run: OpenRun, block: str) -> str | None:
    names = (f"grad/{block}/clip/{end}" for end in ("rate", "active"))
    return next((name for name in names if name in run.names), None)


def _health(curves: Curves, run: OpenRun) -> list[Chart]:
    """A strip for each named block, or each layer where nobody named any."""
    blocks = blocks_of(run)
    too_many = blocks.whole and len(blocks.layers) > MOST_STRIPS
    shown = [
        *blocks.main,
        *(() if blocks.named or too_many else in_model_order(run, blocks.layers)),
    ]
    if not shown:
        return []
    rows = [block for block in shown if f"grad/{block}/health" in run.names]
    lines = [
        curves.row(run, f"grad/{block}/health", block_title(block), most=MOST_COLUMNS)
        for block in rows
    ]
    return [
        Chart(
            id="health",
            kind="map",
            title="Health by block",
            section="Health",
            y=Axis(title="health", low=0.0, high=1.0),
            subtitle=_about_health(
                blocks, [block for block in shown if block not in rows] if rows else []
            ),
            lines=lines,
            reduce="min",
            colours="health",
            info=info_of("grad/<block>/health"),
            wide=True,
            empty=None if rows else measured_at(run, "health", "standard"),
        )
    ]


def _system(curves: Curves) -> list[Chart]:
    """What the training took of its machine, where it was recorded."""
    titles = {
        "system/cpu": "Processor",
        "system/memory": "Memory of the training",
        "system/memory_share": "Memory of the machine",
        "system/gpu/<gpu>/busy": "Graphics cards",
        "system/gpu/<gpu>/memory": "Memory of graphics cards",
    }
    return [
        made
        for template, title in titles.items()
        for made in chart(
            template.replace("/<gpu>", "").replace("/", "-"),
            title,
            [
                curves.line(run, name, name)
                for run in curves.request.runs
                for name in named(run, template)
            ],
            section="System",
            low=0.0,
        )
    ]


def _about_health(blocks: RunBlocks, without: Sequence[str]) -> str:
    told = []
    if without:
        names = [block_title(block) for block in without]
        told.append(f"No health yet, because there is no gradient: {some(names, 8)}")
    if not blocks.named and len(blocks.layers) > MOST_STRIPS:
        told.append(f"its {len(blocks.layers)} layers are on the tab Gradients")
    return " · ".join(told)


def _anything(curves: Curves) -> list[Chart]:
    """Of a log in which nothing is known by name: its first series."""
    focus = curves.request.focus
    charts = []
    for name in sorted(focus.names)[:MOST_VERDICTS]:
        lines = [curves.line(run, name, name) for run in curves.request.runs if name in run.names]
        charts += chart(f"series-{name}", name, lines, section=SECTION)
    return charts


def _with_spans(chart: Chart, verdict: Verdict) -> Chart:
    """The steps since which the finding holds, on the charts of the series that it rests on."""
    finding = verdict.finding
    if finding is None or finding.since_step is None or finding.severity == "info":
        return chart
    rests_on = {evidence["series"] for evidence in finding.evidence}
    if not any(line.run == finding.run and line.name in rests_on for line in chart.lines):
        return chart
    return replace(
        chart,
        spans=[
            Span(first=finding.since_step, last=None, label=finding.id, severity=finding.severity)
        ],
    )


def _events(request: ViewRequest) -> list[Chart]:
    """The last events of the runs that have a verdict; how a run was set up is left out."""
    several = len(request.runs) > 1
    rows: list[tuple[int, list[Number]]] = []
    for run in request.runs[:MOST_VERDICTS]:
        own = [event for event in run.log.events() if event.kind not in ROUTINE]
        who = [called(request, run)] if several else []
        rows += [
            (last.step, [*who, first.step, last.step, times, first.kind, _first_line(last.message)])
            for first, last, times in _counted(own)
        ]
    if not rows:
        return []
    rows.sort(key=lambda row: row[0])
    table = TableOf(
        columns=[*(["run"] if several else []), "first", "last", "times", "event", "what happened"],
        cells=[cells for _, cells in rows[-MOST_EVENTS:]],
    )
    return [
        Chart(id="events", kind="table", title="Events", section="Events", table=table, wide=True)
    ]


def _counted(events: Sequence[Event]) -> list[tuple[Event, Event, int]]:
    """The first and the last of each kind that is told alike but for its numbers, and how many."""
    alike: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        words = re.sub(r"[-+]?\d[\d.,e+-]*", "#", _first_line(event.message))
        alike.setdefault((event.kind, words), []).append(event)
    return [(found[0], found[-1], len(found)) for found in alike.values()]


def _first_line(message: str) -> str:
    return shortened(next(iter(message.strip().splitlines()), ""), MOST_MESSAGE)


def _nothing(request: ViewRequest) -> Empty:
    return Empty(
        title="Nothing was recorded yet",
        cause=f"{called(request, request.focus)} has no series.",
        fix="The first measured step adds data; this page updates automatically. Without a meter,"
        " this is how to begin:",
        code=watch_it(),
    )


GROUPS = ("Run", "Config", "Versions", "Hardware", "Git")
UNDER = {"config": "Config", "versions": "Versions", "hardware": "Hardware", "git": "Git"}
"""Facts that hold a group each; their names need no prefix."""
ALONE = {"python": "Versions", "schema_version": "Versions", "platform": "Hardware"}
FIRST = ("started", "script", "argv", "cwd", "seed")
LONGEST = 160


def facts_of(runs: Sequence[OpenRun]) -> list[Fact]:
    """Each fact once, by run; it differs where a run has another, or none."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for run in runs:
        for group, name, value in _told(run.log.facts):
            found.setdefault((group, name), {})[run.id] = value
    ordered = sorted(found.items(), key=lambda item: (GROUPS.index(item[0][0]), _place(*item[0])))
    return [
        Fact(
            group=group,
            name=name,
            values={id: shortened(value) for id, value in values.items()},
            differs=len(set(values.values())) > 1 or len(values) < len(runs),
        )
        for (group, name), values in ordered
    ]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted path, as text."""
    if isinstance(value, Mapping) and value:
        for key, inside in value.items():
            yield from leaves(inside, f"{path}.{key}" if path else str(key))
    else:
        yield (
            path,
            (
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, default=str)
            ),
        )


def shortened(text: str, longest: int = LONGEST) -> str:
    """A long text without its middle."""
    if len(text) <= longest:
        return text
    half = (longest - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


def _told(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, value in facts.items():
        if key == "argv" and isinstance(value, Sequence) and not isinstance(value, str):
            yield "Run", key, " ".join(map(str, value))
            continue
        group = UNDER.get(key) if isinstance(value, Mapping) else None
        for name, text in leaves(value, "" if group else key):
            yield group or ALONE.get(key, "Run"), name or key, text


def _place(group: str, name: str) -> int:
    """A few of the run come first; the others stay in the order they were told."""
    return FIRST.index(name) if group == "Run" and name in FIRST else len(FIRST)
