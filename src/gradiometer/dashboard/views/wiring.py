"""The tab Wiring: the loss drawn from its graph, at a step, and the curves behind the drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradiometer.charts.model import Axis, Chart, Empty, Line, Span, TableOf, info_of
from gradiometer.charts.wiring import COSINE, NORM, LossDiagram, block_said, read_diagram
from gradiometer.charts.wiringsheets import draw_wiring
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Control, Option, View
from gradiometer.dashboard.views.series import called
from gradiometer.errors import UsageError
from gradiometer.metrics import key, parse
from gradiometer.store.reader import Run
from gradiometer.store.wiring import VALUE, wiring_steps

__all__ = ["wiring"]

NO_WIRING = Empty(
    title="No loss graph in this run",
    cause="The drawing comes from the autograd graph of a loss, which exists only during a"
    " training.",
    fix="Run the unchanged script with the meter; the first measured step is enough.",
    code="gradiometer run train.py",
)
MOST_DRAWINGS = 4
CURVES = "The curves behind it"
CURVE = "norms-"
CREDIT = {
    "credit/zero_share": "no credit",
    "credit/positive_share": "made more likely, of those with credit",
}


def wiring(request: ViewRequest) -> View:
    """A drawing for each run, the focus first; then norms by block, values and cosines of terms."""
    asked = _asked(request)
    drawn = [(run, found) for run in request.runs if (found := _diagram(request, run, asked))]
    drawn = drawn[:MOST_DRAWINGS]
    charts = [_drawing(request, run, place, found) for place, (run, found) in enumerate(drawn)]
    charts += _curves(request, drawn)
    controls = _step_control(request.focus, asked)
    return View(
        view="wiring",
        title="Wiring",
        runs=[run.id for run in request.runs],
        header=_header(request, drawn),
        controls=controls if drawn else [],
        charts=charts,
        empty=None if drawn else NO_WIRING,
    )


def _asked(request: ViewRequest) -> int | None:
    given = request.query.option("step")
    if given in ("", "newest"):
        return None
    if not given.lstrip("-").isdecimal():
        raise UsageError(f"step={given!r} is not a whole number")
    return int(given)


def _diagram(request: ViewRequest, run: OpenRun, step: int | None) -> LossDiagram | None:
    """The wiring of a run; None where no loss was read, or not yet at the step."""
    if not isinstance(run.log, Run):
        return None
    try:
        return read_diagram(run.log, called(request, run), step)
    except UsageError:
        return None


def _header(request: ViewRequest, drawn: Sequence[tuple[OpenRun, LossDiagram]]) -> list[str]:
    if not drawn:
        return []
    lines = [
        "The loss, drawn from its autograd graph. The width of a line shows its gradient norm."
    ]
    missing = len(request.runs) - len(drawn)
    if missing:
        lines.append(f"{missing} of the chosen runs are not drawn: no loss was read in them.")
    return lines


def _step_control(run: OpenRun, asked: int | None) -> list[Control]:
    steps = wiring_steps(run.log)
    if len(steps) < 2:
        return []
    at = steps[-1] if asked is None else max((s for s in steps if s <= asked), default=steps[0])
    options = [Option(value=str(step), label=f"step {step:,}") for step in steps]
    value = str(at) if asked is not None else options[-1].value
    hint = "The steps at which the loss was split into its terms"
    return [
        Control(kind="slider", name="step", label="Step", value=value, options=options, hint=hint)
    ]


def _drawing(request: ViewRequest, run: OpenRun, place: int, found: LossDiagram) -> Chart:
    cells = [[each.term, block_said(each.block), each.norm, each.series] for each in found.strands]
    cells += [[term.name, "none", None, ""] for term in found.terms if not term.alive]
    return Chart(
        id=f"wiring-{place}",
        kind="drawing",
        title=f"The loss of {called(request, run)}",
        drawing=draw_wiring(found, CURVE),
        table=TableOf(columns=["term", "block", "gradient norm", "series"], cells=cells),
        info=info_of(NORM, COSINE, "credit/zero_share"),
        wide=True,
    )


def _curves(request: ViewRequest, drawn: Sequence[tuple[OpenRun, LossDiagram]]) -> Iterator[Chart]:
    """For each block the norms of the terms that reach it, then what terms add, then credit."""
    for block in dict.fromkeys(block for _, found in drawn for block in found.blocks):
        chart = _norms(request, drawn, block)
        if chart is not None:
            yield chart
    yield from _values(request, drawn)
    yield from _cosines(request, drawn)
    yield from _credit(request, drawn)


def _norms(
    request: ViewRequest, drawn: Sequence[tuple[OpenRun, LossDiagram]], block: str
) -> Chart | None:
    lines = [
        request.line(run, strand.series, strand.term, role=_role(found, strand.term))
        for run, found in drawn
        for strand in found.strands
        if strand.block == block and strand.series in run.names
    ]
    return _lines(
        f"{CURVE}{block}",
        f"Into {block_said(block)}: gradient norm of each term",
        lines,
        drawn,
        Axis(title="gradient norm", scale="log"),
        NORM,
    )


def _values(request: ViewRequest, drawn: Sequence[tuple[OpenRun, LossDiagram]]) -> Iterator[Chart]:
    lines = [
        request.line(run, name, term.name, role=_role(found, term.name))
        for run, found in drawn
        for term in found.terms
        if (name := key(VALUE, block="all", term=term.name)) in run.names
    ]
    chart = _lines("values", "What each term adds to the loss", lines, drawn, Axis(), VALUE)
    if chart is not None:
        yield chart


def _cosines(request: ViewRequest, drawn: Sequence[tuple[OpenRun, LossDiagram]]) -> Iterator[Chart]:
    lines = []
    for run, found in drawn:
        for name in sorted(run.names):
            parts = parse(COSINE, name)
            if parts is not None and parts["block"] in found.blocks:
                label = f"{parts['term_a']}, {parts['term_b']} in {block_said(parts['block'])}"
                lines.append(request.line(run, name, label, role=label))
    title = "Which terms conflict: cosines below 0"
    chart = _lines("cosines", title, lines, drawn, Axis(title="cosine", low=-1, high=1), COSINE)
    if chart is not None:
        yield chart


def _credit(request: ViewRequest, drawn: Sequence[tuple[OpenRun, LossDiagram]]) -> Iterator[Chart]:
    lines = [
        request.line(run, name, label, role=name)
        for run, _ in drawn
        for name, label in CREDIT.items()
        if name in run.names
    ]
    title = "Credit: share of samples that a step makes more likely"
    axis = Axis(title="share", low=0, high=1)
    chart = _lines("credit", title, lines, drawn, axis, *CREDIT)
    if chart is not None:
        yield chart


def _role(found: LossDiagram, term: str) -> str:
    """For the colour: that of the drawing."""
    return f"ink:{found.inks()[term]}:{term}"


def _lines(
    id: str,
    title: str,
    lines: Sequence[Line],
    drawn: Sequence[tuple[OpenRun, LossDiagram]],
    axis: Axis,
    *names: str,
) -> Chart | None:
    """A chart with the step of the drawing marked in it."""
    if not lines:
        return None
    step = drawn[0][1].step
    at = Span(first=step, last=step, label=f"step {step:,}", severity="info")
    made = Chart(id=id, kind="lines", title=title, section=CURVES, y=axis, lines=lines)
    return replace(made, x=Axis(title="step"), spans=[at], info=info_of(*names))
