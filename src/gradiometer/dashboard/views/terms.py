"""The tab Terms: what each loss term does to the gradient, in the analyses of source 003 and as the meter split it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradiometer.dashboard.desk import Desk, info_of
from gradiometer.dashboard.shape import Chart, Control, Empty, Option, TableOf, View
from gradiometer.dashboard.views.terms_cosines import analysis_cosines, latest_cosines
from gradiometer.dashboard.views.terms_lines import analyses_over_time, split_over_time
from gradiometer.dashboard.views.terms_reading import (
    analysis_at,
    analysis_steps,
    dead_terms,
    in_order,
    norms_by_bucket,
    split_of,
    states_of,
    unreadable_groups,
)
from gradiometer.dashboard.views.terms_step import bucket_name, step_charts
from gradiometer.errors import UnknownName
from gradiometer.plots.analysis import ALL, AnalysisStep

__all__ = ["terms"]

NO_TERMS = Empty(
    title="No loss terms in this run",
    cause="A loss is a sum, and nobody told the meter of what: neither meter.terms nor a gradient analysis was used.",
    fix="Give the terms where you add them up, and go backward from their sum; or analyse a checkpoint by groups of rollouts.",
    code=(
        "with meter.terms(policy=pg, value=0.5 * vf, entropy=-0.01 * ent) as loss:\n"
        "    loss.backward()\n"
        "\n"
        "gradiometer analyze runs/sokoban/checkpoints/global_step_100"
    ),
)
REACH = "Reach of the terms"
SPLIT = "While training"
DEAD, STILL = "no gradient path: in the loss, but no weight feels it", "a path, but exactly zero arrives"
FEW = 5
"""Runs that are named in a line."""


def terms(desk: Desk) -> View:
    """Dead terms first, then the analysis of the chosen step, then everything over time."""
    states = {run.id: states_of(run) for run in desk.runs}
    whose = f" of {desk.focus.label}" if len(desk.runs) > 1 else ""
    reach = list(_reach(states[desk.focus.id], f"{REACH}{whose}"))
    of_analyses, analyses, told = _analysis(desk)
    of_splits, splits = _split(desk, states)
    charts = [*reach, *analyses, *splits]
    return View(
        view="terms",
        title="Terms",
        runs=[run.id for run in desk.runs],
        header=[*_dead_lines(desk, states), *told],
        controls=[*of_analyses, *of_splits],
        charts=charts,
        empty=None if charts else NO_TERMS,
    )


def _dead_lines(desk: Desk, states: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[str]:
    """A line for each dead term, with the runs that have it."""
    whose: dict[str, list[str]] = {}
    for run in desk.runs:
        for term in dead_terms(states[run.id]):
            whose.setdefault(term, []).append(run.label)
    return [
        f"{term} has no gradient path{_in_runs(names) if len(desk.runs) > 1 else ''}. It is in the loss, but no weight "
        "feels it: look for no_grad, detach, .item() or numpy on the way."
        for term, names in whose.items()
    ]


def _in_runs(names: Sequence[str]) -> str:
    return f" in {', '.join(names[:FEW])}" + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def _reach(states: Mapping[str, Mapping[str, str]], section: str) -> Iterator[Chart]:
    """Term × block: path, zero or none; what is dead stands first."""
    if not states:
        return
    blocks = list(dict.fromkeys(block for row in states.values() for block in row))
    dead = dead_terms(states)
    still = [term for term, row in states.items() if term not in dead and "path" not in row.values()]
    worded = dict.fromkeys(dead, DEAD) | dict.fromkeys(still, STILL)
    rows = sorted(states, key=lambda term: (term not in dead, term not in still))
    cells = [[term, *(states[term].get(block) for block in blocks), worded.get(term, "")] for term in rows]
    yield Chart(
        id="reach",
        kind="table",
        title=f"{', '.join(dead)}: no gradient path" if dead else "Which term has a path to which block",
        section=section,
        subtitle="path: a gradient arrives; zero: there is a path, and exactly zero arrives; none: no path",
        table=TableOf(columns=["term", *blocks, "in words"], cells=cells),
        info=info_of("grad/<block>/term/<term>/norm"),
        wide=bool(dead),
    )


def _analysis(desk: Desk) -> tuple[list[Control], list[Chart], list[str]]:
    """The analysis of a step of the run in focus, and the analyses of all runs in a row."""
    buckets = list(norms_by_bucket(name for run in desk.runs for name in run.names))
    if not buckets:
        return [], [], []
    controls: list[Control] = []
    charts: list[Chart] = []
    told: list[str] = []
    bucket = _chosen(desk, "bucket", buckets, ALL if ALL in buckets else buckets[0])
    steps = analysis_steps(desk.focus)
    if steps:
        step = int(_chosen(desk, "step", list(map(str, steps)), str(steps[-1]), "analysis step"))
        found = analysis_at(desk.focus, step)
        term = _chosen(desk, "term", found.measured_terms, found.measured_terms[0]) if found.measured_terms else ""
        section = f"Analysis at step {step}" + (f" of {desk.focus.label}" if len(desk.runs) > 1 else "")
        told = [_circumstances(found, section)]
        charts += step_charts(found, section, unreadable_groups(desk.focus, step))
        charts += analysis_cosines(found, bucket, term, f"{section} · agreement")
        controls += [
            _control("slider", "step", "Analysis step", str(step), list(map(str, steps))),
            _control("choice", "term", "Term, between buckets", term, found.measured_terms),
        ]
    controls.insert(1, _control("choice", "bucket", "Bucket", bucket, buckets))
    charts += analyses_over_time(desk, bucket, "From analysis to analysis")
    return controls, charts, [line for line in told if line]


def _circumstances(step: AnalysisStep, section: str) -> str:
    """How the analysis was made, as far as it says so."""
    about = step.circumstances
    parts = [
        f"the unit is the {about['unit']}" if "unit" in about else "",
        str(about.get("aggregation", "")),
        f"{about['bucket_mode']} buckets" if "bucket_mode" in about else "",
        f"{about['vectors']} gradients" if "vectors" in about else "",
        f"no gradient path: {', '.join(step.dead)}" if step.dead else "",
    ]
    told = " · ".join(part for part in parts if part)
    return f"{section}: {told}" if told else ""


def _split(desk: Desk, states: Mapping[str, Mapping[str, Mapping[str, str]]]) -> tuple[list[Control], list[Chart]]:
    """What the meter measured: terms, and rewards where the advantages were given by reward."""
    found = {kind: split_of(desk.runs, kind) for kind in ("term", "reward")}
    blocks = list(dict.fromkeys([*found["term"].blocks, *found["reward"].blocks]))
    if not blocks:
        return [], []
    own = set(split_of([desk.focus], "term").blocks)
    usual = next((block for block in ("actor", ALL) if block in own), ALL if ALL in blocks else blocks[0])
    block = _chosen(desk, "block", blocks, usual)
    control = _control("choice", "block", "Block", block, blocks)
    charts: list[Chart] = []
    given = [term for run in desk.runs for term in states[run.id]]
    for kind, split in found.items():
        order = in_order({part for parts in split.parts.values() for part in parts}, given)
        own_states = states[desk.focus.id] if kind == "term" else {}
        charts += split_over_time(desk, split, kind, block, order, own_states, SPLIT)
        if kind == "term":
            charts += latest_cosines(desk, split, block, order, SPLIT)
    return [control], charts


def _chosen(desk: Desk, name: str, options: Sequence[str], usual: str, what: str = "") -> str:
    given = desk.ask.option(name, usual)
    if given not in options:
        shown = ", ".join(options[:20]) + (" ..." if len(options) > 20 else "")
        raise UnknownName(what or name, given, options, hint=f"(there are {shown})")
    return given


def _control(kind: str, name: str, label: str, value: str, options: Sequence[str]) -> Control:
    shown = [Option(value=option, label=bucket_name(option) if name == "bucket" else option) for option in options]
    return Control(kind="slider" if kind == "slider" else "choice", name=name, label=label, value=value, options=shown)
