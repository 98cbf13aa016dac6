"""Blocks of weights: one that no loss reaches, and one that has a gradient and never moves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Verdict
from gradiometer.doctor.rules.wiring import wired
from gradiometer.doctor.signs import level
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["dead_block", "not_in_optimizer"]

RAW, UPDATE = "grad/<block>/norm/raw", "grad/<block>/norm/update"

MIN_STEPS = 5
"""Measured steps before a block is called dead or stuck: a critic may warm up, a learning rate start at zero."""
ZERO_STEPS = 20
"""Exact zeros on steps on which others have a gradient: as many as make a stationary term dead (FORMULAS section 5)."""
ROUTERS = re.compile(r"router|gate", re.I)
"""Blocks that router-untrained judges, where routers were found."""


CUT_OFF = 3
"""Layers from the first on without a gradient: no unused head or pooler, but a cut somewhere above them."""


@wired("dead-block")
def dead_block(chart: Chart) -> Verdict:
    """A block that is trained and that no loss reaches: no term has a path to it, or its gradient is exactly zero.

    Weights that are frozen on purpose are no finding, nor are experts and routers, which have rules of their own. Single layers
    without a gradient (an unused pooler or value head) are information.
    """
    whole = chart.get(RAW, block="all")
    if whole is None:
        return unlogged("dead-block", RAW)
    if len(whole) < MIN_STEPS:
        return too_short("dead-block", whole, MIN_STEPS)
    found = [_unreached(chart, block, whole) for block in sorted(_blocks(chart)) if _is_dead(chart, block, whole)]
    found += list(_silent(chart, whole))
    return found or _unused_layers(chart, whole)


def _blocks(chart: Chart) -> set[str]:
    """Named blocks: those of the terms' table, and those that the optimizer holds."""
    content = chart.table("terms")
    rows = content.values() if isinstance(content, dict) else ()
    reached = {str(block) for row in rows if isinstance(row, dict) for block in row}
    held = {series.parts.get("block", "all") for series in chart.every(UPDATE)}
    named = {block for block in reached | held if block != "all" and not block.startswith("layer.")}
    routed = chart.has("router/<router>/load/<expert>")
    return {block for block in named if not (routed and ROUTERS.search(block))}


def _is_dead(chart: Chart, block: str, whole: Series) -> bool:
    """No gradient was ever measured, no term has a path, and it is not frozen: the optimizer holds it, or nothing is."""
    if chart.get(RAW, block=block) is not None:
        return False
    content = chart.table("terms")
    rows = content.values() if isinstance(content, dict) else ()
    if any(isinstance(row, dict) and row.get(block, "none") != "none" for row in rows):
        return False
    states = chart.table("states")
    kinds = set(states.values()) if isinstance(states, dict) else set()
    return chart.get(UPDATE, block=block) is not None or ("missing" in kinds and "frozen" not in kinds)


def _unreached(chart: Chart, block: str, whole: Series) -> Finding:
    content = chart.table("terms")
    terms = ", ".join(map(repr, content)) if isinstance(content, dict) and content else "the loss"
    first, last = int(whole.steps[0]), int(whole.steps[-1])
    return Finding(
        id="dead-block",
        title=f"No loss reaches the block {block!r}: it has had no gradient on any of {len(whole)} measured steps",
        severity="critical",
        basis="proved",
        since_step=first,
        block=block,
        evidence=(
            Evidence(series="terms", reading=f"no autograd path from {terms} to {block!r}", first_step=first),
            Evidence(
                series=f"grad/{block}/norm/raw",
                reading=f"missing on all of {len(whole)} steps on which the rest has a gradient",
                first_step=first,
                last_step=last,
            ),
        ),
        cause="Its output is detached, computed under torch.no_grad(), replaced by a stored value, or not used by the loss.",
        fix=(
            f"Compute what {block!r} puts out with gradients inside the update, and let a term of the loss depend on it",
            "If it is not to be trained, say so: requires_grad_(False), and leave it out of the optimizer",
        ),
        confirm=f"Print torch.autograd.grad(loss, parameters of {block!r}, allow_unused=True): every entry is None.",
        references=("failure catalogue F34, F36",),
    )


def _silent(chart: Chart, whole: Series) -> Iterator[Finding]:
    """Blocks with a path along which exactly zero arrives, on steps on which the others get something."""
    alive = whole.steps[whole.values > 0]
    for series in chart.every(RAW):
        block = series.parts.get("block", "all")
        if block not in _blocks(chart) or series.values.any():
            continue
        both = np.intersect1d(series.steps, alive)
        if len(both) >= ZERO_STEPS:
            yield Finding(
                id="dead-block",
                title=f"The gradient of the block {block!r} is exactly zero on all of {len(both)} measured steps",
                severity="critical",
                basis="proved",
                since_step=int(both[0]),
                block=block,
                evidence=(
                    Evidence(
                        series=series.name,
                        reading=f"exactly 0 on {len(both)} steps on which grad/all/norm/raw is {fmt(level(whole))}",
                        first_step=int(both[0]),
                        last_step=int(both[-1]),
                    ),
                ),
                cause="There is a path, and nothing passes: dead ReLUs, a mask or a clamp, or a product with an exact zero.",
                fix=("Look at the outputs of this block: what multiplies them is zero on every sample",),
                confirm="Replace the ReLU behind it by a leaky one, or take the mask away, for one batch: a gradient appears.",
                references=("AutoTrainer: dying ReLU",),
            )


