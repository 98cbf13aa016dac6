"""Curves of blocks: one in detail, all named ones side by side, clipping, direction, noise and the history of the norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradiometer.dashboard.desk import Open, info_of
from gradiometer.dashboard.shape import Chart, Empty, Level, Line
from gradiometer.dashboard.views.layers import block_title, blocks_of, measured_at, watch_it
from gradiometer.dashboard.views.norms import STAGES, norm_lines
from gradiometer.dashboard.views.series import FEW, Curves, chart
from gradiometer.store.reader import Run

__all__ = ["blocks_section", "clipping", "detail", "direction", "history", "noise"]

MICRO_BATCHES = "meter/micro_batches"
BlocksOf = dict[str, tuple[str, ...]]
"""Blocks to draw, by the id of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A chart of one quantity of a block."""

    end: str
    title: str
    levels: tuple[Level, ...] = ()
    low: float | None = None
    high: float | None = None


DESCENT = Level(value=0.0, label="below: uphill on its own batch")
NO_DIRECTION = Level(value=0.0, label="noise alone: 0")
DETAIL = (
    Quantity(
        end="update_ratio", title="Update ratio",
        levels=(Level(value=1e-4, label="slow below 1e-4"), Level(value=1e-2, label="fast above 1e-2")),
    ),
    Quantity(end="health", title="Health", levels=(Level(value=0.8, label="healthy above 0.8"),), low=0.0, high=1.0),
    Quantity(end="max_abs", title="Largest element"),
    Quantity(
        end="zero_fraction", title="Zero share", levels=(Level(value=0.7, label="dying ReLU above 0.7"),), low=0.0, high=1.0
    ),
)  # fmt: skip
CLIP = (
    Quantity(
        end="clip/rate", title="Clip rate", levels=(Level(value=0.2, label="outliers only: below 0.2"),), low=0.0, high=1.0
    ),
    Quantity(end="clip/ratio", title="Clip ratio"),
    Quantity(end="clip/intensity", title="Clip intensity", low=0.0, high=1.0),
)  # fmt: skip
DIRECTION = (
    Quantity(end="cos_prev", title="Cosine with the step before", levels=(NO_DIRECTION,)),
    Quantity(end="cos_ema", title="Cosine with earlier steps", levels=(NO_DIRECTION,)),
    Quantity(end="cos_update", title="Cosine of descent and update", levels=(DESCENT,)),
    Quantity(end="alignment", title="Alignment of micro-batches"),
    Quantity(
        end="alignment_window", title="Alignment of the last 8 steps",
        levels=(Level(value=0.35, label="noise alone: 0.35"),),
    ),
    Quantity(
        end="sign_agreement", title="Signs kept since the step before",
        levels=(Level(value=0.5, label="noise alone: 0.5"),),
    ),
)  # fmt: skip
NOISE = (
    Quantity(end="noise_scale", title="Noise scale"),
    Quantity(end="noise_scale_bound", title="Noise scale, lower bound"),
)
HISTORY = (
    Quantity(end="drift", title="Drift of the norm", levels=(Level(value=0.0, label="steady"),)),
    Quantity(end="drift_p", title="p-value of the drift", levels=(Level(value=0.05, label="0.05"),)),
    Quantity(end="period", title="Period of the norm"),
)
OF_STANDARD = ("update_ratio", "health", "zero_fraction", "norm/update")


def detail(curves: Curves, block: str) -> list[Chart]:
    """Everything of the chosen block, in all runs that have it."""
    section = block_title(block)
    runs = curves.desk.runs
    stages = STAGES[:1] if curves.crowded else STAGES
    lines = [line for run in runs for line in norm_lines(curves, run, stages, block)]
    charts = chart("norms", "Norm by stage", lines, section=section)
    of_it: BlocksOf = {run.id: (block,) for run in runs}
    wanted = DETAIL[:2] if curves.crowded else DETAIL if block == "all" else (*DETAIL, *DIRECTION[:3])
    charts += [made for each in wanted for made in _chart(curves, each, of_it, section, id=f"detail-{_id(each.end)}")]
    focus = curves.desk.focus
    if charts and isinstance(focus.log, Run) and not any(f"grad/{block}/{end}" in focus.names for end in OF_STANDARD):
        missing = measured_at(focus, "update, health and zero share", "standard")
        charts += _without("detail-standard", "Update ratio, health, zero share", section, OF_STANDARD, missing)
    return charts


def blocks_section(curves: Curves) -> list[Chart]:
    """The named blocks side by side at each stage, of a few runs."""
    runs = curves.desk.runs[:FEW]
    blocks = {run.id: blocks_of(run) for run in runs}
    if not any(found.named for found in blocks.values()):
        return []
    cut = f"the first {FEW} of {len(curves.desk.runs)} runs" if len(curves.desk.runs) > FEW else ""
    charts = []
    for stage in STAGES:
        lines = [
            curves.line(run, f"grad/{block}/norm/{stage}", block_title(block), role=_role(block))
            for run in runs
            for block in blocks[run.id].main
            if f"grad/{block}/norm/{stage}" in run.names
        ]
        charts += chart(f"blocks-{stage}", f"Norm by block, {stage}", lines, section="Blocks", subtitle=cut)
    return charts


def clipping(curves: Curves) -> list[Chart]:
    """What the clip did, of the whole model or of the blocks that are clipped by themselves."""
    wanted = CLIP[:1] if curves.crowded else CLIP
    charts = [
        *(() if curves.crowded else chart("clip-threshold", "Clip threshold", _thresholds(curves), section="Clipping")),
        *(made for each in wanted for made in _chart(curves, each, _shown(curves, each.end), "Clipping")),
    ]
    if charts or not _is_metered(curves.desk.focus):
        return charts
    empty = Empty(
        title="No clip was seen",
        cause="No call of clip_grad_norm_ or clip_grad_value_ covered a block while the meter looked.",
        fix="Nothing, if the training does not clip. An engine that clips inside its own code cannot be seen; "
        "torch's functions are, however they are called.",
        code="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)",
    )
    return _without("clip-threshold", "Clip threshold", "Clipping", ["clip/threshold"], empty)


def _thresholds(curves: Curves) -> list[Line]:
    """The threshold, and the raw norm that it is compared with; of blocks that are clipped apart the thresholds alone."""
    of, lines = _shown(curves, "clip/threshold"), []
    for run in curves.desk.runs:
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
        more = _of_noise(curves) if each.end == "cos_prev" else []
        levels = _alignment_level(curves.desk.focus) if each.end == "alignment" else each.levels
        charts += _chart(curves, each, _shown(curves, each.end), "Direction", more=more, levels=levels)
    if charts or not _is_metered(curves.desk.focus):
        return charts
    empty = measured_at(curves.desk.focus, "direction", "standard")
    return _without("cos_prev", DIRECTION[0].title, "Direction", ["cos_prev"], empty)


def noise(curves: Curves) -> list[Chart]:
    """The gradient noise scale, or why there is none."""
    wanted = NOISE[:1] if curves.crowded else NOISE
    charts = [made for each in wanted for made in _chart(curves, each, _shown(curves, each.end), "Noise")]
    if charts or not _is_metered(curves.desk.focus):
        return charts
    empty = Empty(
        title="No noise scale",
        cause="It compares the parts of one batch, so it needs several backward passes before a step, or several ranks.",
        fix='Accumulate gradients over at least two micro-batches (or train with DDP) with tier="standard"; '
        "it comes after 8 such updates. micro_batch_size= puts it in samples.",
        code=watch_it("micro_batch_size=32"),
    )
    return _without("noise_scale", NOISE[0].title, "Noise", ["noise_scale"], empty)


def history(curves: Curves) -> list[Chart]:
    """Whether the norm drifts or repeats itself; there once the meter has enough of a past."""
    if curves.crowded:
        return []
    return [made for each in HISTORY for made in _chart(curves, each, _shown(curves, each.end), "History of the norm")]


def _chart(
    curves: Curves,
    quantity: Quantity,
    of: BlocksOf,
    section: str,
    *,
    id: str = "",
    more: Sequence[Line] = (),
    levels: Sequence[Level] | None = None,
) -> list[Chart]:
    """A quantity of blocks by run; `more` are lines to compare with."""
    lines = []
    for run in curves.desk.runs:
        having = [block for block in of[run.id] if f"grad/{block}/{quantity.end}" in run.names]
        for block in having:
            name = f"grad/{block}/{quantity.end}"
            alone = len(having) == 1
            lines.append(
                curves.line(run, name, name if alone else block_title(block), role="" if alone else _role(block))
            )
    if not lines:
        return []
    return chart(
        id or _id(quantity.end), quantity.title, [*lines, *more], section=section, low=quantity.low, high=quantity.high,
        levels=quantity.levels if levels is None else levels,
    )  # fmt: skip


def _without(id: str, title: str, section: str, ends: Sequence[str], empty: Empty) -> list[Chart]:
    """A chart that says why it is not there."""
    info = info_of(*(f"grad/<block>/{end}" for end in ends))
    return [Chart(id=id, kind="lines", title=title, section=section, info=info, empty=empty)]


def _shown(curves: Curves, end: str) -> BlocksOf:
    """The blocks of each run to draw: all of one run; of several the whole model, or the blocks where that has none."""
    several = len(curves.desk.runs) > 1
    found: BlocksOf = {}
    for run in curves.desk.runs:
        if several and f"grad/all/{end}" in run.names:
            found[run.id] = ("all",)
        else:
            having = tuple(block for block in blocks_of(run).main if f"grad/{block}/{end}" in run.names)
            found[run.id] = having
    return found


def _of_noise(curves: Curves) -> list[Line]:
    """What |cos_prev| reads on noise alone, of the whole model of one run."""
    run, name = curves.desk.focus, "grad/all/cos_noise"
    if len(curves.desk.runs) > 1 or name not in run.names:
        return []
    return [curves.line(run, name, "noise alone, ±", role="null")]


def _alignment_level(run: Open) -> list[Level]:
    """m micro-batches of noise alone give 1/√m."""
    newest = run.log.newest_step
    if MICRO_BATCHES not in run.names or newest is None:
        return []
    parts = float(run.log.latest(MICRO_BATCHES, np.array([newest], dtype=np.int64))[0])
    return [Level(value=parts**-0.5, label=f"noise alone: 1/√{parts:g}")] if parts >= 1 else []


def _is_metered(run: Open) -> bool:
    return any(name.startswith("grad/") for name in run.names)


def _role(block: str) -> str:
    return "" if block == "all" else f"block:{block}"


def _id(end: str) -> str:
    return end.replace("/", "-")
