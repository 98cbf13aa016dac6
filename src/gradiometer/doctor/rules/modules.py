"""Modules: a grafted one (the seed) in a host, and why the seed's gradient is the smaller one.

A run keeps the ratio of their gradients per element, not the gradients. The whole gradient is
nearly the host's, so ratio × whole stands for the seed's, and `maths.pairs.read_pair` gives its
verdict on the two. Under Adam a small but steady gradient still trains: small is information,
silent while the reward does not rise is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Sign, blocks, drafted
from gradiometer.doctor.rule import Draft, Verdict, finding, rule, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import NORM, enough, level, mapping, shown, since, stays, together
from gradiometer.maths.pairs import LOW_RATIO, SILENT_RATIO, read_pair
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

RATIO = "grad/pair/<name>/ratio"
limits = thresholds.group("modules")
VERDICTS = {
    "module-dormant": "dormant",
    "module-saturated": "saturated",
    "host-dominates": "host-learning-fast",
}
"""What `read_pair` says, by the finding that tells it."""
UNSURE = (
    "Its share fell; without grad/all/norm/raw nobody can tell whether it fell or its host rose."
)


def _paired(id: str, text: str, *, title: str, needs: tuple[str, ...] = (RATIO,)) -> None:
    """Register the rule on the pairs whose ratio is low for good, and that are read so."""

    def judge(run: RunData) -> Verdict:
        long = blocks(RATIO, "modules/min_points")(run)
        low = [_pair(run, ratio) for ratio in long if stays(ratio, lambda x: x < LOW_RATIO)]
        told = (sign for sign, verdict in low if verdict == VERDICTS[id])
        return [drafted(run, replace(sign, title=title)) for sign in told]

    rule(id, text, needs=needs, family="modules")(judge)


_paired(
    "module-dormant",
    """
    cause: {reason} Its output is scaled down, gated off, or saturated before the loss.
    fix: look at what its output is multiplied by: a gate or a blend factor at 0, a zero-initialised
      projection
    fix: give it a parameter group of its own with a higher learning rate
    confirm: Set the gate to 1 for one batch: the module's gradient must come up to the host's.
    see: mathematics: Two modules
    """,
    title="The module of the pair {name} is dormant: {now} of its host's gradient, from the start",
)
_paired(
    "module-saturated",
    """
    cause: {reason} It has learned what it can, or its units are saturated or dead.
    fix: look at its activations: saturated tanh or sigmoid, dead ReLU; layer norm in front of it
      helps
    fix: if it has converged, that is fine: freeze it, or let it grow
    confirm: Reset the module's last layer, keep the rest: if the ratio recovers and the loss falls,
      it was saturated.
    see: mathematics: Two modules
    """,
    title="The module of the pair {name} has gone quiet: {now} of its host's gradient, and was"
    " comparable once",
)
_paired(
    "host-dominates",
    """
    cause: {reason} In a common clip the host now takes the module's part as well.
    fix: clip host and module apart
    fix: lower the host's learning rate while the module catches up
    confirm: Freeze the host for some hundred steps: the module's gradient must keep its size.
    see: mathematics: Two modules
    """,
    title="The host of the pair {name} learns {times} times as hard as its module",
    needs=(RATIO, NORM),
)


def _pair(run: RunData, ratio: Series) -> tuple[Sign, str]:
    """The sign of a low ratio and what `read_pair` says of it: both histories with the last sixth's
    level as now, for one step would be a verdict on noise."""
    whole, host = run.get(NORM, block="all"), None
    gradients = np.ones(len(ratio))
    if whole is not None and enough(together(ratio, whole.finite)[0], limits.min_points):
        ratio, host = together(ratio, whole.finite)
        gradients = host.values
    tail = max(1, len(ratio) // 6)
    reading = read_pair(
        *(
            np.append(x[:-tail], np.median(x[-tail:]))
            for x in (ratio.values * gradients, gradients)
        ),
        seed_reached=True,
    )
    now = level(ratio.last(1 / 6))
    # a host that learns fast is never silent beside its module: its verdict says the seed is usual
    silent = now < SILENT_RATIO and reading.verdict != "host-learning-fast"
    unsure = host is None and reading.verdict == "saturated"
    more = () if host is None else (shown(host, f"stands for the host; median {_now(host)} now"),)
    sign = Sign(
        series=ratio,
        strength="strong",
        role="usual" if silent else "note",
        since=since(ratio, lambda x: x < LOW_RATIO),
        reading=f"median {fmt(level(ratio.first(1 / 6)))} at the start, {fmt(now)} now",
        said={
            "name": repr(ratio.parts["name"]),
            "now": fmt(now),
            "times": fmt(1.0 / max(now, 1e-12)),
            "reason": f"{UNSURE}." if unsure else reading.reason,
        },
        more=more,
    )
    return sign, reading.verdict


def _now(series: Series) -> str:
    return fmt(level(series.last(1 / 6)))


@rule(
    "loss-not-reaching-module",
    """
    cause: No path of the graph leads from the loss to the module: its output is detached, computed
      under no_grad, or not used in the forward pass.
    fix: use the module's output in the forward pass that makes the loss, without detach(), no_grad
      or .data
    fix: if it is meant to rest: module.requires_grad_(False), and it counts as frozen
    confirm: gm.audit(...) prints the reach matrix: the module's column must hold a path.
    see: F34
    see: mathematics: Reach
    """,
)
def loss_not_reaching_module(run: RunData) -> Verdict:
    """No path leads from the loss to the seed: it never had a gradient, or no longer has one.

    Read off the states of its parameters (table `pairs`: which parameters a pair is of), or off a
    ratio that ended while the rest was still measured. Frozen on purpose is no finding.
    """
    series, members = run.every(RATIO), mapping(run.table("pairs"))
    if not series and not members:
        return unlogged(RATIO)
    return list(_unreached(run, members)) or list(_ended(run))


def _unreached(run: RunData, members: Mapping[str, Any]) -> Iterator[Draft]:
    states = mapping(run.table("states"))
    for name, parts in members.items():
        given = mapping(parts).get("seed", ())
        seed = [str(parameter) for parameter in given] if isinstance(given, list | tuple) else []
        rest = {state for parameter, state in states.items() if parameter not in seed}
        missing = {states.get(parameter) for parameter in seed} == {"missing"}
        if missing and "finite" in rest:
            ratio = run.get(RATIO, name=name)
            begun = 0 if ratio is None or not len(ratio) else int(ratio.steps[-1]) + 1
            reading = f"{len(seed)} parameters of the module have no gradient, first {seed[0]}"
            reading += "; others have one"
            yield _no_path(name, Evidence(series="states", reading=reading, first_step=begun))


def _ended(run: RunData) -> Iterator[Draft]:
    """Ratios that stop while the whole gradient is measured on, and that are not frozen."""
    whole = run.get(NORM, block="all")
    if whole is None or "frozen" in mapping(run.table("states")).values():
        return
    for ratio in run.every(RATIO):
        after = whole.finite.since(int(ratio.steps[-1]) + 1).steps if len(ratio) else ratio.steps
        least = max(limits.min_points, (1.0 - limits.ended) * len(whole.finite))
        if len(after) >= least:
            reading = (
                f"measured up to step {ratio.steps[-1]}, and at none of the {len(after)} steps"
                " since"
            )
            yield _no_path(ratio.parts["name"], shown(ratio, reading), int(after[0]))


def _no_path(name: str, evidence: Evidence, begun: int | None = None) -> Draft:
    begun = evidence.first_step or 0 if begun is None else begun
    return finding(
        f"The loss does not reach the module of the pair {name!r}: it has no gradient from "
        f"step {begun} on",
        evidence,
        severity="critical" if begun == 0 else "warn",
        basis="proved",
        since_step=begun,
    )
