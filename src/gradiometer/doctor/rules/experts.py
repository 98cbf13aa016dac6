"""Experts and their routers: who starves, who has it all, who is trained by the task, and whether they are still several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import level, persists, since
from gradiometer.maths.means import holm, mean_interval
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["expert_dominates", "expert_starved"]

LOAD = "router/<router>/load/<expert>"
NORM, LAYER_NORM = "grad/expert/<expert>/norm", "grad/<layer>/expert/<expert>/norm"

MIN_POINTS = 9
"""Three windows of three."""
STARVED = 0.1
"""Of an even share. A tenth of the samples is a tenth of the steps; utilisation 0 is dead (failure catalogue F45)."""
NO_GRADIENT = 1e-3
"""Of the other experts' median norm, where no load was measured: routing makes factors, not decades."""
DOMINATES = 0.5
"""Of the way from an even share to all there is: half of what the others should have goes to one."""
TAKES_ALL = 0.8
"""The same of the gradient's norm, which also varies with what an expert sees: at four experts, seventeen times the others."""

TOP_K = ("num_experts_per_tok", "moe_top_k", "moe_router_topk", "experts_per_token", "top_k")
"""Settings of transformers, Megatron and others: experts that one token goes to."""


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


def loads(chart: Chart) -> list[Share]:
    """The loads of each router; of `all` only where nothing else was kept."""
    return _shares(chart.every(LOAD), "router", "load")


def gradient_shares(chart: Chart) -> list[Share]:
    """‖g_e‖/Σ‖g‖ over the experts of each layer, on the steps that have them all."""
    layered = chart.every(LAYER_NORM) or chart.every(NORM)
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
        Share(place=name, expert=series.parts.get("expert", "?"), num=len(group), series=series, kind=kind)
        for name, group in groups.items()
        for series in group
        if len(group) > 1
    ]


def _divided(group: list[Share]) -> Iterator[Share]:
    steps = group[0].series.finite.steps
    for share in group[1:]:
        steps = np.intersect1d(steps, share.series.finite.steps)
    values = np.array([share.series.values[np.isin(share.series.steps, steps)] for share in group])
    total = values.sum(axis=0)
    kept = total > 0
    for share, norms in zip(group, values, strict=True):
        yield replace(share, series=replace(share.series, steps=steps[kept], values=norms[kept] / total[kept]))


def surely(shares: list[Share], bound_of: Callable[[Share], float], *, below: bool) -> list[Share]:
    """Those whose newer half is beyond the bound: in three windows, and by an interval that counts how many were looked at."""
    long = [share for share in shares if len(share.series.finite) >= MIN_POINTS]
    p_values = [_p_beyond(share.series, bound_of(share), below=below) for share in long]
    sure = [share for share, is_sure in zip(long, holm(p_values), strict=True) if is_sure]
    return [share for share in sure if _lasts(share.series, bound_of(share), below=below)]


def _lasts(series: Series, bound: float, *, below: bool) -> bool:
    return bool(persists(series, lambda x: x < bound if below else x > bound))


def _p_beyond(series: Series, bound: float, *, below: bool) -> float:
    """Of the newer half; where it wanders too slowly for an interval, every point must be beyond."""
    values = series.finite.last(0.5).values
    interval = mean_interval(values)
    if interval is None:
        return 0.0 if (values < bound if below else values > bound).all() else 1.0
    return interval.p_below(bound) if below else interval.p_above(bound)


def _unmeasured(id: str, shares: list[Share], template: str) -> Skipped | None:
    """Why nothing can be said yet; None when something can."""
    if not shares:
        return unlogged(id, template)
    found = [share.series for share in shares]
    enough = any(len(series.finite) >= MIN_POINTS for series in found)
    return None if enough else too_short(id, found, MIN_POINTS, metric=template)


@rule("expert-starved")
def expert_starved(chart: Chart) -> Verdict:
    """An expert that the router hardly asks: it gets no gradient, so it does not get better, so it is not asked.

    By its load where that was measured, else by a gradient decades below that of the others.
    """
    shares = loads(chart)
    by_load = bool(shares)
    shares = shares or gradient_shares(chart)
    if (skipped := _unmeasured("expert-starved", shares, LOAD)) is not None:
        return skipped
    bound = STARVED if by_load else NO_GRADIENT
    starved = surely(shares, lambda share: bound / share.num, below=True)
    if not starved:
        return None
    worst = min(starved, key=lambda share: share.num * level(share.series.last(0.5)))
    now = level(worst.series.last(0.5))
    what = "tokens" if by_load else "gradient"
    return Finding(
        id="expert-starved",
        title=f"Expert {worst.expert} of {worst.place} gets {_percent(now)} of the {what}, an even share is "
        f"{1 / worst.num:.0%}{_of(len(starved), len(shares), 'starve')}",
        severity="warn",
        basis="statistical" if by_load else "heuristic",
        since_step=since(worst.series, lambda x: x < bound / worst.num),
        block=_block(chart, {share.place for share in starved}),
        evidence=tuple(_evidence(share, bound / share.num, "below") for share in starved[:4]),
        cause="The router has learned, or was set, to leave it out, and an expert that is not asked has nothing to learn from.",
        fix=(
            "Raise the coefficient of the balance loss (transformers: router_aux_loss_coef), or use a bias that balances loads",
            "Add noise to the router's logits at the start, and look for a bias or mask on this expert's logit",
            "Restart the expert from a copy of a busy one",
        ),
        confirm="Set the router's logits to even odds for a few hundred steps: the expert's gradient and load must come back.",
        references=("failure catalogue F45", "NeMo: expert utilisation"),
    )


