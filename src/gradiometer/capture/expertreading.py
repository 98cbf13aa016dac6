"""The experts of a model while it trains: which are due, their gradients, their routers.

Thresholds of the tiers are kept and compared with the weights as they are now, so a weight that
grew leaves the bottom tier at once. They are found anew whenever they move, and seldom once they
stand still: a selection costs as much as all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.blocks import Model
from gradiometer.capture.distributed import Piece, is_sharded
from gradiometer.capture.expertlayers import ExpertLayerReader
from gradiometer.capture.experts import ExpertLayer, find_experts
from gradiometer.capture.hooks import guarded
from gradiometer.capture.ranks import RankGroup, RankSync, digest_of
from gradiometer.capture.rounds import SHARDED, Recorder, SeenExperts
from gradiometer.capture.routing import RoutingTally
from gradiometer.capture.settings import Settings
from gradiometer.capture.shardedexperts import (
    WIRE,
    DueLayer,
    ShardedLayerReader,
    is_readable,
    read_together,
)
from gradiometer.capture.statistics import Fetched, Reading

__all__ = ["ExpertReader"]

STILL = 0.02
"""Relative change of a threshold that counts as none: at most 0.4 % of the weights move."""
LONGEST = 7
"""Looks that still thresholds serve; by layer up to seven more, so not all are due at once."""


class ExpertReader:
    """Finds experts and reads them every `every`-th step; free where there are none."""

    def __init__(
        self, settings: Settings, recorder: Recorder, *, measuring: Callable[[], int | None]
    ) -> None:
        self._settings, self._recorder, self._measuring = settings, recorder, measuring
        self.seconds = self.entered = 0.0
        self.every = settings.experts_every if settings.standard else None
        self.asked_for = False
        """Someone reads by hand: then routing is tallied at every step."""
        self.layers: list[ExpertLayer] = []
        self._readers: list[ExpertLayerReader] = []
        self._tallies: list[RoutingTally] = []
        self._remove: list[hooks.Remove] = []
        self._last: int | None = None
        self._last_together: int | None = None
        """The same of sharded layers, which all ranks read in the same rounds, or none."""
        self._voted: set[int] = set()
        """Sharded layers that were asked about in this round."""
        self._waits: list[int] = []
        """Looks that each layer's thresholds may serve after the one they were found at."""
        self._ages: list[int] = []
        self._read: dict[int, SeenExperts] = {}
        self._left_out: list[str] = []
        self._said_sharded = self._said_unswapped = False

    def scan(
        self,
        model: Model,
        named: dict[str, nn.Parameter],
        owner: Mapping[int, int],
        ranks: RankGroup,
        pieces: Mapping[int, Piece],
    ) -> None:
        """Look for experts anew. `owner`: which optimizer steps a parameter."""
        self.unhook()
        self._owner_of, self._ranks = owner, ranks
        found = find_experts(model, named, self._settings.experts)
        parameters: Sequence[Tensor] = list(named.values())
        sharded = [_is_sharded(layer, parameters) for layer in found]
        self.layers = [
            layer
            for layer, cut in zip(found, sharded, strict=True)
            if (is_readable(layer, parameters, pieces) if cut else _whole(layer, parameters))
        ]
        self._left_out = [
            layer.path
            for layer, cut in zip(found, sharded, strict=True)
            if cut and layer not in self.layers
        ]
        self._names = list(named)
        scratch: dict[torch.dtype, Tensor] = {}
        self._readers = [
            ShardedLayerReader(layer, parameters, scratch, pieces)
            if _is_sharded(layer, parameters)
            else ExpertLayerReader(layer, parameters, scratch)
            for layer in self.layers
        ]
        self._tallies = [RoutingTally(layer, wanted=self._tallying) for layer in self.layers]
        for layer, tally in zip(self.layers, self._tallies, strict=True):
            if layer.router is not None:
                self._remove.append(
                    hooks.observe_forward(layer.router, partial(self._note_routing, tally))
                )
        self._read.clear()
        self._waits, self._ages = [0] * len(self.layers), [0] * len(self.layers)

    @property
    def largest(self) -> int:
        """The number of experts in the layer that has most."""
        return max((layer.num for layer in self.layers), default=0)

    def unhook(self) -> None:
        """Let go of the routers."""
        while self._remove:
            self._remove.pop()()

    @guarded
    def _note_routing(self, tally: RoutingTally, output: Any, *, trained: bool) -> None:
        tally.note(output, trained=trained)

    def give_up(self, problem: str) -> None:
        """A fault of ours inside the user's forward: routers are left alone, all else goes on."""
        self.unhook()
        self._recorder.event("fault", problem)

    def backward_ended(self) -> None:
        """The forwards so far are in the gradients."""
        for tally in self._tallies:
            tally.gather()

    def due(self, number: int) -> bool:
        """Whether the experts are read at that round, if it is measured."""
        if self.every is None or not self.layers:
            return False
        lasts = {self._last_together if self._is_cut(at) else self._last for at in self._places}
        return any(last is None or number - last >= self.every for last in lasts)

    def _due_at(self, place: int, number: int) -> bool:
        last = self._last_together if self._is_cut(place) else self._last
        return self.every is not None and (last is None or number - last >= self.every)

    def _is_cut(self, place: int) -> bool:
        return isinstance(self._readers[place], ShardedLayerReader)

    @property
    def _places(self) -> range:
        return range(len(self._readers))

    @property
    def by_vote(self) -> bool:
        """Whether there are experts that all ranks read together."""
        return any(map(self._is_cut, self._places))

    def _tallying(self) -> bool:
        number = self._measuring()
        return self.asked_for or (number is not None and self.due(number))

    def read(
        self, reading: Reading | None, number: int, captured: Iterable[int], sync: RankSync
    ) -> None:
        """Take every layer whose experts' gradients are all there to be read. Without a `reading`
        this rank is paused: it votes no.

        Where one optimizer holds them they are all there with the first: a clip of one must not
        change it before the rest is read. Those of several may be made, and unscaled, one optimizer
        after the other.
        """
        if not self.due(number):
            return
        there = frozenset(captured)
        together: list[int] = []
        for place, reader in enumerate(self._readers):
            if place in self._read or place in self._voted or not self._due_at(place, number):
                continue
            held = reader.held()
            alone = len({self._owner_of.get(i) for i in held}) == 1
            if held and (held <= there or (alone and held & there)):
                if self._is_cut(place):
                    together.append(place)
                elif reading is not None:
                    self._read_layer(reading, place)
        if together:
            self._read_together(reading, number, together, sync)

    def _read_together(
        self, reading: Reading | None, number: int, places: Sequence[int], sync: RankSync
    ) -> None:
        """Layers that lie on several ranks, if all of them agree to."""
        self._voted.update(places)
        found = {place: self._due_layer(place) for place in places}
        due = {place: each for place, each in found.items() if each is not None}
        words = [(place, each.fresh, each.reader.present()) for place, each in due.items()]
        word = 0.0 if reading is None or not due else digest_of(words) + 1
        spare = Reading(0) if reading is None else reading

        def act() -> None:
            if not read_together(list(due.values()), self._ranks, spare):
                self._say_unswapped()

        if not sync.together(number, word, act) or reading is None:
            return
        self._last_together = number
        for place, each in due.items():
            self._ages[place] = 0 if each.fresh else self._ages[place] + 1
            self._note_read(place, each.name, each.reader.present())

    def _say_unswapped(self) -> None:
        if not self._said_unswapped:
            self._said_unswapped = True
            message = (
                "whole experts lie on each rank, and to compare them takes messages of more than"
                f" {WIRE >> 20} MB a rank: norms and tiers are measured, cosines and distances"
                " between experts are not"
            )
            self._recorder.event("experts-apart", message)

    def _due_layer(self, place: int) -> DueLayer | None:
        reader = self._readers[place]
        if not isinstance(reader, ShardedLayerReader) or not any(reader.present()):
            return None
        fresh = self._ages[place] >= self._waits[place]
        deep = self._settings.tier == "deep"
        return DueLayer(reader=reader, name=f"{SHARDED}{place}", fresh=fresh, histograms=deep)

    def read_now(self, reading: Reading, number: int | None) -> list[SeenExperts]:
        """Every layer as it is now, for one who asks; round `number` is not read again."""
        before = dict(self._read)
        for place in self._places:
            if not self._is_cut(place):
                self._read_layer(reading, place)
        seen = self._with_routing(reading)
        self._read = before
        if any(any(each.present) for each in seen):
            self._last = number
        return seen

    def _read_layer(self, reading: Reading, place: int) -> None:
        reader = self._readers[place]
        name, present = f"experts/{place}", reader.present()
        if any(present):
            fresh = self._ages[place] >= self._waits[place]
            self._ages[place] = 0 if fresh else self._ages[place] + 1
            reader.read(reading, name, fresh=fresh, histograms=self._settings.tier == "deep")
        self._note_read(place, name, present)

    def _note_read(self, place: int, name: str, present: Sequence[bool]) -> None:
        self._tallies[place].gather()
        rows = self._tallies[place].routed.rows
        self._read[place] = SeenExperts(
            name=name, layer=self.layers[place], present=tuple(present), rows=rows
        )

    def finish(self, reading: Reading, number: int | None = None) -> list[SeenExperts]:
        """What was read in this round, with its routing; nothing is left behind."""
        if self._left_out and not self._said_sharded:
            self._said_sharded = True
            message = (
                f"the experts of {self._left_out[0]} are cut in a way that ranks do not read"
                " together (along experts and their elements, or on several meshes): left out."
                " Measure them under fully_shard on one mesh, or in one process"
            )
            self._recorder.event("experts-sharded", message)
        seen = self._with_routing(reading)
        if any(not each.name.startswith(SHARDED) for each in seen):
            self._last = self._last if number is None else number
        self.forget()
        return seen

    def _with_routing(self, reading: Reading) -> list[SeenExperts]:
        seen = [self._read[place] for place in sorted(self._read)]
        for place, each in self._read.items():
            routed = self._tallies[place].routed
            if routed.weights is not None:
                reading.add_array(f"{each.name}/weights", routed.weights)
            if routed.tokens is not None:
                reading.add_array(f"{each.name}/tokens", routed.tokens)
        return seen

    def learn(self, fetched: Fetched, seen: Sequence[SeenExperts]) -> None:
        """The further thresholds moved when they were found anew, the sooner again."""
        for each in seen:
            place = self.layers.index(each.layer)
            name = f"{each.name}/moved/"
            moved = [float(x[0]) for key, x in fetched.arrays.items() if key.startswith(name)]
            if moved:
                longer = min(2 * self._waits[place] + 1, LONGEST + place % (LONGEST + 1))
                self._waits[place] = longer if max(moved) < STILL else 0  # also 0 for a NaN

    def forget(self) -> None:
        """The round is over, or its gradients were dropped."""
        self._read.clear()
        self._voted.clear()
        for tally in self._tallies:
            if tally.routed.rows:
                tally.forget()

    def describe(self) -> dict[str, Any]:
        """The layers, for the run."""
        return {"layers": [layer.describe(self._names) for layer in self.layers]}


def _is_sharded(layer: ExpertLayer, parameters: Sequence[Tensor]) -> bool:
    return any(is_sharded(parameters[i]) for i in layer.parameters)


def _whole(layer: ExpertLayer, parameters: Sequence[Tensor]) -> bool:
    """Whether its tensors are real and in one place."""
    own = [parameters[i] for i in layer.parameters]
    together = len({p.device for p in own}) == 1
    return together and not any(p.is_complex() for p in own)
