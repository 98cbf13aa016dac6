"""Routers: does the task train them, does the balance loss lead them, and is the load still spread?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.rules.experts import LAYER_NORM, MIN_POINTS, NORM, Share, surely
from gradiometer.doctor.signs import level, since
from gradiometer.maths.means import holm, mean_interval
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["router_untrained", "routing_imbalance"]

TASK, AUX, WHOLE = "router/<router>/grad_task", "router/<router>/grad_aux", "router/<router>/grad"
BALANCE, DEAD, VIOLATION = "router/<router>/balance", "router/<router>/dead_share", "router/<router>/max_violation"

UNTRAINED = 1e-6
"""Router gradient over that of its experts. Healthy ones are within a few decades; minimind issue 858 had 7e-10 to 1e-2."""
ALMOST_NOTHING = 1e-8
"""The same as a norm, where no expert's is at hand."""
MIN_TERMS = 5
"""Loss terms are split on the first five measured steps and then on every tenth."""
AUX_LEADS = 3.0
"""grad_aux over grad_task. An auxiliary loss may lead for a moment; Megatron-LM issue 5694 had 3.4 times the gradient."""
UNEVEN, COLLAPSING = 0.8, 0.5
"""exp(entropy of the load)/N: the first is the catalogue's healthy range (NeMo), below the second half of the experts idle."""
MOSTLY_DEAD = 0.5
"""Share of the experts that get nothing on a typical step."""
TWICE = 1.0
"""max_violation: the busiest expert has twice its share (verl's max_vio)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ratio:
    """A router's gradient against something it should be of a size with."""

    router: str
    series: Series
    """The router's gradient."""
    values: np.ndarray[tuple[int], np.dtype[np.float64]]
    steps: np.ndarray[tuple[int], np.dtype[np.int64]]


@rule("router-untrained")
def router_untrained(chart: Chart) -> Verdict:
    """The task does not train the router, however even its load: the experts' weights in the output do not depend on it.

    Proved where its gradient is exactly zero or has no path; otherwise the gradient is at least six decades below the experts'.
    """
    if cut := _without_gradient(chart):
        return cut
    ratios = _ratios(chart)
    if not ratios:
        known = TASK if chart.has("router/<router>/load/<expert>") else WHOLE
        return unlogged("router-untrained", known)
    long = [ratio for ratio in ratios if len(ratio.values) >= MIN_TERMS]
    if not long:
        return too_short("router-untrained", [ratio.series for ratio in ratios], MIN_TERMS)
    zero = [ratio for ratio in long if not ratio.values.any()]
    if zero:
        reading = f"exactly 0 on {len(zero[0].values)} measured steps"
        return _untrained(zero[0], len(zero), len(long), "gradient is exactly zero", reading, proved=True)
    sure = holm([_p_below(ratio.values, UNTRAINED) for ratio in long])
    small = [ratio for ratio, is_sure in zip(long, sure, strict=True) if is_sure]
    if not small:
        return None
    worst = min(small, key=lambda ratio: float(np.median(ratio.values)))
    times = f"{fmt(float(np.median(worst.values)))} of the experts'"
    reading = f"median {fmt(level(worst.series))}, {times}, on {len(worst.values)} measured steps"
    return _untrained(worst, len(small), len(long), f"gradient is {times}", reading, proved=False)


def _ratios(chart: Chart) -> list[_Ratio]:
    """Of each router: the task's gradient (the whole one where terms were not split) over its experts' median norm."""
    found = _by_router(chart, TASK) or _by_router(chart, WHOLE)
    return [_over_experts(chart, router, series.finite) for router, series in found.items() if len(series.finite)]


def _by_router(chart: Chart, template: str) -> dict[str, Series]:
    found = {series.parts["router"]: series for series in chart.every(template) if "router" in series.parts}
    return {router: series for router, series in found.items() if router != "all" or len(found) == 1}


def _over_experts(chart: Chart, router: str, series: Series) -> _Ratio:
    norms = [x for x in chart.every(LAYER_NORM) if x.parts.get("layer", "").removeprefix("layer.") == router]
    norms = norms or chart.every(NORM)
    sizes = [level(norm) for norm in norms if level(norm) > 0]
    size = float(np.median(sizes)) if sizes else ALMOST_NOTHING / UNTRAINED
    with np.errstate(over="ignore"):
        return _Ratio(router=router, series=series, values=series.values / size, steps=series.steps)


