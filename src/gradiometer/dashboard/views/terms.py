"""The tab Terms: what each loss term does to the gradient, in analyses like RAGEN's and as the
meter split it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradiometer.charts.analysis import (
    ALL,
    NORM,
    AnalysisStep,
    analysis_at,
    analysis_steps,
    content_of,
    norms_by_bucket,
    terms_in_order,
    unreadable_groups,
)
from gradiometer.charts.model import Axis, Chart, Empty, Level, Line, TableOf, info_of
from gradiometer.charts.terms import (
    SIGNAL,
    SNR,
    analysis_cosines,
    bucket_name,
    cosine_chart,
    square,
    step_charts,
)
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Control, Option, View
from gradiometer.errors import UnknownName
from gradiometer.metrics import CATALOGUE, key
from gradiometer.words import some

__all__ = ["terms"]

NO_TERMS = Empty(
    title="No loss terms in this run",
    cause="The meter does not know the terms of the loss: neither meter.terms nor a gradient"
    " analysis was used.",
    fix="Pass the terms where you add them up, and call backward on their sum; or analyse a"
    " checkpoint by groups of rollouts.",
    code="with meter.terms(policy=pg, value=0.5 * vf, entropy=-0.01 * ent) as loss:\n"
    "    loss.backward()\n"
    "\n"
    "gradiometer analyze runs/sokoban/checkpoints/global_step_100",
)
TERM_COSINE = "grad/<block>/term/<term_a>~<term_b>/cos"
SKETCHED = "grad/all/term/cos_error"
STATES, NONE = "terms", "none"
FIRST_REACH, REACH_FACTOR = 64, 16
REACH = "Reach of the terms"
SPLIT = "While training"
DEAD, STILL = (
    "no gradient path: in the loss, but it trains no weight",
    "a path, but the gradient is exactly zero",
)
FEW = 5
"""Runs that are named in a line."""


def terms(request: ViewRequest) -> View:
    """Dead terms first, then the analysis of the chosen step, then everything over time."""
    states = {run.id: states_of(run) for run in request.runs}
    whose = f" of {request.focus.label}" if len(request.runs) > 1 else ""
    reach = list(_reach(states[request.focus.id], f"{REACH}{whose}"))
    of_analyses, analyses, told = _analysis(request)
    of_splits, splits = _split(request, states)
    charts = [*reach, *_folded(analyses), *_folded(splits)]
    return View(
        view="terms",
        title="Terms",
        runs=[run.id for run in request.runs],
        header=[*_dead_lines(request, states), *told],
        controls=[*of_analyses, *of_splits],
        charts=charts,
        empty=None if charts else NO_TERMS,
    )


OPEN = 3
MORE = {"term-loss": "Values of the terms", "additivity": "Do the terms add up?"}


def _folded(charts: Sequence[Chart]) -> list[Chart]:
    """The first three answer the question; the rest is below, under headings."""
    kept = [chart for chart in charts if chart.id not in MORE]
    rest = [replace(chart, section=MORE[chart.id]) for chart in charts if chart.id in MORE]
    later = [
        replace(chart, section=chart.section if _opens(chart, kept) else f"{chart.section}: more")
        for chart in kept[OPEN:]
    ]
    return [*kept[:OPEN], *(replace(chart, fold=True) for chart in (*later, *rest))]


def _opens(chart: Chart, charts: Sequence[Chart]) -> bool:
    """Whether none of its section is among the first."""
    return chart.section not in {each.section for each in charts[:OPEN]}


def _dead_lines(
    request: ViewRequest, states: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> list[str]:
    """A line for each dead term, with the runs that have it."""
    whose: dict[str, list[str]] = {}
    for run in request.runs:
        for term in dead_terms(states[run.id]):
            whose.setdefault(term, []).append(run.label)
    return [
        f"{term} has no gradient path{f' in {some(names, FEW)}' if len(request.runs) > 1 else ''}."
        " It is in the loss, but it trains no weight: look for no_grad, detach, .item() or numpy on"
        " the way."
        for term, names in whose.items()
    ]


def _reach(states: Mapping[str, Mapping[str, str]], section: str) -> Iterator[Chart]:
    """Term × block: path, zero or none; what is dead stands first."""
    if not states:
        return
    blocks = list(dict.fromkeys(block for row in states.values() for block in row))
    dead = dead_terms(states)
    still = [
        term for term, row in states.items() if term not in dead and "path" not in row.values()
    ]
    worded = dict.fromkeys(dead, DEAD) | dict.fromkeys(still, STILL)
    rows = sorted(states, key=lambda term: (term not in dead, term not in still))
    cells = [
        [
            term,
            *(states[term].get(block) for block in blocks),
            *([worded.get(term, "")] if worded else []),
        ]
        for term in rows
    ]
    yield Chart(
        id="reach",
        kind="table",
        title=(
            f"{', '.join(dead)}: no gradient path"
            if dead
            else "Which term has a path to which block"
        ),
        section=section,
        subtitle="path: a gradient arrives; zero: a path, but the gradient is exactly zero;"
        " none: no path",
        table=TableOf(columns=["term", *blocks, *(["in words"] if worded else [])], cells=cells),
        info=info_of("grad/<block>/term/<term>/norm"),
        wide=bool(dead),
    )


def _analysis(request: ViewRequest) -> tuple[list[Control], list[Chart], list[str]]:
    """The analysis of a step of the run in focus, and the analyses of all runs in a row."""
    buckets = list(norms_by_bucket(name for run in request.runs for name in run.names))
    if not buckets:
        return [], [], []
    controls: list[Control] = []
    charts: list[Chart] = []
    told: list[str] = []
    bucket = _chosen(request, "bucket", buckets, ALL if ALL in buckets else buckets[0])
    steps = analysis_steps(request.focus.log)
    if steps:
        step = int(_chosen(request, "step", list(map(str, steps)), str(steps[-1]), "analysis step"))
        found = analysis_at(request.focus.log, step)
        term = (
            _chosen(request, "term", found.measured_terms, found.measured_terms[0])
            if found.measured_terms
            else ""
        )
        section = f"Analysis at step {step}" + (
            f" of {request.focus.label}" if len(request.runs) > 1 else ""
        )
        told = [_circumstances(found, section)]
        charts += step_charts(found, section, unreadable_groups(request.focus.log, step))
        charts += analysis_cosines(found, bucket, term, f"{section} · agreement")
        controls += [
            _control("slider", "step", "Analysis step", str(step), list(map(str, steps))),
            _control("choice", "term", "Term, between buckets", term, found.measured_terms),
        ]
    controls.insert(1, _control("choice", "bucket", "Bucket", bucket, buckets))
    charts += analyses_over_time(request, bucket, "From analysis to analysis")
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


def _split(
    request: ViewRequest, states: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> tuple[list[Control], list[Chart]]:
    """What the meter measured: terms, and rewards where the advantages were given by reward."""
    found = {kind: split_of(request.runs, kind) for kind in ("term", "reward")}
    blocks = list(dict.fromkeys([*found["term"].blocks, *found["reward"].blocks]))
    if not blocks:
        return [], []
    own = set(split_of([request.focus], "term").blocks)
    usual = next(
        (block for block in ("actor", ALL) if block in own), ALL if ALL in blocks else blocks[0]
    )
    block = _chosen(request, "block", blocks, usual)
    control = _control("choice", "block", "Block", block, blocks)
    charts: list[Chart] = []
    given = [term for run in request.runs for term in states[run.id]]
    for kind, split in found.items():
        order = terms_in_order({part for parts in split.parts.values() for part in parts}, given)
        own_states = states[request.focus.id] if kind == "term" else {}
        charts += split_over_time(request, split, kind, block, order, own_states, SPLIT)
        if kind == "term":
            charts += latest_cosines(request, split, block, order, SPLIT)
    return [control], charts


def _chosen(
    request: ViewRequest, name: str, options: Sequence[str], usual: str, what: str = ""
) -> str:
    given = request.query.option(name, usual)
    if given not in options:
        shown = ", ".join(options[:20]) + (" ..." if len(options) > 20 else "")
        raise UnknownName(what or name, given, options, hint=f"(there are {shown})")
    return given


def _control(kind: str, name: str, label: str, value: str, options: Sequence[str]) -> Control:
    shown = [
        Option(value=option, label=bucket_name(option) if name == "bucket" else option)
        for option in options
    ]
    return Control(
        kind="slider" if kind == "slider" else "choice",
        name=name,
        label=label,
        value=value,
        options=shown,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSeries:
    """What the meter measured of each loss term, or of each reward, by block."""

    parts: Mapping[str, frozenset[str]]
    pairs: Mapping[str, frozenset[tuple[str, str]]]

    @property
    def blocks(self) -> tuple[str, ...]:
        """`all`, the named blocks, the layers."""
        return tuple(
            sorted(self.parts, key=lambda block: (block != ALL, block.startswith("layer."), block))
        )


def split_of(runs: Iterable[OpenRun], kind: str) -> TermSeries:
    """Read off the names of the series; `kind` is term or reward."""
    parts: dict[str, set[str]] = {}
    pairs: dict[str, set[tuple[str, str]]] = {}
    for name in (name for run in runs for name in run.names if f"/{kind}/" in name):
        found = name.split("/")
        if len(found) != 5 or (found[0], found[2]) != ("grad", kind):
            continue
        block, part, quantity = found[1], found[3], found[4]
        if quantity == "cos" and part.count("~") == 1:
            a, b = part.split("~")
            pairs.setdefault(block, set()).add((a, b))
        elif quantity in ("norm", "share", "loss"):
            parts.setdefault(block, set()).add(part)
    return TermSeries(
        parts={block: frozenset(found) for block, found in parts.items()},
        pairs={block: frozenset(found) for block, found in pairs.items()},
    )


def states_of(run: OpenRun) -> dict[str, dict[str, str]]:
    """What each term reaches, as last said: path, zero or none by term and named block."""
    content = content_of(run.log, STATES)
    if not isinstance(content, Mapping) or not all(
        isinstance(row, Mapping) for row in content.values()
    ):
        return {}
    return {
        str(term): {str(block): str(state) for block, state in row.items()}
        for term, row in content.items()
    }


def dead_terms(states: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Terms of the loss that no parameter feels."""
    return [
        term for term, row in states.items() if row and all(state == NONE for state in row.values())
    ]


