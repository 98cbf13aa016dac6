"""Terms over time, of every run that is looked at: what `meter.terms` split, and the analyses in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradiometer.dashboard.desk import Desk, Open, info_of
from gradiometer.dashboard.shape import Axis, Chart, Level, Line
from gradiometer.dashboard.views.terms_reading import Split, dead_terms, in_order, norms_by_bucket
from gradiometer.metrics import CATALOGUE, key
from gradiometer.plots.analysis import ALL, NORM
from gradiometer.plots.figures import SIGNAL
from gradiometer.plots.summary import SNR

__all__ = ["analyses_over_time", "reach_words", "split_over_time"]

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
    desk: Desk, split: Split, kind: str, block: str, order: Sequence[str], states: Mapping[str, Mapping[str, str]],
    section: str,
) -> Iterator[Chart]:  # fmt: skip
    """Norms, shares, cosines and losses by term, or by reward, on one block; `states` are those of the run in focus."""
    told = reach_words(states, block)
    told = f"{desk.focus.label}: {told}" if told and len(desk.runs) > 1 else told
    for quantity, title in TITLES[kind].items():
        template = f"grad/<block>/{kind}/{_placeholders(kind, quantity)}/{quantity}"
        parts = _pairs(split, block, order) if quantity == "cos" else order
        lines = [
            desk.line(run, name, _label(desk, run, part), role=f"term:{part}")
            for run in desk.runs
            for part in parts
            if (name := _series(run, kind, block, part, quantity))
        ]
        if lines:
            yield Chart(
                id=f"{kind}-{quantity}",
                kind="lines",
                title=title.format(block),
                section=section,
                subtitle=told if quantity in ("norm", "share") else "",
                y=_axis(template, quantity),
                levels=(NOTHING_LEFT,) if quantity == "cos" else (),
                lines=lines,
                info=info_of(template),
                wide=quantity == "norm" and kind == "term",
            )
    if kind == "term":
        yield from _additivity(desk, section)


def _placeholders(kind: str, quantity: str) -> str:
    return f"<{kind}_a>~<{kind}_b>" if quantity == "cos" else f"<{kind}>"


def _pairs(split: Split, block: str, order: Sequence[str]) -> list[str]:
    place = {part: number for number, part in enumerate(order)}
    pairs = split.pairs.get(block, frozenset())
    return ["~".join(pair) for pair in sorted(pairs, key=lambda pair: [(place.get(p, len(place)), p) for p in pair])]


def _series(run: Open, kind: str, block: str, part: str, quantity: str) -> str:
    """The run's own series; a loss is mostly of no block and stands at `all`."""
    names = [f"grad/{where}/{kind}/{part}/{quantity}" for where in (block, *((ALL,) if quantity == "loss" else ()))]
    return next((name for name in names if name in run.names), "")


def _axis(template: str, quantity: str) -> Axis:
    about = CATALOGUE[template]
    words = {"share": "share", "cos": "cosine"}
    ends = {"low": -1.0, "high": 1.0} if quantity == "cos" else {}
    return Axis(title=words.get(quantity, about.unit), scale=about.scale, **ends)


def _label(desk: Desk, run: Open, part: str) -> str:
    name = part.replace("~", " ~ ")
    return name if len(desk.runs) == 1 else f"{run.label} · {name}"


def _additivity(desk: Desk, section: str) -> Iterator[Chart]:
    runs = [run for run in desk.runs if ADDITIVITY in run.names]
    lines = [desk.line(run, ADDITIVITY) for run in runs]
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


def _is_zero(run: Open) -> bool:
    """A log axis would show nothing of it."""
    found = run.log.thinned(ADDITIVITY, 2)
    return not bool(found.broken.any()) and not bool(found.high.any())


def reach_words(states: Mapping[str, Mapping[str, str]], block: str) -> str:
    """Why a term has no line on this block: dead, without a path to this block, or exactly zero."""
    dead = dead_terms(states)
    none = [term for term, row in states.items() if row.get(block) == "none" and term not in dead]
    zero = [term for term, row in states.items() if row.get(block) == "zero"]
    told = [f"{term} has no gradient path: it is in the loss, but no weight feels it." for term in dead]
    told += [f"No path to {block}: {', '.join(none)}."] if none else []
    told += [f"Exactly zero arrives at {block}: {', '.join(zero)}."] if zero else []
    return " ".join(told)


def analyses_over_time(desk: Desk, bucket: str, section: str) -> Iterator[Chart]:
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
        for run in desk.runs:
            for term in in_order(norms_by_bucket(run.names).get(bucket, ())):
                name = key(template, bucket=bucket, term=term)
                if name in run.names:
                    lines.append(desk.line(run, name, _label(desk, run, term), role=f"term:{term}"))
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