def _p_below(values: np.ndarray[tuple[int], np.dtype[np.float64]], bound: float) -> float:
    """That the typical ratio is below the bound, on logarithms; every newer one must be."""
    if (values[-max(3, len(values) // 2) :] >= bound).any():
        return 1.0
    interval = mean_interval(np.log10(np.maximum(values, 1e-30)))
    return 0.0 if interval is None else interval.p_below(float(np.log10(bound)))


def _without_gradient(chart: Chart) -> Finding | None:
    """Parameters of routers (in a layer with experts, and of none) that the meter has seen and that never got a gradient."""
    states, content = chart.table("states"), chart.table("experts")
    layers = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(states, dict) or not layers or not chart.has(LAYER_NORM):
        return None
    cut = []
    for layer in layers:
        path = str(layer.get("layer", "")).removeprefix("layer.") if isinstance(layer, dict) else ""
        own = re.compile(rf"{re.escape(path)}\.(?!.*\bexperts?\b).*(router|gate)")
        kinds = {state for name, state in states.items() if path and own.match(str(name))}
        if kinds == {"missing"} and not _grads(chart, str(layer.get("router", path))):
            cut.append(str(layer.get("router", path)))
    if not cut:
        return None
    norms = chart.every(LAYER_NORM)[0]
    ratio = _Ratio(router=cut[0], series=norms, values=np.zeros(len(norms)), steps=norms.steps)
    reading = "no gradient on any measured step: no loss has a path to the router's parameters"
    found = _untrained(ratio, len(cut), len(layers), "parameters get no gradient at all", reading, proved=True)
    return found if len(norms) >= MIN_TERMS else None


def _grads(chart: Chart, router: str) -> bool:
    return any(chart.get(template, router=router) is not None for template in (TASK, WHOLE))


def _untrained(ratio: _Ratio, count: int, looked: int, what: str, reading: str, *, proved: bool) -> Finding:
    name = ratio.series.name if "router" in ratio.series.parts else f"router/{ratio.router}/grad"
    more = f" ({count} of {looked} routers)" if looked > 1 else ""
    return Finding(
        id="router-untrained",
        title=f"The task does not train the router {ratio.router}{more}: its {what}",
        severity="critical" if proved else "warn",
        basis="proved" if proved else "statistical",
        since_step=int(ratio.steps[0]) if len(ratio.steps) else None,
        block=None if ratio.router == "all" or count > 1 else f"layer.{ratio.router}",
        evidence=(
            Evidence(series=name, reading=reading, first_step=int(ratio.steps[0]), last_step=int(ratio.steps[-1])),
        ),
        cause="The weight an expert's output is multiplied by does not depend on the router: it is detached, or a single "
        "chosen weight is normalised to 1. A balance loss alone then makes the load even.",
        fix=(
            "Multiply the experts' output by the router's probabilities, and do not detach them",
            "With top-1 routing do not renormalise (norm_topk_prob=False): w/w is 1 whatever the router says",
        ),
        confirm="Without the balance loss for one batch, print router.weight.grad.norm(): about 1e-9 or None instead of 1e-2.",
        references=("minimind issues 858 and 859", "failure catalogue F46", "transformers issue 48687"),
    )


@rule("routing-imbalance")
def routing_imbalance(chart: Chart) -> Verdict:
    """The load is far from even, or the balance loss that is to even it leads the router instead of the task.

    Some unevenness is specialisation, and information; half of the experts idle is not.
    """
    if not chart.has(BALANCE) and not chart.has(AUX):
        return unlogged("routing-imbalance", BALANCE)
    found = [finding for finding in (_uneven(chart), _led_by_aux(chart)) if finding is not None]
    if not found and not any(len(x.finite) >= MIN_POINTS for x in chart.every(BALANCE)) and not chart.has(AUX):
        return too_short("routing-imbalance", chart.every(BALANCE), MIN_POINTS)
    return found


def _uneven(chart: Chart) -> Finding | None:
    def beyond(template: str, bound: float, *, below: bool) -> list[Share]:
        found = _by_router(chart, template).items()
        shares = [Share(place=router, expert="", num=1, series=series, kind=template) for router, series in found]
        return surely(shares, lambda _: bound, below=below)

    collapsing = beyond(BALANCE, COLLAPSING, below=True) or beyond(DEAD, MOSTLY_DEAD, below=False)
    uneven = collapsing or beyond(BALANCE, UNEVEN, below=True) or beyond(VIOLATION, TWICE, below=False)
    if not uneven:
        return None
    share = uneven[0]
    series = share.series
    bound = {BALANCE: COLLAPSING if collapsing else UNEVEN, DEAD: MOSTLY_DEAD, VIOLATION: TWICE}[share.kind]
    below = share.kind == BALANCE
    words = {
        BALANCE: "balance of the load",
        DEAD: "share of dead experts",
        VIOLATION: "excess load of the busiest expert",
    }
    looked = len(_by_router(chart, share.kind))
    more = f", and of {len(uneven) - 1} more of {looked}" if len(uneven) > 1 else ""
    newer = series.finite.last(0.5)
    return Finding(
        id="routing-imbalance",
        title=f"The {words[share.kind]} of the router {share.place} is {level(newer):.2f}{more}",
        severity="warn" if collapsing else "info",
        basis="statistical",
        since_step=since(series, lambda x: x < bound if below else x > bound),
        block=None if share.place == "all" or len(uneven) > 1 else f"layer.{share.place}",
        evidence=tuple(
            Evidence(
                series=each.series.name,
                reading=f"median {level(each.series.finite.last(0.5)):.3f} of the newer half; healthy is "
                f"{'above' if below else 'below'} {UNEVEN if below else fmt(bound)}",
                first_step=int(newer.steps[0]),
                last_step=int(newer.steps[-1]),
            )
            for each in uneven[:4]
        ),
        cause="The router prefers few experts. Where the balance falls, it is collapsing to them; where it is steady, part of "
        "it may be specialisation.",
        fix=(
            "Raise the coefficient of the balance loss (transformers: router_aux_loss_coef)",
            "Add noise to the router's logits, or lower its learning rate",
        ),
        confirm="Double the coefficient of the balance loss: the balance must rise and the task's loss not suffer.",
        references=("failure catalogue F45", "NeMo: expert balance", "verl: max_vio"),
    )


def _led_by_aux(chart: Chart) -> Finding | None:
    """Routers on which the auxiliary loss pushes several times as hard as the task; not those the task does not reach."""
    reached = {ratio.router for ratio in _ratios(chart) if float(np.median(ratio.values)) >= UNTRAINED}
    tasks = {router: series for router, series in _by_router(chart, TASK).items() if router in reached}
    looked = []
    for router, aux in _by_router(chart, AUX).items():
        if router in tasks:
            steps, of_task, of_aux = np.intersect1d(tasks[router].steps, aux.steps, return_indices=True)
            task, push = tasks[router].values[of_task], aux.values[of_aux]
            kept = np.isfinite(task) & np.isfinite(push) & (task > 0) & (push > 0)
            if kept.sum() >= MIN_TERMS:
                looked.append(_Ratio(router=router, series=aux, values=task[kept] / push[kept], steps=steps[kept]))
    sure = holm([_p_below(ratio.values, 1 / AUX_LEADS) for ratio in looked])
    led = [ratio for ratio, is_sure in zip(looked, sure, strict=True) if is_sure]
    if not led:
        return None
    worst = min(led, key=lambda ratio: float(np.median(ratio.values)))
    times = 1 / float(np.median(worst.values[-max(3, len(worst.values) // 2) :]))
    first, last = int(worst.steps[0]), int(worst.steps[-1])
    reading = f"median {times:.3g} times router/{worst.router}/grad_task lately, {len(worst.values)} points"
    return Finding(
        id="routing-imbalance",
        title=f"The balance loss moves the router {worst.router} {times:.3g} times as hard as the task does"
        + (f" ({len(led)} of {len(looked)} routers)" if len(looked) > 1 else ""),
        severity="warn",
        basis="statistical",
        since_step=first,
        block=None if worst.router == "all" or len(led) > 1 else f"layer.{worst.router}",
        evidence=(Evidence(series=worst.series.name, reading=reading, first_step=first, last_step=last),),
        cause="The coefficient of an auxiliary loss is so large that the router learns to spread tokens, not to place them.",
        fix=(
            "Lower the coefficient of the balance loss (transformers: router_aux_loss_coef, Megatron: moe_aux_loss_coeff) "
            f"by about {times:.0f}",
        ),
        confirm="Lower it tenfold for a few hundred steps: the task's loss falls faster, and the load stays spread.",
        references=("Megatron-LM issue 5694", "failure catalogue F29"),
    )
