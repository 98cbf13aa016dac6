"""What routers ask of each expert, and what trains the routers: the decisions of the doctor's rules
and of `gradiometer experts` alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import level, persists
from gradiometer.maths.means import holm, mean_interval
from gradiometer.store.thinning import Floats, Ints

__all__ = [
    "Ratio",
    "Share",
    "Untrained",
    "by_router",
    "gradient_shares",
    "led_by_aux",
    "loads",
    "starved",
    "surely",
    "uneven",
    "untrained",
]

LOAD = "router/<router>/load/<expert>"
NORM, LAYER_NORM = "grad/expert/<expert>/norm", "grad/<layer>/expert/<expert>/norm"

MIN_POINTS = 9
"""Three windows of three."""
STARVED = 0.1
"""Of an even share. A tenth of the samples is a tenth of the steps (docs/failures.md#f45)."""
NO_GRADIENT = 1e-3
"""Of the other experts' median norm, where no load was measured: routing makes no decades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one expert of a layer gets of load or gradient, over time."""

    place: str
    """Router or layer."""
    expert: str
    num: int
    """Experts of the layer."""
    series: Series
    kind: str
    """`load` or `gradient`."""


def loads(run: RunData) -> list[Share]:
    """The loads of each router; of `all` only where nothing else was kept."""
    return _shares(run.every(LOAD), "router", "load")


def gradient_shares(run: RunData) -> list[Share]:
    """‖g_e‖/Σ‖g‖ over the experts of each layer, on the steps that have them all."""
    layered = run.every(LAYER_NORM) or run.every(NORM)
    groups: dict[str, list[Share]] = {}
    for share in _shares(layered, "layer", "gradient"):
        groups.setdefault(share.place, []).append(share)
    return [share for group in groups.values() for share in _divided(group)]


def _shares(found: list[Series], place: str, kind: str) -> list[Share]:
    groups: dict[str, list[Series]] = {}
    for series in found:
        groups.setdefault(series.parts.get(place, "all"), []).append(series)
    if len(groups) > 1:
        groups.pop("all", None)
    return [
        Share(
            place=name,
            expert=series.parts.get("expert", "?"),
            num=len(group),
            series=series,
            kind=kind,
        )
        for name, group in groups.items()
        for series in group
        if len(group) > 1
    ]


def _divided(group: list[Share]) -> Iterator[Share]:
    every = np.unique(np.concatenate([share.series.finite.steps for share in group]))
    # An expert without any gradient in the newer half is not one that was measured elsewhere.
    silent = [not len(share.series.finite.since(_middle(every))) for share in group]
    steps = every
    for share, is_silent in zip(group, silent, strict=True):
        steps = steps if is_silent else np.intersect1d(steps, share.series.finite.steps)
    values = np.array([_at(share.series.finite, steps) for share in group])
    total = values.sum(axis=0)
    kept = total > 0
    for share, norms in zip(group, values, strict=True):
        yield replace(
            share, series=replace(share.series, steps=steps[kept], values=norms[kept] / total[kept])
        )


def _middle(steps: Ints) -> int:
    return int(steps[len(steps) // 2]) if len(steps) else 0


def _at(series: Series, steps: Ints) -> Floats:
    """Its values at these steps, 0 where it has none."""
    values = np.zeros(len(steps))
    _, here, there = np.intersect1d(steps, series.steps, return_indices=True)
    values[here] = series.values[there]
    return values


def surely(shares: list[Share], bound_of: Callable[[Share], float], *, below: bool) -> list[Share]:
    """Those whose newer half is beyond the bound, by windows and corrected intervals."""
    long = [share for share in shares if len(share.series.finite) >= MIN_POINTS]
    p_values = [_p_beyond(share.series, bound_of(share), below=below) for share in long]
    sure = [share for share, is_sure in zip(long, holm(p_values), strict=True) if is_sure]
    return [share for share in sure if _lasts(share.series, bound_of(share), below=below)]


def _lasts(series: Series, bound: float, *, below: bool) -> bool:
    return bool(persists(series, lambda x: x < bound if below else x > bound))


def _p_beyond(series: Series, bound: float, *, below: bool) -> float:
    """Of the newer half; where it wanders too slowly for an interval, all points must be beyond."""
    values = series.finite.last(0.5).values
    interval = mean_interval(values)
    if interval is None:
        return 0.0 if (values < bound if below else values > bound).all() else 1.0
    return interval.p_below(bound) if below else interval.p_above(bound)


TASK, AUX, WHOLE = "router/<router>/grad_task", "router/<router>/grad_aux", "router/<router>/grad"
BALANCE, DEAD, VIOLATION = (
    "router/<router>/balance",
    "router/<router>/dead_share",
    "router/<router>/max_violation",
)

UNTRAINED = 1e-6
"""Router gradient over its experts'. Healthy within a few decades; minimind issue 858 had 7e-10."""
ALMOST_NOTHING = 1e-8
"""The same as a norm, where no expert's is at hand."""
MIN_TERMS = 5
"""Loss terms are split on the first five measured steps and then on every tenth."""
AUX_LEADS = 3.0
"""grad_aux over grad_task; Megatron-LM issue 5694 had 3.4 times the gradient."""
UNEVEN, COLLAPSING = 0.8, 0.5
"""exp(entropy of the load)/N: below the first unhealthy (NeMo), below the second half are idle."""
MOSTLY_DEAD = 0.5
"""Share of the experts that get nothing on a typical step."""
TWICE = 1.0
"""max_violation: the busiest expert has twice its share (verl's max_vio)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A router's gradient against something it should be of a size with."""

    router: str
    series: Series
    """The router's gradient."""
    values: np.ndarray[tuple[int], np.dtype[np.float64]]
    steps: np.ndarray[tuple[int], np.dtype[np.int64]]


def ratios(run: RunData) -> list[Ratio]:
    """Of each router: the task's gradient (else the whole one) over its experts' median norm."""
    found = by_router(run, TASK) or by_router(run, WHOLE)
    return [
        _over_experts(run, router, series.finite)
        for router, series in found.items()
        if len(series.finite)
    ]


def by_router(run: RunData, template: str) -> dict[str, Series]:
    found = {
        series.parts["router"]: series for series in run.every(template) if "router" in series.parts
    }
    return {
        router: series for router, series in found.items() if router != "all" or len(found) == 1
    }


def _over_experts(run: RunData, router: str, series: Series) -> Ratio:
    norms = [
        x
        for x in run.every(LAYER_NORM)
        if x.parts.get("layer", "").removeprefix("layer.") == router
    ]
    norms = norms or run.every(NORM)
    sizes = [level(norm) for norm in norms if level(norm) > 0]
    size = float(np.median(sizes)) if sizes else ALMOST_NOTHING / UNTRAINED
    with np.errstate(over="ignore"):
        return Ratio(router=router, series=series, values=series.values / size, steps=series.steps)


def p_below(values: np.ndarray[tuple[int], np.dtype[np.float64]], bound: float) -> float:
    """That the typical ratio is below the bound, on logarithms; every newer one must be."""
    if (values[-max(3, len(values) // 2) :] >= bound).any():
        return 1.0
    interval = mean_interval(np.log10(np.maximum(values, 1e-30)))
    return 0.0 if interval is None else interval.p_below(float(np.log10(bound)))


def starved(run: RunData) -> list[Share]:
    """Experts with less than a tenth of an even load; where no load tells, by their gradients."""
    shares = loads(run)
    found = surely(shares, lambda share: STARVED / share.num, below=True)
    if found:
        return found
    found = surely(gradient_shares(run), lambda share: NO_GRADIENT / share.num, below=True)
    # A load that is there and a gradient of exactly nothing: it is asked, and does not learn.
    return found if not shares else [x for x in found if not x.series.last(0.5).values.any()]


def bound_of(share: Share) -> float:
    """The share below which an expert starves."""
    return (STARVED if share.kind == "load" else NO_GRADIENT) / share.num


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """Routers that the task does not train."""

    how: Literal["cut", "zero", "small"]
    """No path to its parameters, a gradient of exactly zero, or one decades below the experts'."""
    ratios: list[Ratio]
    looked: int


def untrained(run: RunData) -> Untrained | None:
    """Routers the task does not train, the worst kind of them; None when all are."""
    if cut := _without_gradient(run):
        return cut
    long = [ratio for ratio in ratios(run) if len(ratio.values) >= MIN_TERMS]
    if zero := [ratio for ratio in long if not ratio.values.any()]:
        return Untrained(how="zero", ratios=zero, looked=len(long))
    sure = holm([p_below(ratio.values, UNTRAINED) for ratio in long])
    small = [ratio for ratio, is_sure in zip(long, sure, strict=True) if is_sure]
    return Untrained(how="small", ratios=small, looked=len(long)) if small else None


def _without_gradient(run: RunData) -> Untrained | None:
    """Parameters of routers, with experts and without, that were seen and never got a gradient."""
    states, content = run.table("states"), run.table("experts")
    layers = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(states, dict) or not layers or not run.has(LAYER_NORM):
        return None
    cut = []
    for layer in layers:
        path = str(layer.get("layer", "")).removeprefix("layer.") if isinstance(layer, dict) else ""
        own = re.compile(rf"{re.escape(path)}\.(?!.*\bexperts?\b).*(router|gate)")
        kinds = {state for name, state in states.items() if path and own.match(str(name))}
        if kinds == {"missing"} and not _grads(run, str(layer.get("router", path))):
            cut.append(str(layer.get("router", path)))
    norms = run.every(LAYER_NORM)[0]
    if not cut or len(norms) < MIN_TERMS:
        return None
    none = np.zeros(len(norms))
    found = [Ratio(router=router, series=norms, values=none, steps=norms.steps) for router in cut]
    return Untrained(how="cut", ratios=found, looked=len(layers))


def _grads(run: RunData, router: str) -> bool:
    return any(run.get(template, router=router) is not None for template in (TASK, WHOLE))


def uneven(run: RunData) -> tuple[list[Share], bool]:
    """Routers whose load is far from even, and whether half of their experts idle."""

    def beyond(template: str, bound: float, *, below: bool) -> list[Share]:
        shares = [
            Share(place=router, expert="", num=1, series=series, kind=template)
            for router, series in by_router(run, template).items()
        ]
        return surely(shares, lambda _: bound, below=below)

    idle = beyond(BALANCE, COLLAPSING, below=True) or beyond(DEAD, MOSTLY_DEAD, below=False)
    if idle:
        return idle, True
    return beyond(BALANCE, UNEVEN, below=True) or beyond(VIOLATION, TWICE, below=False), False


def led_by_aux(run: RunData) -> tuple[list[Ratio], int]:
    """Routers the auxiliary loss pushes several times as hard as a task that reaches them, as
    task/aux; and how many were looked at."""
    reached = {ratio.router for ratio in ratios(run) if float(np.median(ratio.values)) >= UNTRAINED}
    tasks = {router: x for router, x in by_router(run, TASK).items() if router in reached}
    looked = []
    for router, aux in by_router(run, AUX).items():
        if router in tasks:
            steps, of_task, of_aux = np.intersect1d(
                tasks[router].steps, aux.steps, return_indices=True
            )
            task, push = tasks[router].values[of_task], aux.values[of_aux]
            kept = np.isfinite(task) & np.isfinite(push) & (task > 0) & (push > 0)
            if kept.sum() >= MIN_TERMS:
                values = task[kept] / push[kept]
                looked.append(Ratio(router=router, series=aux, values=values, steps=steps[kept]))
    sure = holm([p_below(ratio.values, 1 / AUX_LEADS) for ratio in looked])
    return [ratio for ratio, is_sure in zip(looked, sure, strict=True) if is_sure], len(looked)
