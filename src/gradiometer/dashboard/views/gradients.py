"""The tab Gradients: every layer over time, then one of them or the whole model in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from gradiometer.charts.experts import FIRST, INF, LAST, NAN, ZERO
from gradiometer.charts.model import Axis, Chart, Empty, Level, Line, Matrix, Number, info_of
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Control, Option, View
from gradiometer.dashboard.views.series import (
    FEW,
    LAYER,
    STAGES,
    Curves,
    RunBlocks,
    block_title,
    blocks_of,
    called,
    chart,
    in_model_order,
    measured_at,
    norm_lines,
    watch_it,
)
from gradiometer.errors import UnknownName
from gradiometer.metrics import CATALOGUE
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Ints

__all__ = ["ROWS", "gradients"]

MOST_COLUMNS = 300
MOST_ROWS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuantity:
    """What the map can show of a layer."""

    end: str
    """Of the series' names."""
    label: str
    reduce: Literal["max", "min"] = "max"
    tier: str = "standard"
    high: float | None = None


QUANTITIES = {
    "norm": LayerQuantity(end="norm/raw", label="gradient norm", tier="light"),
    "health": LayerQuantity(end="health", label="health", reduce="min", high=1.0),
    "zero": LayerQuantity(end="zero_fraction", label="zero share", high=1.0),
    "update": LayerQuantity(end="update_ratio", label="update ratio"),
}
"""By the value of `quantity=`."""


def gradients(request: ViewRequest) -> View:
    """The map of layers, the chosen one, blocks, clipping, direction, noise, histograms."""
    curves = Curves(request)
    blocks = blocks_of(request.focus)
    layers = in_model_order(request.focus, blocks.layers)
    rows = layers or list(blocks.named)
    quantity, chosen = _quantity(request, rows), _chosen(request, blocks)
    first, more = _first_and_more(detail(curves, chosen or "all"))
    side_by_side, other_stages = _first_and_more(blocks_section(curves))
    folded = [
        *more,
        *other_stages,
        *clipping(curves),
        *direction(curves),
        *noise(curves),
        *history(curves),
        *_histogram(request, chosen or "all"),
    ]
    open_first = [*_map(curves, rows, quantity), *first, *side_by_side]
    charts = [*open_first, *(replace(chart, fold=True) for chart in folded)]
    something = any(chart.empty is None for chart in charts)
    return View(
        view="gradients",
        title="Gradients",
        runs=[run.id for run in request.runs],
        header=(
            [f"Of {len(request.runs)} runs the main curves; choose up to {FEW} to see all."]
            if curves.crowded
            else ()
        ),
        controls=_controls(request.focus, blocks, layers, quantity, chosen) if something else (),
        charts=charts if something else (),
        empty=None if something else _nothing(request),
    )


OPEN = ("norms", "detail-update_ratio", "blocks-raw")
"""What answers the question: how large, how large beside the weights, and where."""


def _first_and_more(charts: Sequence[Chart]) -> tuple[list[Chart], list[Chart]]:
    """Those that are open, and the rest of their section under a heading of its own."""
    first = [chart for chart in charts if chart.id in OPEN]
    rest = [chart for chart in charts if chart.id not in OPEN]
    if not first:
        return rest, []
    return first, [replace(chart, section=f"{chart.section}: more") for chart in rest]


def _quantity(request: ViewRequest, rows: Sequence[str]) -> str:
    asked = request.query.option("quantity")
    if asked and asked not in QUANTITIES:
        raise UnknownName(
            "quantity", asked, QUANTITIES, hint=f"(there are {', '.join(QUANTITIES)})"
        )
    there = _there(request.focus, rows)
    return asked or next(iter(there), "norm")


def _there(run: OpenRun, rows: Sequence[str]) -> list[str]:
    """The quantities that any row has."""
    return [
        name
        for name, quantity in QUANTITIES.items()
        if any(f"grad/{block}/{quantity.end}" in run.names for block in rows)
    ]


def _chosen(request: ViewRequest, blocks: RunBlocks) -> str:
    """The layer or block in the URL; empty for the whole model."""
    asked = request.query.option("layer")
    if asked in ("", "all") or asked in blocks.main or asked in blocks.layers:
        return "" if asked == "all" else asked
    known = {
        block
        for run in request.runs
        for each in [blocks_of(run)]
        for block in (*each.main, *each.layers)
    }
    if asked not in known:
        hint = (
            f"({called(request, request.focus)} has {len(blocks.layers)} layers and"
            f" {len(blocks.named)} named blocks)"
        )
        raise UnknownName("layer", asked, known, hint=hint)
    return asked