@rule("expert-dominates")
def expert_dominates(chart: Chart) -> Verdict:
    """One expert gets most of the tokens, or most of the gradient: the others are paid for and not used.

    Measured from an even share (0) to all that routing allows (1): with k experts for each token none can have more than 1/k.
    """
    loaded, shared = loads(chart), gradient_shares(chart)
    if (skipped := _unmeasured("expert-dominates", loaded or shared, LOAD)) is not None:
        return skipped
    top_k = _top_k(chart)

    def bound_of(share: Share) -> float:
        most, part = (1 / top_k, DOMINATES) if share.kind == "load" else (1.0, TAKES_ALL)
        even = 1 / share.num
        return even + part * (most - even) if most > even else math.inf

    found = surely([*loaded, *shared], bound_of, below=False)
    if not found:
        return None
    worst = max(found, key=lambda share: (share.kind == "load", share.num * level(share.series.last(0.5))))
    bound, what = bound_of(worst), "tokens" if worst.kind == "load" else "gradient"
    places = len({share.place for share in [*loaded, *shared] if share.kind == worst.kind})
    hit = len({share.place for share in found if share.kind == worst.kind})
    return Finding(
        id="expert-dominates",
        title=f"Expert {worst.expert} of {worst.place} gets {level(worst.series.last(0.5)):.0%} of the {what}, "
        f"an even share is {1 / worst.num:.0%}{_of(hit, places, 'layers are so')}",
        severity="warn",
        basis="statistical",
        since_step=since(worst.series, lambda x: x > bound),
        block=_block(chart, {share.place for share in found}),
        evidence=tuple(_evidence(share, bound_of(share), "above") for share in found[:4]),
        cause="A router that finds one expert slightly better asks it more, trains it more, and finds it better still; its "
        "gradient grows with its load.",
        fix=(
            "Raise the coefficient of the balance loss (transformers: router_aux_loss_coef), or set a capacity factor",
            "Lower the learning rate of the router, and divide an expert's gradient by its tokens",
        ),
        confirm="Take the busiest expert away for one evaluation: a loss that jumps says that the others learned nothing.",
        references=("failure catalogue F48", "KempnerForge issue 9: gradients scaled by average over actual tokens"),
    )


def _top_k(chart: Chart) -> int:
    """Experts for each token; 1 where experts are merged, or where nobody said."""
    said = chart.fact(*TOP_K) if chart.has("grad/expert/<expert>/norm_per_token") else None
    return int(said) if isinstance(said, int) and not isinstance(said, bool) and said >= 1 else 1


def _evidence(share: Share, bound: float, side: str) -> Evidence:
    newer = share.series.finite.last(0.5)
    of = "" if share.kind == "load" else " of the norms of its layer's experts"
    return Evidence(
        series=share.series.name,
        reading=f"median {fmt(level(newer))}{of}, {side} {fmt(bound)} in the newer half ({len(newer)} points)",
        first_step=int(newer.steps[0]),
        last_step=int(newer.steps[-1]),
    )


def _percent(share: float) -> str:
    return "nothing" if share == 0 else f"{share:.1%}" if share >= 1e-3 else fmt(share)


def _of(count: int, looked: int, verb: str) -> str:
    return f" ({count} of {looked} {verb})" if count > 1 else ""


def _block(chart: Chart, places: set[str]) -> str | None:
    """The block of a layer with experts, from its router's name; None where several are meant."""
    place = next(iter(places))
    if len(places) > 1 or place == "all":
        return None
    content = chart.table("experts")
    layers = content.get("layers") if isinstance(content, dict) else None
    for layer in layers or ():
        if isinstance(layer, dict) and place in (layer.get("router"), layer.get("layer")):
            return str(layer.get("layer"))
    return place if place.startswith("layer.") else f"layer.{place}"
