"""The blocks of a run: the whole model, the named ones, and its layers in the order of the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradiometer.dashboard.desk import Open
from gradiometer.dashboard.shape import Empty
from gradiometer.dashboard.views.series import natural
from gradiometer.doctor.report.further import measure_it
from gradiometer.metrics import CATALOGUE, TIERS
from gradiometer.store.reader import Run

__all__ = ["LAYER", "Blocks", "block_title", "blocks_of", "in_model_order", "measured_at", "watch_it"]

LAYER = "layer."
BLOCK = "grad/<block>/"
QUANTITIES = frozenset(
    quantity for name in CATALOGUE if name.startswith(BLOCK) and "<" not in (quantity := name.removeprefix(BLOCK))
)
"""What is measured of a block, as the ends of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
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


def blocks_of(run: Open) -> Blocks:
    """The blocks of which anything is recorded."""
    return _blocks(run.names)


@lru_cache(maxsize=64)
def _blocks(names: frozenset[str]) -> Blocks:
    found = {}
    for name in names:
        if name.startswith("grad/"):
            _, block, rest = [*name.split("/", 2), ""][:3]
            if rest in QUANTITIES:
                found[block] = True
    ordered = sorted(found, key=natural)
    return Blocks(
        whole="all" in found,
        named=tuple(block for block in ordered if block != "all" and not block.startswith(LAYER)),
        layers=tuple(block for block in ordered if block.startswith(LAYER)),
    )


def in_model_order(run: Open, layers: Iterable[str]) -> list[str]:
    """Layers as the model has them, by the order of its parameters in the table `states`; others after, in natural order."""
    places: dict[str, int] = {}
    if "states" in run.log.table_names():
        content = run.log.table("states").content
        for place, parameter in enumerate(content if isinstance(content, dict) else ()):
            places.setdefault(parameter.rpartition(".")[0] or parameter, place)
    return sorted(layers, key=lambda layer: (places.get(layer.removeprefix(LAYER), len(places)), natural(layer)))


def block_title(block: str) -> str:
    """A block as people call it."""
    return "Whole model" if block == "all" else block.removeprefix(LAYER)


def watch_it(more: str = "", *, run: Open | None = None) -> str:
    """The lines that put the meter around a training, with further arguments of `watch`; as its library has them, if the run
    is a log of one."""
    imported = {} if run is None else run.log.facts.get("imported", {})
    return measure_it(imported.get("library", ""), more=more)


def measured_at(run: Open, what: str, tier: str) -> Empty:
    """That a run has not got something which only a higher tier, or only the meter, records."""
    if not isinstance(run.log, Run) or not any(name.startswith("grad/") for name in run.names):
        cause = f"{run.label} was not recorded with the meter, and its log does not hold it."
        return Empty(title=f"No {what}", cause=cause, fix="Put the meter around the training.", code=watch_it(run=run))
    meter = run.log.facts.get("meter")
    own = meter.get("tier") if isinstance(meter, dict) else None
    if own in TIERS[TIERS.index(tier) :]:
        cause = f"{run.label} is measured with tier {own!r}, which records it, but it has no value yet."
        return Empty(title=f"No {what} yet", cause=cause, fix="It comes with the next measured steps.")
    cause = f"It is measured from tier {tier!r} on" + (f"; {run.label} has tier {own!r}." if own else ".")
    return Empty(title=f"No {what}", cause=cause, fix=f'Record with tier="{tier}".', code=watch_it(f'tier="{tier}"'))