def _map(curves: Curves, rows: Sequence[str], name: str) -> list[Chart]:
    """Layer × step of the run in focus."""
    run, quantity = curves.request.focus, QUANTITIES[name]
    having = [block for block in rows if f"grad/{block}/{quantity.end}" in run.names]
    lines = [
        curves.row(
            run, f"grad/{block}/{quantity.end}", block_title(block), key=block, most=MOST_COLUMNS
        )
        for block in having[:MOST_ROWS]
    ]
    cut = f"the first {MOST_ROWS} of {len(having)} layers" if len(having) > MOST_ROWS else ""
    whose = called(curves.request, run) if len(curves.request.runs) > 1 else ""
    template = f"grad/<block>/{quantity.end}"
    return [
        Chart(
            id="layers",
            kind="map",
            title=f"Layers: {quantity.label}",
            section="Layers",
            subtitle=" · ".join(filter(None, (whose, cut))),
            y=Axis(
                title=quantity.label,
                scale=CATALOGUE[template].scale,
                low=quantity.high and 0.0,
                high=quantity.high,
            ),
            lines=lines,
            reduce=quantity.reduce,
            colours="health" if name == "health" else "sequential",
            info=info_of(template),
            wide=True,
            pick="layer",
            empty=None if lines else measured_at(run, f"{quantity.label} by layer", quantity.tier),
        )
    ]


def _controls(
    run: OpenRun, blocks: RunBlocks, layers: Sequence[str], quantity: str, chosen: str
) -> list[Control]:
    there = _there(run, layers or blocks.named)
    offered = [name for name in QUANTITIES if name in there or name == quantity]
    places = [block for block in (*blocks.named, *layers) if block != chosen]
    listed = (
        [*blocks.named, *layers] if chosen in (*blocks.named, *layers, "") else [chosen, *places]
    )
    return [
        Control(
            kind="choice",
            name="quantity",
            label="Map shows",
            value=quantity,
            options=[Option(value=name, label=QUANTITIES[name].label) for name in offered],
        ),
        Control(
            kind="choice",
            name="layer",
            label="Curves of",
            value=chosen,
            hint="or click a row of the map",
            options=[
                Option(value="", label=block_title("all")),
                *(Option(value=block, label=_option_label(block)) for block in listed),
            ],
        ),
    ]


def _option_label(block: str) -> str:
    return block_title(block) if block.startswith(LAYER) else f"block {block}"


def _nothing(request: ViewRequest) -> Empty:
    return Empty(
        title="No gradients",
        cause=f"{called(request, request.focus)} has no gradients per block and no series that"
        " is known to be a gradient norm.",
        fix="Put the meter around the training. It records norm, clipping, direction and health of"
        " every layer.",
        code=watch_it(run=request.focus),
    )