def newest_of(run: OpenRun, names: Iterable[str], last: int | None = None) -> int | None:
    """The last step, not beyond `last`, at which one of the series has a point."""
    newest, first, asked = run.log.newest_step, run.log.first_step, tuple(names)
    if newest is None or first is None:
        return None
    end = newest if last is None else min(last, newest)
    reach = FIRST_REACH
    while first <= end:
        since = max(end - reach, first)
        ends = [int(steps[-1]) for name in asked if len(steps := run.log.part(name, since, end)[0])]
        if ends or since == first:
            return max(ends, default=None)
        reach *= REACH_FACTOR
    return None


TITLES = {
    "term": {
        "norm": "Gradient norm of each term on {}",
        "share": "Share of each term in the gradient on {}",
        "cos": "Cosine between terms on {}",
        "loss": "Loss of each term",
    },
    "reward": {
        "norm": "Policy gradient of each reward on {}",
        "share": "Share of each reward in the policy gradient on {}",
        "cos": "Cosine between rewards on {}",
    },
}
ADDITIVITY = "grad/all/term/additivity_error"
NOTHING_LEFT = Level(value=0.0, label="at right angles")


def split_over_time(
    request: ViewRequest,
    split: TermSeries,
    kind: str,
    block: str,
    order: Sequence[str],
    states: Mapping[str, Mapping[str, str]],
    section: str,
) -> Iterator[Chart]:
    """Norms, shares, cosines and losses by term or by reward, on one block."""
    told = reach_words(states, block)
    told = f"{request.focus.label}: {told}" if told and len(request.runs) > 1 else told
    for quantity, title in TITLES[kind].items():
        template = f"grad/<block>/{kind}/{_placeholders(kind, quantity)}/{quantity}"
        parts = _pairs(split, block, order) if quantity == "cos" else order
        lines = [
            request.line(run, name, _label(request, run, part), role=f"term:{part}")
            for run in request.runs
            for part in parts
            if (name := _series(run, kind, block, part, quantity))
        ]
        if lines:
            yield Chart(
                id=f"{kind}-{quantity}",
                kind="lines",
                title=title.format(block),
                section=section,
                subtitle=_told(told, quantity),
                y=_axis(template, quantity),
                levels=(NOTHING_LEFT,) if quantity == "cos" else (),
                lines=lines,
                info=info_of(template),
                wide=quantity == "norm" and kind == "term",
            )
    if kind == "term":
        yield from _additivity(request, section)


