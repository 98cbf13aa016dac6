"""Which layer feeds which: the one order of the layers that flow, rules and charts go by.

The meter sees it in the graph of the first measured backwards and keeps it as the table `layers`.
Where no graph was seen the order is that in which the parameters are registered, which says nothing
of branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

__all__ = ["LayerGraph", "read_layers"]

TABLE = "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Layers by name, as `layer.<module>`."""

    registered: tuple[str, ...]
    fed_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of each layer that a gradient reaches: the layers whose outputs it takes. Empty when no graph
    was seen."""

    @property
    def known(self) -> bool:
        """Whether the graph was seen."""
        return bool(self.fed_by)

    @property
    def order(self) -> tuple[str, ...]:
        """From the input to the loss; layers outside of the graph stay where they are registered.

        A layer stands behind all that feed it, but where they feed each other in a circle.
        """
        if not self.known:
            return self.registered
        place = {name: number for number, name in enumerate(self.registered)}
        done: dict[str, None] = {}
        for name in self.registered:
            self._finish(name, done, place)
        return tuple(done)

    def _finish(self, first: str, done: dict[str, None], place: Mapping[str, int]) -> None:
        """Everything that feeds a layer, then the layer itself (depth first, without recursion)."""
        stack, begun = [(first, False)], {first}
        while stack:
            name, ready = stack.pop()
            if name in done:
                continue
            if ready:
                done[name] = None
                continue
            stack.append((name, True))
            below = sorted(self.fed_by.get(name, ()), key=lambda each: -place.get(each, 0))
            fresh = [each for each in below if each not in done and each not in begun]
            begun.update(fresh)
            stack += [(each, False) for each in fresh]

    @property
    def feeds(self) -> dict[str, list[str]]:
        """Of each layer: those that take its output, in order, without circles; in a line where no
        graph was seen."""
        order = self.order
        place = {name: number for number, name in enumerate(order)}
        if not self.known:
            return {name: [order[i + 1]] for i, name in enumerate(order[:-1])}
        found: dict[str, list[str]] = {}
        for name in order:
            for below in self.fed_by.get(name, ()):
                if place[below] < place[name]:
                    found.setdefault(below, []).append(name)
        return found

    def chains(self) -> list[list[str]]:
        """For each layer that feeds no other, the longest chain of layers up to it, first to last;
        one through all where no graph was seen."""
        if not self.known:
            return [list(self.registered)]
        feeds, longest = self.feeds, dict[str, list[str]]()
        place = {name: number for number, name in enumerate(self.order)}
        for name in self.order:
            if name in self.fed_by:
                below = [x for x in self.fed_by[name] if place[x] < place[name]]
                best = max((longest[x] for x in below), key=len, default=[])
                longest[name] = [*best, name]
        return [chain for name, chain in longest.items() if not feeds.get(name)]

    def together(self, fed_by: Mapping[str, Iterable[str]]) -> LayerGraph:
        """With what another backward showed."""
        merged = {name: frozenset(below) for name, below in self.fed_by.items()}
        for name, below in fed_by.items():
            merged[name] = merged.get(name, frozenset()) | frozenset(below)
        return LayerGraph(registered=self.registered, fed_by=merged)

    def table(self) -> dict[str, Any]:
        """As it is kept with the run: names once, and for each the places of those that feed it (of
        a deep residual net these are thousands); None for a layer outside of the graph."""
        order = self.order
        place = {name: number for number, name in enumerate(order)}
        fed_by = [
            sorted(place[x] for x in self.fed_by[name] if place[x] < place[name])
            if name in self.fed_by
            else None
            for name in order
        ]
        return {"order": list(order), "fed_by": fed_by}


def read_layers(run: Run | Log) -> LayerGraph:
    """Of a run or log; of one without the table, what the names of its parameters tell."""
    names = run.table_names()
    if TABLE in names and (found := _from_table(run.table(TABLE).content)) is not None:
        return found
    states = run.table("states").content if "states" in names else None
    modules = [
        str(name).rpartition(".")[0] or str(name)
        for name in (states if isinstance(states, dict) else ())
    ]
    return LayerGraph(registered=tuple(dict.fromkeys(f"layer.{module}" for module in modules)))


def _from_table(content: Any) -> LayerGraph | None:
    """None of anything else: people keep tables of their own."""
    order, fed_by = (
        (content.get("order"), content.get("fed_by")) if isinstance(content, dict) else (None, None)
    )
    if not isinstance(order, list) or not isinstance(fed_by, list) or len(order) != len(fed_by):
        return None
    known = {
        str(name): frozenset(str(order[i]) for i in below if isinstance(i, int) and 0 <= i < place)
        for place, (name, below) in enumerate(zip(order, fed_by, strict=True))
        if isinstance(below, list)
    }
    return LayerGraph(registered=tuple(map(str, order)), fed_by=known)