MICRO_BATCHES = "meter/micro_batches"
BAND_OF_NOISE = "grad/all/cos_noise", "noise alone: 95 % within ±"
BATCH_OF_STEP = "meter/noise_batch", "batch of a step"
BlocksOf = dict[str, tuple[str, ...]]
"""RunBlocks to draw, by the id of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockQuantity:
    """A chart of one quantity of a block."""

    end: str
    title: str
    levels: tuple[Level, ...] = ()
    low: float | None = None
    high: float | None = None


DESCENT = Level(value=0.0, label="below: uphill on its own batch")
NO_DIRECTION = Level(value=0.0, label="noise alone: 0")
DETAIL = (
    BlockQuantity(
        end="update_ratio",
        title="Update ratio",
        levels=(
            Level(value=1e-4, label="slow below 1e-4"),
            Level(value=1e-2, label="fast above 1e-2"),
        ),
    ),
    BlockQuantity(
        end="health",
        title="Health",
        levels=(Level(value=0.8, label="healthy above 0.8"),),
        low=0.0,
        high=1.0,
    ),
    BlockQuantity(end="max_abs", title="Largest element"),
    BlockQuantity(
        end="zero_fraction",
        title="Zero share",
        levels=(Level(value=0.7, label="dying ReLU above 0.7"),),
        low=0.0,
        high=1.0,
    ),
)
CLIP = (
    BlockQuantity(
        end="clip/rate",
        title="Clip rate",
        levels=(Level(value=0.2, label="outliers only: below 0.2"),),
        low=0.0,
        high=1.0,
    ),
    BlockQuantity(end="clip/ratio", title="Clip ratio"),
    BlockQuantity(end="clip/intensity", title="Clip intensity", low=0.0, high=1.0),
)
DIRECTION = (
    BlockQuantity(end="cos_prev", title="Cosine with the step before", levels=(NO_DIRECTION,)),
    BlockQuantity(end="cos_ema", title="Cosine with earlier steps", levels=(NO_DIRECTION,)),
    BlockQuantity(end="cos_update", title="Cosine of descent and update", levels=(DESCENT,)),
    BlockQuantity(end="alignment", title="Alignment of micro-batches"),
    BlockQuantity(
        end="alignment_window",
        title="Alignment of the last 8 steps",
        levels=(Level(value=0.35, label="noise alone: 0.35"),),
    ),
    BlockQuantity(
        end="sign_agreement",
        title="Signs kept since the step before",
        levels=(Level(value=0.5, label="noise alone: 0.5"),),
    ),
)
NOISE = (
    BlockQuantity(end="noise_scale", title="Noise scale"),
    BlockQuantity(end="noise_scale_bound", title="Noise scale, lower bound"),
)
HISTORY = (
    BlockQuantity(
        end="drift", title="Drift of the norm", levels=(Level(value=0.0, label="steady"),)
    ),
    BlockQuantity(
        end="drift_p", title="p-value of the drift", levels=(Level(value=0.05, label="0.05"),)
    ),
    BlockQuantity(end="period", title="Period of the norm"),
)
OF_STANDARD = ("update_ratio", "health", "zero_fraction", "norm/update")


def detail(curves: Curves, block: str) -> list[Chart]:
    """Everything of the chosen block, in all runs that have it."""
    section = block_title(block)
    runs = curves.request.runs
    stages = STAGES[:1] if curves.crowded else STAGES
    lines = [line for run in runs for line in norm_lines(curves, run, stages, block)]
    charts = chart("norms", "Norm by stage", lines, section=section)
    of_it: BlocksOf = {run.id: (block,) for run in runs}
    wanted = (
        DETAIL[:2] if curves.crowded else DETAIL if block == "all" else (*DETAIL, *DIRECTION[:3])
    )
    charts += [
        made
        for each in wanted
        for made in _curve_chart(curves, each, of_it, section, id=f"detail-{_curve_id(each.end)}")
    ]
    focus = curves.request.focus
    if (
        charts
        and isinstance(focus.log, Run)
        and not any(f"grad/{block}/{end}" in focus.names for end in OF_STANDARD)
    ):
        missing = measured_at(focus, "update, health and zero share", "standard")
        charts += _without(
            "detail-standard", "Update ratio, health, zero share", section, OF_STANDARD, missing
        )
    return charts


def blocks_section(curves: Curves) -> list[Chart]:
    """The named blocks side by side at each stage, of a few runs."""
    runs = curves.request.runs[:FEW]
    blocks = {run.id: blocks_of(run) for run in runs}
    if not any(found.named for found in blocks.values()):
        return []
    many = len(curves.request.runs)
    cut = f"the first {FEW} of {many} runs" if many > FEW else ""
    charts = []
    for stage in STAGES:
        lines = [
            curves.line(run, f"grad/{block}/norm/{stage}", block_title(block), role=_role(block))
            for run in runs
            for block in blocks[run.id].main
            if f"grad/{block}/norm/{stage}" in run.names
        ]
        charts += chart(
            f"blocks-{stage}", f"Norm by block, {stage}", lines, section="Blocks", subtitle=cut
        )
    return charts


def clipping(curves: Curves) -> list[Chart]:
    """What the clip did, of the whole model or of the blocks that are clipped by themselves."""
    charts = _section(curves, CLIP, "Clipping")
    if not curves.crowded:
        lines = _thresholds(curves)
        charts = [*chart("clip-threshold", "Clip threshold", lines, section="Clipping"), *charts]
    if charts or not _is_metered(curves.request.focus):
        return charts
    empty = Empty(
        title="No clipping was detected",
        cause=(
            "No call of clip_grad_norm_ or clip_grad_value_ covered a block while the meter looked."
        ),
        fix="Nothing, if the training does not clip. An engine that clips inside its own code"
        " cannot be seen; torch's functions are, however they are called.",
        code="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)",
    )
    return _without("clip-threshold", "Clip threshold", "Clipping", ["clip/threshold"], empty)


def _thresholds(curves: Curves) -> list[Line]:
    """The threshold beside the raw norm; of blocks clipped apart the thresholds alone."""
    of, lines = _blocks_shown(curves, "clip/threshold"), []
    for run in curves.request.runs:
        alone = len(of[run.id]) == 1
        for block in of[run.id]:
            if alone and f"grad/{block}/norm/raw" in run.names:
                lines.append(curves.line(run, f"grad/{block}/norm/raw", "raw norm", role="raw"))
            what = "threshold" if alone else f"threshold of {block}"
            role = "threshold" if alone else _role(block)
            lines.append(curves.line(run, f"grad/{block}/clip/threshold", what, role=role))
    return lines


def direction(curves: Curves) -> list[Chart]:
    """Where gradients point, beside what noise alone would read."""
    charts = []
    for each in DIRECTION[:1] if curves.crowded else DIRECTION:
        more = _beside(curves, *BAND_OF_NOISE) if each.end == "cos_prev" else []
        levels = _alignment_level(curves.request.focus) if each.end == "alignment" else each.levels
        charts += _curve_chart(
            curves, each, _blocks_shown(curves, each.end), "Direction", more=more, levels=levels
        )
    if charts or not _is_metered(curves.request.focus):
        return charts
    empty = measured_at(curves.request.focus, "direction", "standard")
    return _without("cos_prev", DIRECTION[0].title, "Direction", ["cos_prev"], empty)


def noise(curves: Curves) -> list[Chart]:
    """The gradient noise scale, or why there is none."""
    more = _beside(curves, *BATCH_OF_STEP)
    charts = [
        made
        for each in (NOISE[:1] if curves.crowded else NOISE)
        for made in _curve_chart(curves, each, _blocks_shown(curves, each.end), "Noise", more=more)
    ]
    if charts or not _is_metered(curves.request.focus):
        return charts
    empty = Empty(
        title="No noise scale",
        cause="It compares the parts of one batch, so it needs several backward passes before a "
        "step, or several ranks.",
        fix="Accumulate gradients over at least two micro-batches (or train with DDP) with"
        ' tier="standard"; it comes after 8 such updates. micro_batch_size= puts it in samples.',
        code=watch_it("micro_batch_size=32"),
    )
    return _without("noise_scale", NOISE[0].title, "Noise", ["noise_scale"], empty)


def history(curves: Curves) -> list[Chart]:
    """Whether the norm drifts or repeats itself; there once the meter has enough of a past."""
    return [] if curves.crowded else _section(curves, HISTORY, "History of the norm")


def _section(curves: Curves, quantities: Sequence[BlockQuantity], name: str) -> list[Chart]:
    """Each of the quantities; of many runs only the first."""
    return [
        made
        for each in (quantities[:1] if curves.crowded else quantities)
        for made in _curve_chart(curves, each, _blocks_shown(curves, each.end), name)
    ]


def _curve_chart(
    curves: Curves,
    quantity: BlockQuantity,
    of: BlocksOf,
    section: str,
    *,
    id: str = "",
    more: Sequence[Line] = (),
    levels: Sequence[Level] | None = None,
) -> list[Chart]:
    """A quantity of blocks by run; `more` are lines to compare with."""
    lines = []
    for run in curves.request.runs:
        having = [block for block in of[run.id] if f"grad/{block}/{quantity.end}" in run.names]
        for block in having:
            name, alone = f"grad/{block}/{quantity.end}", len(having) == 1
            what, role = (name, "") if alone else (block_title(block), _role(block))
            lines.append(curves.line(run, name, what, role=role))
    if not lines:
        return []
    return chart(
        id or _curve_id(quantity.end),
        quantity.title,
        [*lines, *more],
        section=section,
        low=quantity.low,
        high=quantity.high,
        levels=quantity.levels if levels is None else levels,
    )


def _without(id: str, title: str, section: str, ends: Sequence[str], empty: Empty) -> list[Chart]:
    """A chart that says why it is not there."""
    info = info_of(*(f"grad/<block>/{end}" for end in ends))
    return [Chart(id=id, kind="lines", title=title, section=section, info=info, empty=empty)]


def _blocks_shown(curves: Curves, end: str) -> BlocksOf:
    """The blocks to draw: all of one run; of several the whole model where they have it."""
    several = len(curves.request.runs) > 1
    found: BlocksOf = {}
    for run in curves.request.runs:
        if several and f"grad/all/{end}" in run.names:
            found[run.id] = ("all",)
        else:
            having = tuple(
                block for block in blocks_of(run).main if f"grad/{block}/{end}" in run.names
            )
            found[run.id] = having
    return found


def _beside(curves: Curves, name: str, label: str) -> list[Line]:
    """A series to compare with, of the whole model of one run."""
    run = curves.request.focus
    if len(curves.request.runs) > 1 or name not in run.names:
        return []
    return [curves.line(run, name, label, role="null")]


def _alignment_level(run: OpenRun) -> list[Level]:
    """m micro-batches of noise alone give 1/√m."""
    newest = run.log.newest_step
    if MICRO_BATCHES not in run.names or newest is None:
        return []
    parts = float(run.log.latest(MICRO_BATCHES, np.array([newest], dtype=np.int64))[0])
    return [Level(value=parts**-0.5, label=f"noise alone: 1/√{parts:g}")] if parts >= 1 else []


def _is_metered(run: OpenRun) -> bool:
    return any(name.startswith("grad/") for name in run.names)


def _role(block: str) -> str:
    return "whole" if block == "all" else f"block:{block}"


def _curve_id(end: str) -> str:
    return end.replace("/", "-")


MOST_STEPS = 120
BINS = 37
"""Zeros, below 1e-12, 32 half decades, above 1e4, NaN, Inf: as maths/histogram.py counts."""
LOWEST, HIGHEST, PER_DECADE = -12, 4, 2
ENDS = [half / PER_DECADE for half in range(LOWEST * PER_DECADE, HIGHEST * PER_DECADE + 1)]
ROWS = (
    "exactly zero",
    f"below {LOWEST}",
    *(f"{low:g} … {high:g}" for low, high in pairwise(ENDS)),
    f"above {HIGHEST}",
    "NaN",
    "Inf",
)
"""What each count is; of sizes, log10."""
PREFIX, SIZES = "histogram/", "Histograms"


def _histogram(request: ViewRequest, block: str) -> list[Chart]:
    """Sizes of the elements of a block, else of the whole model, as shares of all."""
    run = request.focus
    kept = [name.removeprefix(PREFIX) for name in run.log.vector_names() if name.startswith(PREFIX)]
    block = (
        block
        if block in kept
        else "all"
        if "all" in kept
        else next((k for k in kept if "expert/" not in k), "")
    )
    if not block:
        if not any(name.startswith("grad/") for name in run.names):
            return []
        empty = measured_at(run, "histograms", "deep")
        info = info_of("grad/<block>/max_abs")
        return [
            Chart(
                id="histogram",
                kind="matrix",
                title="Sizes of the elements",
                section=SIZES,
                info=info,
                empty=empty,
            )
        ]
    steps = _within(request, run.log.vector_steps(PREFIX + block))
    others = [block_title(other) for other in kept if other != block and "expert/" not in other]
    told = (
        called(request, run) if len(request.runs) > 1 else "",
        f"choose {' or '.join(others[:4])} above" if others else "",
    )
    return [
        Chart(
            id="histogram",
            kind="matrix",
            title=f"Sizes of the elements · {block_title(block)}",
            section=SIZES,
            subtitle=" · ".join(filter(None, told)),
            x=Axis(title="step"),
            y=Axis(title="log10 |g|"),
            matrix=_matrix(run, PREFIX + block, steps) if request.query.opens(SIZES) else None,
            info=info_of("grad/<block>/max_abs"),
            wide=True,
        )
    ]


def _within(request: ViewRequest, steps: Ints) -> Ints:
    """At most 120 of the asked steps, evenly, and the last: a training may break there."""
    first, last = request.query.first, request.query.last
    inside = steps[
        (steps >= (steps[0] if first is None else first))
        & (steps <= (steps[-1] if last is None else last))
    ]
    if len(inside) <= MOST_STEPS:
        return inside
    stride = -(-len(inside) // (MOST_STEPS - 1))
    return np.unique(np.append(inside[::stride], inside[-1]))


def _matrix(run: OpenRun, name: str, steps: Ints) -> Matrix:
    """[bins, steps] shares, without the empty sizes at either end."""
    counts = np.array(
        [run.log.vector(name, int(step)).values for step in steps], dtype=np.float64
    ).reshape(-1, BINS)
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    filled = FIRST + np.flatnonzero(counts[:, FIRST : LAST + 1].any(axis=0))
    sizes = range(int(filled[0]), int(filled[-1]) + 1) if len(filled) else range(0)
    rows = [ZERO, *sizes, NAN, INF]
    return Matrix(
        rows=[ROWS[row] for row in rows],
        columns=steps.tolist(),
        cells=[_rounded(shares[:, row]) for row in rows],
        low=0.0,
    )


def _rounded(shares: np.ndarray[Any, np.dtype[np.float64]]) -> list[Number]:
    """To four digits: the page needs no more, and a tick of a live run should be small."""
    return [float(f"{share:.4g}") for share in shares.tolist()]
