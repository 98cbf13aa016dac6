"""The series and blocks of a run by what they are, also under the names that other libraries give
them, and charts of them.

Where a library logs a quantity with the other sign (SB3's entropy_loss), it is drawn with ours, and
the chart says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gradiometer.charts.model import Chart, Empty, Level, Line, axis_of, info_of
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.doctor.report import measure_it
from gradiometer.metrics import (
    CATALOGUE,
    OUTCOMES,
    TIERS,
    Meaning,
    parse,
    read_names,
    resolve,
)
from gradiometer.store.layers import read_layers
from gradiometer.store.reader import Run
from gradiometer.words import natural

__all__ = [
    "FEW",
    "LAYER",
    "STAGES",
    "Curves",
    "RunBlocks",
    "best",
    "block_title",
    "blocks_of",
    "called",
    "chart",
    "in_model_order",
    "is_turned",
    "measured_at",
    "named",
    "norm_lines",
    "reward_of",
    "said",
    "watch_it",
]

FEW = 4
"""So many runs are drawn in full; of more only the main curves, in fewer points."""
LEAST_POINTS = 120


def named(run: OpenRun, template: str) -> list[str]:
    """The run's series that are this entry of the catalogue: under our name first, then by the
    order of its aliases.

    Of a name with placeholders that is one for each block, term, ..., the block `all` first.
    """
    metric = CATALOGUE[template]
    if "<" in template:
        ours = sorted((name for name in run.names if _is(template, name)), key=natural)
        ours.sort(key=lambda name: "all" not in (parse(template, name) or {}).values())
    else:
        ours = [template] if template in run.names else []
    theirs = [
        name
        for name, reading in read(run).items()
        if reading.metric is metric and reading.alias is not None
    ]
    return [*ours, *theirs]


def read(run: OpenRun) -> dict[str, Meaning]:
    """What the names of a run stand for, the first of several first."""
    return _readings(run.names, json.dumps(run.log.facts.get("names")))


@lru_cache(maxsize=64)
def _readings(names: frozenset[str], kept: str) -> dict[str, Meaning]:
    return read_names(sorted(names), kept=json.loads(kept))


def best(run: OpenRun, template: str) -> str | None:
    """The first of them; None when the run has none."""
    return next(iter(named(run, template)), None)


def reward_of(run: OpenRun) -> str | None:
    """The catalogue's reward, else what else says how well it goes; guesses last."""
    found = [name for each in ("reward", *OUTCOMES) for name in named(run, each)[:1]]
    return min(found, key=lambda name: name in read(run) and read(run)[name].guessed, default=None)


def said(name: str) -> str:
    """A series in words: our name and how the log spells it."""
    known = resolve(name)
    if known is None:
        return name
    metric, alias = known
    if "<" in metric.name or alias is None:
        return name
    return f"{metric.name} ({name})"


def is_turned(name: str) -> bool:
    """Whether a library logs it with the other sign: it is drawn with ours."""
    known = resolve(name)
    return known is not None and known[1] is not None and known[1].sign < 0


def called(request: ViewRequest, run: OpenRun) -> str:
    """What to call a run: its name, or its id when another of the request has the same name."""
    return run.id if sum(other.label == run.label for other in request.runs) > 1 else run.label


def _is(template: str, name: str) -> bool:
    if parse(template, name) is None:
        return False
    known = resolve(name)
    return known is not None and known[0].name == template