ABOVE_ONE = "Shares add up to 1: one above 1 has another below 0, which works against the sum."


def _told(reach: str, quantity: str) -> str:
    said = [reach] if quantity in ("norm", "share") and reach else []
    return " ".join([*said, *([ABOVE_ONE] if quantity == "share" else [])])


def _placeholders(kind: str, quantity: str) -> str:
    return f"<{kind}_a>~<{kind}_b>" if quantity == "cos" else f"<{kind}>"


def _pairs(split: TermSeries, block: str, order: Sequence[str]) -> list[str]:
    place = {part: number for number, part in enumerate(order)}
    pairs = split.pairs.get(block, frozenset())
    return [
        "~".join(pair)
        for pair in sorted(pairs, key=lambda pair: [(place.get(p, len(place)), p) for p in pair])
    ]


def _series(run: OpenRun, kind: str, block: str, part: str, quantity: str) -> str:
    """The run's own series; a loss is mostly of no block and stands at `all`."""
    names = [
        f"grad/{where}/{kind}/{part}/{quantity}"
        for where in (block, *((ALL,) if quantity == "loss" else ()))
    ]
    return next((name for name in names if name in run.names), "")


def _axis(template: str, quantity: str) -> Axis:
    about = CATALOGUE[template]
    words = {"share": "share", "cos": "cosine"}
    ends = {"low": -1.0, "high": 1.0} if quantity == "cos" else {}
    return Axis(title=words.get(quantity, about.unit), scale=about.scale, **ends)


