"""Gradients layer by layer: those that fade or grow with depth, and units that never fire."""

from __future__ import annotations

import re

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.gradients import (
    NORM,
    at_rest,
    branches,
    flat_outcome,
    layered,
    log10,
    over,
    seen,
    stays,
    stuck,
    where,
)
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.rules.numbers import MIN_POINTS
from gradiometer.doctor.signs import enough, learning, level, since, trend
from gradiometer.records import Finding, Severity
from gradiometer.words import fmt

__all__: list[str] = []

DEPTH_EXPLODES, DEPTH_VANISHES = 70.0, 1e-3
"""First layer over last: AutoTrainer's 70, and the three decades of maths.health (a policy head of gain 0.01 takes two)."""
DYING = 0.7
"""AutoTrainer: share of zeros of a dying ReLU."""
DORMANT_INFO, DORMANT_WARN = 0.2, 0.5
"""ReDo's healthy runs stay below a fifth; at one half the network has half its width."""
NO_UNITS = re.compile(r"embed|wte|wpe|lm_head|expert|moe", re.IGNORECASE)
"""Layers in which zeros are normal: rows that no token used."""


@rule("depth-imbalance", needs=(NORM,))
def depth_imbalance(chart: Chart) -> Verdict:
    """The first layer of a network gets over 70 times, or under a thousandth, of the gradient of its last one.

    Sizes of layers are not in a log, so the norm and, where it is there, the largest element must both say so. Adam cancels
    the scale of a tensor: information, unless the reward does not rise.
    """
    ends = [(layers[0], layers[-1]) for layers in branches(chart, NORM) if len(layers) > 1]
    ends = [pair for pair in ends if enough(pair[0], MIN_POINTS) and enough(pair[1], MIN_POINTS)]
    if not ends:
        return too_short("depth-imbalance", filter(layered, chart.every(NORM)), MIN_POINTS, metric=NORM)
    off = [pair for pair in ends if _apart(chart, *pair)]
    if not off:
        return None
    first, last = max(off, key=lambda pair: abs(level(log10(over(*pair)))))
    ratio = over(first, last)
    now, grows = level(ratio.last(0.5)), level(ratio.last(0.5)) > 1.0
    elements = chart.get("grad/<block>/max_abs", block=where(first)) is not None
    sizes = "their largest elements are as far apart" if elements else "log max_abs to see that it is not their size"
    return Finding(
        id="depth-imbalance",
        title=f"{where(first)} gets {fmt(now)} times the gradient of {where(last)}, the last layer of its network",
        severity="warn" if stuck(chart) and not at_rest(chart) else "info",
        basis="heuristic",
        since_step=since(ratio, lambda x: x > DEPTH_EXPLODES if grows else x < DEPTH_VANISHES),
        block=where(first),
        evidence=(
            seen(first, f"median {fmt(level(first.last(0.5)))}; the sizes of the layers are not known, {sizes}"),
            seen(last, f"median {fmt(level(last.last(0.5)))}; {len(off)} of {len(ends)} networks"),
            *flat_outcome(chart),
        ),
        cause=f"Weights or activations {'amplify' if grows else 'shrink'} the gradient layer by layer on its way back. Under "
        "Adam the scale of a layer cancels; under SGD and in a common clip it does not.",
        fix=(
            "initialise orthogonally (gain √2 for ReLU, 0.01 for the policy's last layer)",
            "add layer norm or residual connections",
            "normalise the observations: the first layer's gradient is a product with them",
        ),
        confirm="gradiometer show RUN --layers: see whether the norm changes evenly or in one layer.",
        references=("AutoTrainer (ICSE 2021): first over last above 70", "failure catalogue F35"),
    )


def _apart(chart: Chart, first: Series, last: Series) -> bool:
    ratios = [over(first, last)]
    largest = [chart.get("grad/<block>/max_abs", block=where(series)) for series in (first, last)]
    if largest[0] is not None and largest[1] is not None:
        ratios.append(over(largest[0], largest[1]))
    above = all(stays(ratio, lambda x: x > DEPTH_EXPLODES) for ratio in ratios)
    return above or all(stays(ratio, lambda x: x < DEPTH_VANISHES) for ratio in ratios)


@rule("dormant-units")
def dormant_units(chart: Chart) -> Verdict:
    """Units that never fire: the logged share of dormant ones, or neighbouring layers that are mostly zeros.

    A dead ReLU leaves a row of zeros in its own layer and a column in the next, so two neighbours must show it: an embedding
    or a one-hot input shows it in one.
    """
    logged, learns = chart.get("dormant_fraction"), learning(chart) or at_rest(chart)
    networks = [layers for layers in branches(chart, "grad/<block>/zero_fraction") if len(layers) > 1]
    networks = [layers for layers in networks if all(enough(series, MIN_POINTS) for series in layers)]
    if not networks and (logged is None or not enough(logged, MIN_POINTS)):
        id = "dormant-units"
        return unlogged(id, "dormant_fraction") if logged is None else too_short(id, logged, MIN_POINTS)
    if logged is not None and enough(logged, MIN_POINTS) and stays(logged, lambda x: x >= DORMANT_INFO):
        now, grows = level(logged.last(0.2)), trend(logged).direction == "rises"
        harm = (now >= DORMANT_WARN or grows) and not learns
        title = f"{now:.0%} of the units are dormant" + (", and they get more" if grows else "")
        return _dormant(title, logged, DORMANT_INFO, "warn" if harm else "info")
    for layers in networks:
        units = [series for series in layers if not NO_UNITS.search(where(series))]
        dying = [stays(series, lambda x: DYING <= x < 1.0) for series in units]
        worst = next((units[k] for k in range(len(units) - 1) if dying[k] and dying[k + 1]), None)
        if worst is not None:
            now = level(worst.last(0.2))
            title = f"{now:.0%} of the gradient of {where(worst)}, and as much of the next layer, is exactly 0"
            return _dormant(title, worst, DYING, "info" if learns else "warn")
    return None


def _dormant(title: str, series: Series, edge: float, severity: Severity) -> Finding:
    start, end = level(series.first(1 / 6)), level(series.last(0.2))
    return Finding(
        id="dormant-units",
        title=title,
        severity=severity,
        basis="heuristic",
        since_step=since(series, lambda x: x >= edge),
        block=series.parts.get("block"),
        evidence=(seen(series, f"median {fmt(start)} at the start, {fmt(end)} now"),),
        cause="Units that are zero for every input get no gradient and stay so: steps that were too large, a replay ratio "
        "too high, or targets that moved.",
        fix=(
            "lower the learning rate or the replay ratio (SB3 gradient_steps)",
            "reset dormant units (ReDo), or add layer norm",
            "replace ReLU by leaky ReLU, SiLU or tanh",
        ),
        confirm="Count the units of that layer that are zero on a whole batch of observations.",
        references=("arXiv 2302.12902 (ReDo, τ = 0.025)", "AutoTrainer: 70 % zeros", "arXiv 2405.00662"),
    )
