"""The tab Overview: is the run healthy, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradiometer.dashboard.desk import Desk, Open, info_of
from gradiometer.dashboard.shape import Axis, Chart, Empty, Level, Line, Number, Span, TableOf, Verdict, View
from gradiometer.dashboard.views.facts import facts_of, shortened
from gradiometer.dashboard.views.layers import Blocks, block_title, blocks_of, in_model_order, measured_at, watch_it
from gradiometer.dashboard.views.norms import STAGES, norm_lines
from gradiometer.dashboard.views.series import Curves, best, called, chart, reward_of, said
from gradiometer.dashboard.views.verdicts import verdict_of
from gradiometer.doctor.report.further import lacking
from gradiometer.store.importers import Log

__all__ = ["overview"]

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


def overview(desk: Desk) -> View:
    """The verdict first, then the few curves that matter, health over time, what happened and what was run."""
    verdicts = [verdict_of(desk, run) for run in desk.runs[:MOST_VERDICTS]]
    curves = Curves(desk)
    charts = [*_curves(curves), *_health(curves, desk.focus)]
    if not any(chart.lines for chart in charts):
        charts = _anything(curves)
    return View(
        view="overview",
        title="Overview",
        runs=[run.id for run in desk.runs],
        verdicts=verdicts,
        charts=[*(_with_spans(chart, verdicts[0]) for chart in charts), *_events(desk)],
        facts=facts_of(desk.runs),
        empty=None if charts else _nothing(desk),
    )


def _curves(curves: Curves) -> list[Chart]:
    outliers = Level(value=0.2, label="outliers only: below 0.2")
    return [
        *chart("reward", "Reward", _rewards(curves), section=SECTION),
        *_losses(curves),
        *_norms(curves),
        *chart("entropy", "Entropy", curves.of("entropy"), section=SECTION),
        *chart("clip", "Clip rate", _clips(curves), section=SECTION, low=0.0, high=1.0, levels=[outliers]),
        *chart("kl", "KL from the policy that sampled", curves.of("approx_kl"), section=SECTION),
        *chart("kl_ref", "KL from the reference policy", curves.of("kl_ref"), section=SECTION),
    ]


def _rewards(curves: Curves) -> list[Line]:
    found = ((run, reward_of(run)) for run in curves.desk.runs)
    return [curves.line(run, name, said(name)) for run, name in found if name is not None]


def _losses(curves: Curves) -> list[Chart]:
    """Of runs without a reward, for which the loss is what they are after; and of logs, which have little else to show."""
    runs = [run for run in curves.desk.runs if reward_of(run) is None or isinstance(run.log, Log)]
    parted = [run for run in runs if best(run, "loss") is None]
    return [
        *chart("loss", "Loss", curves.of("loss", runs), section=SECTION),
        *chart("val_loss", "Validation loss", curves.of("val/loss", runs), section=SECTION),
        *chart("policy_loss", "Policy loss", curves.of("policy_loss", parted), section=SECTION),
        *chart("value_loss", "Value loss", curves.of("value_loss", parted), section=SECTION),
    ]


def _norms(curves: Curves) -> list[Chart]:
    """The whole gradient at each stage; of many runs only as it came out of backward."""
    runs = curves.desk.runs
    stages = STAGES[:1] if curves.crowded else STAGES
    made = chart(
        "norm", "Gradient norm by stage", [line for run in runs for line in norm_lines(curves, run, stages)],
        section=SECTION, subtitle="raw only, of so many runs" if curves.crowded else "",
    )  # fmt: skip
    if made:
        return made
    empty = _no_norm(curves.desk)
    info = info_of("grad/<block>/norm/raw")
    return [Chart(id="norm", kind="lines", title="Gradient norm by stage", section=SECTION, info=info, empty=empty)]


def _no_norm(desk: Desk) -> Empty:
    run = desk.focus
    more = lacking(desk.opinion(run).diagnosis).measured
    fix = "Put the meter around the training" + (f": it lets {more} more rules of the doctor look." if more else ".")
    return Empty(
        title="No gradient norm",
        cause=f"{called(desk, run)} has no series that is known as a gradient norm.",
        fix=fix,
        code=watch_it(run=run),
    )


def _clips(curves: Curves) -> list[Line]:
    """The share of steps that were clipped, of the whole model, or of the blocks that are clipped by themselves."""
    lines = []
    for run in curves.desk.runs:
        whole = _clip_name(run, "all")
        if whole is not None:
            lines.append(curves.line(run, whole, whole))
            continue
        for block in blocks_of(run).named:
            name = _clip_name(run, block)
            lines += [] if name is None else [curves.line(run, name, block, role=f"block:{block}")]
    return lines


def _clip_name(run: Open, block: str) -> str | None:
    names = (f"grad/{block}/clip/{end}" for end in ("rate", "active"))
    return next((name for name in names if name in run.names), None)


def _health(curves: Curves, run: Open) -> list[Chart]:
    """A strip for each block: the named ones, or the layers where nobody named any; more than a strip can show are left out."""
    blocks = blocks_of(run)
    too_many = blocks.whole and len(blocks.layers) > MOST_STRIPS
    shown = [*blocks.main, *(() if blocks.named or too_many else in_model_order(run, blocks.layers))]
    if not shown:
        return []
    rows = [block for block in shown if f"grad/{block}/health" in run.names]
    lines = [curves.row(run, f"grad/{block}/health", block_title(block), most=MOST_COLUMNS) for block in rows]
    return [
        Chart(
            id="health", kind="map", title="Health by block", section="Health", y=Axis(title="health", low=0.0, high=1.0),
            subtitle=_about_health(blocks, [block for block in shown if block not in rows] if rows else []),
            lines=lines, reduce="min", colours="health", info=info_of("grad/<block>/health"), wide=True,
            empty=None if rows else measured_at(run, "health", "standard"),
        )
    ]  # fmt: skip


def _about_health(blocks: Blocks, without: Sequence[str]) -> str:
    told = []
    if without:
        names = [block_title(block) for block in without]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        told.append(f"No health yet, for want of a gradient: {', '.join(names[:8])}{more}")
    if not blocks.named and len(blocks.layers) > MOST_STRIPS:
        told.append(f"its {len(blocks.layers)} layers are on the tab Gradients")
    return " · ".join(told)


def _anything(curves: Curves) -> list[Chart]:
    """Of a log in which nothing is known by name: its first series."""
    focus = curves.desk.focus
    charts = []
    for name in sorted(focus.names)[:MOST_VERDICTS]:
        lines = [curves.line(run, name, name) for run in curves.desk.runs if name in run.names]
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
        chart, spans=[Span(first=finding.since_step, last=None, label=finding.id, severity=finding.severity)]
    )


def _events(desk: Desk) -> list[Chart]:
    """The last events of the runs that have a verdict; how a run was set up is left out."""
    several = len(desk.runs) > 1
    rows: list[tuple[int, list[Number]]] = []
    for run in desk.runs[:MOST_VERDICTS]:
        own = [event for event in run.log.events() if event.kind not in ROUTINE][-MOST_EVENTS:]
        who = [called(desk, run)] if several else []
        rows += [(event.step, [*who, event.step, event.kind, _first_line(event.message)]) for event in own]
    if not rows:
        return []
    rows.sort(key=lambda row: row[0])
    table = TableOf(
        columns=[*(["run"] if several else []), "step", "event", "what happened"],
        cells=[cells for _, cells in rows[-MOST_EVENTS:]],
    )
    return [Chart(id="events", kind="table", title="Events", section="Events", table=table, wide=True)]


def _first_line(message: str) -> str:
    return shortened(next(iter(message.strip().splitlines()), ""), MOST_MESSAGE)


def _nothing(desk: Desk) -> Empty:
    return Empty(
        title="Nothing was recorded yet",
        cause=f"{called(desk, desk.focus)} has no series.",
        fix="The first measured step brings them; this page notices by itself. Without a meter, this is how to begin:",
        code=watch_it(),
    )