class Curves:
    """Lines of the runs on a request. A series is read once, however many charts show it."""

    def __init__(self, request: ViewRequest) -> None:
        self.request = request
        self._taken: dict[tuple[str, str, int | None], Line] = {}
        many = len(request.runs)
        self.crowded = many > FEW
        self._most = max(LEAST_POINTS, FEW * request.query.most // many) if self.crowded else None

    def line(
        self,
        run: OpenRun,
        name: str,
        what: str = "",
        *,
        role: str = "",
        key: str = "",
        most: int | None = None,
    ) -> Line:
        """A series; `what` it is stands beside the run's name when there are several runs."""
        most = most or self._most
        label = self._label(run, what)
        taken = self._taken.get((run.id, name, most))
        if taken is None:
            turned = is_turned(name)
            taken = self.request.line(
                run, name, label, role=role, key=key, most=most, turned=turned
            )
            self._taken[run.id, name, most] = taken
        return replace(taken, label=label, role=role, key=key)

    def row(
        self, run: OpenRun, name: str, label: str, *, key: str = "", most: int | None = None
    ) -> Line:
        """A row of a map, which is of one run: without that run's name."""
        return replace(self.line(run, name, most=most), label=label, key=key)

    def of(self, template: str, runs: Iterable[OpenRun] | None = None) -> list[Line]:
        """One line a run of a quantity without placeholders, under whatever name the run has it."""
        chosen = (
            (run, best(run, template)) for run in (self.request.runs if runs is None else runs)
        )
        return [self.line(run, name, said(name)) for run, name in chosen if name is not None]

    def _label(self, run: OpenRun, what: str) -> str:
        if len(self.request.runs) == 1:
            return what or run.label
        whose = called(self.request, run)
        known = resolve(what)
        return whose if not what or (known and known[1] is None) else f"{whose} · {what}"


def chart(
    id: str,
    title: str,
    lines: Sequence[Line],
    *,
    section: str = "",
    subtitle: str = "",
    levels: Sequence[Level] = (),
    low: float | None = None,
    high: float | None = None,
    wide: bool = False,
) -> list[Chart]:
    """A chart of curves with the catalogue's scale, unit and ⓘ; none when it has no line."""
    if not lines:
        return []
    names = list(dict.fromkeys(line.name for line in lines))
    return [
        Chart(
            id=id,
            kind="lines",
            title=title,
            section=section,
            subtitle=subtitle or _turned(names),
            y=axis_of(names[0], low=low, high=high),
            lines=lines,
            levels=levels,
            info=info_of(*names),
            wide=wide,
        )
    ]


def _turned(names: Iterable[str]) -> str:
    """Of series that a library logs with the other sign: that they are drawn with ours."""
    turned = [name for name in names if is_turned(name)]
    return f"{', '.join(turned)} is logged as minus this" if turned else ""


LAYER = "layer."
BLOCK = "grad/<block>/"
QUANTITIES = frozenset(
    quantity
    for name in CATALOGUE
    if name.startswith(BLOCK) and "<" not in (quantity := name.removeprefix(BLOCK))
)
"""What is measured of a block, as the ends of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBlocks:
    """What a run has gradients of. `all` is in neither list."""

    whole: bool
    """Whether there is `all`."""
    named: tuple[str, ...]
    layers: tuple[str, ...]
    """With `layer.` before the path, in natural order."""

    @property
    def main(self) -> tuple[str, ...]:
        """`all` and the named ones."""
        return (*(("all",) if self.whole else ()), *self.named)


def blocks_of(run: OpenRun) -> RunBlocks:
    """The blocks of which anything is recorded."""
    return _blocks(run.names)


@lru_cache(maxsize=64)
def _blocks(names: frozenset[str]) -> RunBlocks:
    found = {}
    for name in names:
        if name.startswith("grad/"):
            _, block, rest = [*name.split("/", 2), ""][:3]
            if rest in QUANTITIES:
                found[block] = True
    ordered = sorted(found, key=natural)
    return RunBlocks(
        whole="all" in found,
        named=tuple(block for block in ordered if block != "all" and not block.startswith(LAYER)),
        layers=tuple(block for block in ordered if block.startswith(LAYER)),
    )


def in_model_order(run: OpenRun, layers: Iterable[str]) -> list[str]:
    """Layers from the input to the loss, as the meter saw them, others after."""
    places = {layer: place for place, layer in enumerate(read_layers(run.log).order)}
    return sorted(layers, key=lambda layer: (places.get(layer, len(places)), natural(layer)))


def block_title(block: str) -> str:
    """A block as people call it."""
    return "Whole model" if block == "all" else block.removeprefix(LAYER)


def watch_it(more: str = "", *, run: OpenRun | None = None) -> str:
    """The lines that put the meter around a training, in the way of its library."""
    imported = {} if run is None else run.log.facts.get("imported", {})
    return measure_it(imported.get("library", ""), more=more)


def measured_at(run: OpenRun, what: str, tier: str) -> Empty:
    """That a run has not got something which only a higher tier, or only the meter, records."""
    if not isinstance(run.log, Run) or not any(name.startswith("grad/") for name in run.names):
        cause = f"{run.label} was not recorded with the meter, and its log does not hold it."
        return Empty(
            title=f"No {what}",
            cause=cause,
            fix="Put the meter around the training.",
            code=watch_it(run=run),
        )
    meter = run.log.facts.get("meter")
    own = meter.get("tier") if isinstance(meter, dict) else None
    if own in TIERS[TIERS.index(tier) :]:
        cause = (
            f"{run.label} is measured with tier {own!r}, which records it, but it has no value yet."
        )
        return Empty(
            title=f"No {what} yet", cause=cause, fix="It comes with the next measured steps."
        )
    cause = f"It is measured from tier {tier!r} on" + (
        f"; {run.label} has tier {own!r}." if own else "."
    )
    return Empty(
        title=f"No {what}",
        cause=cause,
        fix=f'Record with tier="{tier}".',
        code=watch_it(f'tier="{tier}"'),
    )


STAGES = ("raw", "clipped", "update")
MOST_BLOCKS = 12


def norm_lines(
    curves: Curves, run: OpenRun, stages: Sequence[str] = STAGES, block: str = "all"
) -> list[Line]:
    """A line a stage of a block; a run without `all` has its blocks or its own norms."""
    there = [stage for stage in stages if f"grad/{block}/norm/{stage}" in run.names]
    if there or block != "all":
        return [
            curves.line(run, f"grad/{block}/norm/{stage}", stage, role=stage) for stage in there
        ]
    blocks = blocks_of(run)
    held = {
        block: f"grad/{block}/norm/raw" for block in blocks.named or blocks.layers[:MOST_BLOCKS]
    }
    own = [(block, name) for block, name in held.items() if name in run.names]
    if own:
        return [
            curves.line(run, name, block_title(block), role=f"block:{block}") for block, name in own
        ]
    theirs = named(run, "grad/<block>/norm/raw") or named(run, "total_grad_norm")[:1]
    roles = ["raw"] if len(theirs) == 1 else [f"block:{name.partition('/')[0]}" for name in theirs]
    return [
        curves.line(run, name, name, role=role) for name, role in zip(theirs, roles, strict=True)
    ]