def _unused_layers(chart: Chart, whole: Series) -> Finding | None:
    """Layers whose parameters are all missing since the newest table, of those that are no experts."""
    tables = chart.run.tables("states") if "states" in chart.run.table_names() else []
    if not tables or not isinstance(tables[-1].content, dict) or (whole.steps >= tables[-1].step).sum() < MIN_STEPS:
        return None
    layers: dict[str, set[str]] = {}
    for name, state in tables[-1].content.items():
        layers.setdefault(str(name).rpartition(".")[0], set()).add(str(state))
    mixtures = _mixtures(chart)
    unused = [x for x, kinds in layers.items() if kinds == {"missing"} and not x.startswith(mixtures)]
    if not unused:
        return None
    step = tables[-1].step
    shown = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
    below = list(takewhile(lambda kinds: kinds == {"missing"}, layers.values()))  # in the order of the forward
    cut = CUT_OFF <= len(below) < len(layers)
    where = f": nothing below {list(layers)[len(below)]!r} does" if cut else ""
    return Finding(
        id="dead-block",
        title=f"{len(unused)} of {len(layers)} layers get no gradient{where}: {shown}",
        severity="critical" if cut else "info",
        basis="proved",
        since_step=step,
        evidence=(Evidence(series="states", reading=f"missing: {shown}", first_step=step),),
        cause="No loss depends on them. An unused head or pooler is harmless; a layer that was meant to learn is not.",
        fix=("Leave them out of the optimizer, or find where their output is detached or dropped",),
        confirm="Print torch.autograd.grad(loss, their parameters, allow_unused=True): every entry is None.",
    )


def _mixtures(chart: Chart) -> tuple[str, ...]:
    """Module paths of layers with experts: those are judged by rules of their own."""
    content = chart.table("experts")
    layers = content.get("layers") if isinstance(content, dict) else None
    paths = [str(x.get("layer", "")).removeprefix("layer.") for x in layers or () if isinstance(x, dict)]
    return tuple(path for path in paths if path)


@wired("not-in-optimizer")
def not_in_optimizer(chart: Chart) -> Verdict:
    """Weights that have a gradient and never move: no optimizer holds them, or theirs has a learning rate of zero.

    No proof where the meter was given no optimizer that steps them: there may be another. A run in which nothing moves because
    the learning rate is zero, or steps are skipped, is told by other rules.
    """
    moved = {series.parts.get("block", "all"): series for series in chart.every(UPDATE)}
    if not moved:
        return unlogged("not-in-optimizer", UPDATE)
    asked = {series.parts["block"]: series for series in chart.every(RAW) if "block" in series.parts}
    stuck = [block for block, raw in asked.items() if _stuck(raw, moved.get(block))]
    if "all" in stuck:
        return None if _stands_still(chart) else _finding(chart, "all", asked["all"], moved.get("all"), [])
    named = [block for block in stuck if not block.startswith("layer.")]
    layers = [block for block in stuck if block.startswith("layer.")]
    if named:
        return [_finding(chart, block, asked[block], moved.get(block), layers) for block in named]
    return _finding(chart, layers[0], asked[layers[0]], moved.get(layers[0]), layers) if layers else None


def _stuck(raw: Series, update: Series | None) -> bool:
    pushed = int((raw.values > 0).sum())
    return pushed >= MIN_STEPS and (update is None or (len(update) >= MIN_STEPS and not update.values.any()))


def _stands_still(chart: Chart) -> bool:
    rates = [*chart.every("optimizer/<number>/lr"), *chart.every("learning_rate")]
    idle = bool(rates) and all(len(rate) and not rate.values.any() for rate in rates)
    return idle or bool(chart.events("skipped-step"))


def _finding(chart: Chart, block: str, raw: Series, update: Series | None, layers: list[str]) -> Finding:
    first, last = int(raw.steps[0]), int(raw.steps[-1])
    what = "no weight" if block == "all" else f"the block {block!r}"
    never = "has moved" if block == "all" else "has never moved" if update is not None else "is stepped by no optimizer"
    more = f" ({len(layers)} layers)" if len(layers) > 1 else ""
    reading = (
        "missing: no optimizer that watch() was given steps these weights"
        if update is None
        else f"exactly 0 on {len(update)} steps"
    )
    return Finding(
        id="not-in-optimizer",
        title=f"{what[:1].upper()}{what[1:]}{more} {never} in {len(raw)} measured steps, though it has a gradient",
        severity="warn" if update is None or block.startswith("layer.") else "critical",
        basis="heuristic" if update is None else "proved",
        since_step=first,
        block=None if block == "all" else block,
        evidence=(
            Evidence(series=raw.name, reading=f"median {fmt(level(raw))}", first_step=first, last_step=last),
            Evidence(series=f"grad/{block}/norm/update", reading=reading, first_step=first, last_step=last),
        ),
        cause="No optimizer was given these parameters (the model was changed, wrapped or copied after the optimizer was "
        "made), their parameter group has a learning rate of 0, or a step is smaller than half precision can add.",
        fix=(
            "Make the optimizer after the model is complete and on its device: optimizer = Adam(model.parameters())",
            "If they are not to be trained, requires_grad_(False) saves their gradients; otherwise those pile up, for "
            "optimizer.zero_grad() does not clear them",
        ),
        confirm="Compare the ids: {id(p) for g in optimizer.param_groups for p in g['params']} lacks those of the block.",
    )
