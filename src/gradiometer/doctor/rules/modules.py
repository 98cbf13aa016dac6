"""Modules: two of them side by side, a grafted one (the seed) in a host, and why the seed's gradient is the smaller one.

A run keeps the ratio of their gradients per element, not the gradients. The whole gradient is nearly the host's, so ratio ×
whole stands for the seed's, and `maths.pairs.read_pair` gives its verdict on the two. Under Adam a small but steady gradient
still trains: small is information, silent while the reward does not rise is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.gradients import NORM, flat_outcome, items, seen, stays, together
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import enough, learning, level, since
from gradiometer.maths.pairs import LOW_RATIO, SILENT_RATIO, PairReading, read_pair
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__: list[str] = []

RATIO = "grad/pair/<name>/ratio"
MIN_POINTS = 24
"""Three windows of four measurements are the last half of so many."""
ENDED = 2 / 3
"""Of the run: a ratio that was measured up to here and no more has ended, not paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A pair at the end of the run."""

    name: str
    ratio: Series
    now: float
    reading: PairReading
    host: Series | None
    """The whole gradient, that stands for the host's; None when it was not measured."""


@rule("module-dormant", needs=(RATIO,))
def module_dormant(chart: Chart) -> Verdict:
    """The seed's gradient is next to nothing beside the host's, and always was."""
    found = _low(chart, "dormant")
    if found is None:
        return too_short("module-dormant", chart.every(RATIO), MIN_POINTS)
    return [
        _finding(
            "module-dormant",
            pair,
            chart,
            title=f"The module of the pair {pair.name!r} is dormant: {fmt(pair.now)} of its host's gradient, from the start",
            severity="warn" if pair.now < SILENT_RATIO and not learning(chart) else "info",
            cause=f"{pair.reading.reason} Its output is scaled down, gated off, or saturated before the loss.",
            fix=(
                "look at what its output is multiplied by: a gate or a blend factor at 0, a zero-initialised projection",
                "give it a parameter group of its own with a higher learning rate",
            ),
            confirm="Set the gate to 1 for one batch: the module's gradient must come up to the host's.",
        )
        for pair in found
    ]


@rule("module-saturated", needs=(RATIO,))
def module_saturated(chart: Chart) -> Verdict:
    """The seed was as active as the host, and its gradient has fallen by a decade or more."""
    found = _low(chart, "saturated")
    if found is None:
        return too_short("module-saturated", chart.every(RATIO), MIN_POINTS)
    return [
        _finding(
            "module-saturated",
            pair,
            chart,
            title=f"The module of the pair {pair.name!r} has gone quiet: {fmt(pair.now)} of its host's gradient, and was "
            "comparable once",
            severity="warn" if pair.now < SILENT_RATIO and not learning(chart) else "info",
            cause=(pair.reading.reason if pair.host is not None else "Its share fell; without grad/all/norm/raw nobody can "
            "tell whether it fell or its host rose.") + " It has learned what it can, or its units are saturated or dead.",
            fix=(
                "look at its activations: saturated tanh or sigmoid, dead ReLU; layer norm in front of it helps",
                "if it has converged, that is fine: freeze it, or let it grow",
            ),
            confirm="Reset the module's last layer, keep the rest: if the ratio recovers and the loss falls, it was saturated.",
        )
        for pair in found
    ]  # fmt: skip


@rule("host-dominates", needs=(RATIO, NORM))
def host_dominates(chart: Chart) -> Verdict:
    """The ratio is low because the host's gradient rose; the seed is near its usual level. Information."""
    found = _low(chart, "host-learning-fast")
    if found is None:
        return too_short("host-dominates", chart.every(RATIO), MIN_POINTS)
    return [
        _finding(
            "host-dominates",
            pair,
            chart,
            title=f"The host of the pair {pair.name!r} learns {fmt(1.0 / max(pair.now, 1e-12))} times as hard as its module",
            severity="info",
            cause=f"{pair.reading.reason} In a common clip the host now takes the module's part as well.",
            fix=("clip host and module apart", "lower the host's learning rate while the module catches up"),
            confirm="Freeze the host for some hundred steps: the module's gradient must keep its size.",
        )
        for pair in found
    ]


@rule("loss-not-reaching-module")
def loss_not_reaching_module(chart: Chart) -> Verdict:
    """No path leads from the loss to the seed: it never had a gradient, or has none any more.

    Read off the states of its parameters (table `pairs`: which parameters a pair is of), or off a ratio that ended while the
    rest was still measured. Frozen on purpose is no finding.
    """
    series, members = chart.every(RATIO), dict(items(chart.table("pairs")))
    if not series and not members:
        return unlogged("loss-not-reaching-module", RATIO)
    return list(_unreached(chart, members)) or list(_ended(chart, members))