def _label(request: ViewRequest, run: OpenRun, part: str) -> str:
    name = part.replace("~", " ~ ")
    return name if len(request.runs) == 1 else f"{run.label} · {name}"


def _additivity(request: ViewRequest, section: str) -> Iterator[Chart]:
    runs = [run for run in request.runs if ADDITIVITY in run.names]
    lines = [request.line(run, ADDITIVITY) for run in runs]
    if lines:
        about = CATALOGUE[ADDITIVITY]
        exact = all(_is_zero(run) for run in runs)
        yield Chart(
            id="additivity",
            kind="lines",
            title="What the gradient has beyond its terms",
            section=section,
            subtitle="Exactly 0: the terms are all there is." if exact else "",
            y=Axis(title="relative to ‖g‖", scale="linear" if exact else about.scale),
            lines=lines,
            info=info_of(ADDITIVITY),
        )


def _is_zero(run: OpenRun) -> bool:
    """A log axis would show nothing of it."""
    found = run.log.thinned(ADDITIVITY, 2)
    return not bool(found.broken.any()) and not bool(found.high.any())


def reach_words(states: Mapping[str, Mapping[str, str]], block: str) -> str:
    """Why a term has no line on this block: dead, without a path to this block, or exactly zero."""
    dead = dead_terms(states)
    none = [term for term, row in states.items() if row.get(block) == "none" and term not in dead]
    zero = [term for term, row in states.items() if row.get(block) == "zero"]
    told = [
        f"{term} has no gradient path: it is in the loss, but it trains no weight." for term in dead
    ]
    told += [f"No path to {block}: {', '.join(none)}."] if none else []
    told += [f"The gradient on {block} is exactly zero: {', '.join(zero)}."] if zero else []
    return " ".join(told)


def analyses_over_time(request: ViewRequest, bucket: str, section: str) -> Iterator[Chart]:
    """A term's norm, signal and SNR from analysis to analysis, on one bucket."""
    where = "all samples" if bucket == ALL else bucket.replace("_", " ")
    for template, id, title, levels in (
        (NORM, "analysis-norm", f"Gradient norm of each term on {where}", ()),
        (SIGNAL, "analysis-signal", f"Signal of each term on {where}", ()),
        (
            SNR,
            "analysis-snr",
            f"Signal-to-noise of each term on {where}",
            (Level(value=1.0, label="as much signal as noise"),),
        ),
    ):
        lines: list[Line] = []
        for run in request.runs:
            for term in terms_in_order(norms_by_bucket(run.names).get(bucket, ())):
                name = key(template, bucket=bucket, term=term)
                if name in run.names:
                    lines.append(
                        request.line(run, name, _label(request, run, term), role=f"term:{term}")
                    )
        if lines:
            about = CATALOGUE[template]
            yield Chart(
                id=id,
                kind="lines",
                title=title,
                section=section,
                y=Axis(title="SNR" if template == SNR else about.unit, scale=about.scale),
                levels=levels,
                lines=lines,
                info=info_of(template),
            )


def latest_cosines(
    request: ViewRequest, split: TermSeries, block: str, order: Sequence[str], section: str
) -> Iterator[Chart]:
    """Of the run in focus, at the last step that measured them."""
    run = request.focus
    every = {
        pair: key(TERM_COSINE, block=block, term_a=pair[0], term_b=pair[1])
        for pair in split.pairs.get(block, ())
    }
    names = {pair: name for pair, name in sorted(every.items()) if name in run.names}
    step = newest_of(run, names.values(), request.query.last)
    if step is None:
        return
    found = {
        frozenset(pair): float(values[0])
        for pair, name in names.items()
        if len(values := run.log.part(name, step, step)[1])
    }
    terms = [term for term in order if any(term in pair for pair in names)]
    matrix = square(terms, lambda a, b: found.get(frozenset((a, b))))
    if matrix is not None:
        whose = f" of {run.label}" if len(request.runs) > 1 else ""
        title = f"Cosine between terms on {block}{whose}, step {step}"
        yield cosine_chart(
            "term-cosines", title, section, [TERM_COSINE], matrix, _sketch_error(request, step)
        )


def _sketch_error(request: ViewRequest, step: int) -> str:
    if SKETCHED not in request.focus.names:
        return ""
    values = request.focus.log.part(SKETCHED, step, step)[1]
    return f"From sketches: standard error {values[0]:.2g}." if len(values) else ""