def _unreached(chart: Chart, members: dict[str, object]) -> Iterator[Finding]:
    states = dict(items(chart.table("states")))
    for name, parts in members.items():
        given = dict(items(parts)).get("seed", ())
        seed = [str(parameter) for parameter in given] if isinstance(given, list | tuple) else []
        rest = {state for parameter, state in states.items() if parameter not in seed}
        if seed and all(states.get(parameter) == "missing" for parameter in seed) and "finite" in rest:
            ratio = chart.get(RATIO, name=name)
            begun = 0 if ratio is None or not len(ratio) else int(ratio.steps[-1]) + 1
            reading = f"{len(seed)} parameters of the module have no gradient, first {seed[0]}; others have one"
            yield _no_path(name, Evidence(series="states", reading=reading, first_step=begun), begun)


def _ended(chart: Chart, members: dict[str, object]) -> Iterator[Finding]:
    """Ratios that stop while the whole gradient is measured on, and whose parameters are not frozen."""
    whole, frozen = chart.get(NORM, block="all"), "frozen" in {state for _, state in items(chart.table("states"))}
    for ratio in chart.every(RATIO) if whole is not None and not frozen else ():
        assert whole is not None
        after = whole.finite.steps[whole.finite.steps > ratio.steps[-1]] if len(ratio) else whole.steps[:0]
        if len(ratio) and len(after) >= MIN_POINTS and len(after) >= (1.0 - ENDED) * len(whole.finite):
            reading = f"measured up to step {ratio.steps[-1]}, and at none of the {len(after)} steps since"
            yield _no_path(ratio.parts["name"], seen(ratio, reading), int(after[0]))


def _no_path(name: str, evidence: Evidence, begun: int) -> Finding:
    return Finding(
        id="loss-not-reaching-module",
        title=f"The loss does not reach the module of the pair {name!r}: it has no gradient from step {begun} on",
        severity="critical" if begun == 0 else "warn",
        basis="proved",
        since_step=begun,
        evidence=(evidence,),
        cause="No path of the graph leads from the loss to the module: its output is detached, computed under no_grad, or not "
        "used in the forward pass.",
        fix=(
            "use the module's output in the forward pass that makes the loss, without detach(), no_grad or .data",
            "if it is meant to rest: module.requires_grad_(False), and it counts as frozen",
        ),
        confirm="gm.audit(...) prints the reach matrix: the module's column must hold a path.",
        references=("failure catalogue F34", "docs/guide/meter.md: missing is not zero"),
    )


def _low(chart: Chart, verdict: str) -> list[Pair] | None:
    """The pairs whose ratio is low for good, with this verdict; None when no ratio is long enough."""
    long = [series for series in chart.every(RATIO) if enough(series, MIN_POINTS)]
    if not long:
        return None
    low = [_pair(chart, ratio.finite) for ratio in long if stays(ratio, lambda x: x < LOW_RATIO)]
    return [pair for pair in low if pair.reading.verdict == verdict]


def _pair(chart: Chart, ratio: Series) -> Pair:
    """Histories of both modules with the last half's level as now: a verdict on one step would be one on its noise."""
    whole = chart.get(NORM, block="all")
    usable = whole is not None and len(np.intersect1d(whole.finite.steps, ratio.steps)) >= MIN_POINTS
    host = np.ones(len(ratio))
    if whole is not None and usable:
        ratio, beside = together(ratio, whole.finite)
        host = beside.values
    tail = max(1, len(ratio) // 6)
    seed = ratio.values * host
    reading = read_pair(
        np.append(seed[:-tail], np.median(seed[-tail:])),
        np.append(host[:-tail], np.median(host[-tail:])),
        seed_reached=True,
    )
    return Pair(
        name=ratio.parts["name"],
        ratio=ratio,
        now=level(ratio.last(1 / 6)),
        reading=reading,
        host=whole if usable else None,
    )


def _finding(
    id: str,
    pair: Pair,
    chart: Chart,
    *,
    title: str,
    severity: Severity,
    cause: str,
    fix: tuple[str, ...],
    confirm: str,
) -> Finding:
    host = (
        ()
        if pair.host is None
        else (seen(pair.host, f"stands for the host; median {fmt(level(pair.host.last(1 / 6)))} now"),)
    )
    start = level(pair.ratio.first(1 / 6))
    return Finding(
        id=id,
        title=title,
        severity=severity,
        basis="heuristic",
        since_step=since(pair.ratio, lambda x: x < LOW_RATIO),
        evidence=(
            seen(pair.ratio, f"median {fmt(start)} at the start, {fmt(pair.now)} now"),
            *host,
            *flat_outcome(chart),
        ),
        cause=cause,
        fix=fix,
        confirm=confirm,
        references=("docs/guide/meter.md: pairs",),
    )
