"""The experts of a model while it trains: which are due, their gradients, their routers.

Thresholds of the tiers are kept and compared with the weights as they are now, so a weight that
grew leaves the bottom tier at once. They are found anew whenever they move, and seldom once they
stand still: a selection costs as much as all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.blocks import Model
from gradiometer.capture.distributed import is_sharded
from gradiometer.capture.experts import ExpertLayer, Slab, find_experts
from gradiometer.capture.hooks import guarded
from gradiometer.capture.rounds import Recorder, SeenExperts
from gradiometer.capture.routing import RoutingTally
from gradiometer.capture.settings import Settings
from gradiometer.capture.statistics import Fetched, Reading
from gradiometer.maths import tiers
from gradiometer.maths.histogram import log_histogram
from gradiometer.maths.stats import filled

__all__ = ["ExpertLayerReader", "ExpertReader"]

AT_ONCE = 2**17  # elements of all experts that are copied side by side
SOURCE = 4  # of the ten sums of an expert, the first four are over Prismatic's tiers
# up to here a tensor is cut anew each time, and ties are resolved: a sort of it costs little
SMALL = 4096
STILL = 0.02
"""Relative change of a threshold that counts as none: at most 0.4 % of the weights move."""
LONGEST = 7
"""Looks that still thresholds serve; by layer up to seven more, so not all are due at once."""


class ExpertLayerReader:
    """One layer of experts, with the thresholds of its tiers."""

    def __init__(
        self,
        layer: ExpertLayer,
        parameters: Sequence[Tensor],
        scratch: dict[torch.dtype, Tensor] | None = None,
    ) -> None:
        self.layer = layer
        self._parameters = parameters
        self._scratch = {} if scratch is None else scratch
        """Memory to cut in on a CPU, which all layers use in turn."""
        self._columns = max(1024, AT_ONCE // layer.num)
        self._cuts: dict[int, Tensor] = {}
        """The thresholds of each slab, [N, 2]."""

    def held(self) -> set[int]:
        """The parameters of the experts that hold a gradient now."""
        return {i for i in self.layer.parameters if self._parameters[i].grad is not None}

    def present(self) -> list[bool]:
        """Which experts have a gradient in all of their trained tensors."""
        trained = [
            slab
            for slab in self.layer.slabs
            if any(self._parameters[i].requires_grad for i in slab.parts)
        ]
        grads = [
            [self._grad(slab, e) is not None for slab in trained] for e in range(self.layer.num)
        ]
        return [bool(row) and all(row) for row in grads]

    @torch.no_grad()
    def read(self, reading: Reading, name: str, *, fresh: bool, histograms: bool) -> None:
        """`<name>/sums` [N, 10], `<name>/gram` [N, N]; with new thresholds `<name>/apart` [N, 2].

        The ten: Σ g² of Prismatic's top, bottom, middle and of all; of the sound top, bottom,
        middle; and their sizes.
        """
        device = self._parameters[self.layer.slabs[0].parts[0]].device
        with torch.autocast(device.type, enabled=False):
            for number, slab in enumerate(self.layer.slabs):
                if any(self._parameters[i].grad is not None for i in slab.parts):
                    self._read_slab(reading, name, number, fresh=fresh)
                    if histograms:
                        self._read_histograms(reading, slab)
                if fresh:
                    reading.add_array(f"{name}/apart", self._apart(slab))

    def _read_slab(self, reading: Reading, name: str, number: int, *, fresh: bool) -> None:
        slab = self.layer.slabs[number]
        grads, weights = self._rows(slab, of_grads=True), self._rows(slab, of_grads=False)
        # Tensors of one dimension are in Prismatic's tiers and not in the sound ones.
        matrix = self._parameters[slab.parts[0]].ndim - slab.fused >= 2
        if len(weights[0]) <= SMALL:
            grad, weight = _side_by_side(grads), _side_by_side(weights)
            cuts = tiers.thresholds(weight.abs())
            sums = torch.cat(tiers.tier_sums(grad, weight, cuts, exact=matrix), 1)
            products = grad @ grad.T
        else:
            cuts = self._large_cuts(reading, name, number, weights, fresh=fresh)
            sums = self._sums(grads, weights, cuts)
            products = _added(part @ part.T for part in _parts(grads, self._columns))
        if not matrix:
            sums[:, SOURCE:] = 0.0
        reading.add_array(f"{name}/sums", sums)
        reading.add_array(f"{name}/gram", products)

    def _large_cuts(
        self, reading: Reading, name: str, number: int, weights: Sequence[Tensor], *, fresh: bool
    ) -> Tensor:
        """The thresholds of a slab, [N, 2], kept or found anew, an expert at a time."""
        old = self._cuts.get(number)
        if old is not None and not fresh:
            return old
        self._cuts[number] = new = torch.cat(
            [tiers.thresholds(_wide(row).abs()[None]) for row in weights]
        )
        if old is not None:
            reading.add_array(f"{name}/moved/{number}", ((new - old).abs() / old).max().reshape(1))
        return new

    def _sums(self, grads: Sequence[Tensor], weights: Sequence[Tensor], cuts: Tensor) -> Tensor:
        """The ten numbers of each expert's large tensor, [N, 10]; sound tiers count ties too."""
        if cuts.device.type == "cpu":
            if cuts.dtype not in self._scratch:
                self._scratch[cuts.dtype] = torch.empty(5, tiers.IN_CACHE, dtype=cuts.dtype)
            seven = tiers.tier_sums_by_row(grads, weights, cuts, scratch=self._scratch[cuts.dtype])
            return torch.cat([seven[:, :SOURCE], seven[:, :3], seven[:, SOURCE:]], 1)
        pairs = zip(_parts(grads, self._columns), _parts(weights, self._columns), strict=True)
        return _added(torch.cat(tiers.tier_sums(grad, weight, cuts), 1) for grad, weight in pairs)

    def _read_histograms(self, reading: Reading, slab: Slab) -> None:
        for e in range(self.layer.num):
            grad = self._grad(slab, e)
            if grad is not None:
                counts = log_histogram(grad)
                reading.add_array(f"histogram/layer.{self.layer.path}/expert/{e}", counts)
                reading.add_array(f"histogram/expert/{e}", counts)

    def _rows(self, slab: Slab, *, of_grads: bool) -> list[Tensor]:
        """Gradient or weights of each expert, a row each; zeros where there is no gradient."""
        held = [self._parameters[i].detach() for i in slab.parts]
        if of_grads:
            grads = [self._parameters[i].grad for i in slab.parts]
            held = [
                torch.zeros_like(weight) if grad is None else filled(grad.detach())
                for weight, grad in zip(held, grads, strict=True)
            ]
        if slab.fused:
            return list(held[0].reshape(self.layer.num, -1))
        return [row.reshape(-1) for row in held]

    def _apart(self, slab: Slab) -> Tensor:
        """‖W_e − W_0‖² and ‖W_0‖² of each expert, [N, 2]."""
        rows = self._rows(slab, of_grads=False)
        first = _wide(rows[0])
        apart = torch.stack([(_wide(row) - first).square().sum() for row in rows])
        return torch.stack([apart, first.square().sum().expand(len(rows))], 1)

    def _grad(self, slab: Slab, e: int) -> Tensor | None:
        grad = self._parameters[slab.parts[0 if slab.fused else e]].grad
        if grad is None:
            return None
        return filled(grad)[e] if slab.fused else filled(grad)


def _added(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, one after the other: hundreds of experts have thousands of parts of N × N."""
    return reduce(Tensor.add_, parts)


def _parts(rows: Sequence[Tensor], columns: int) -> Iterator[Tensor]:
    """The rows side by side, [N, columns] of them at a time."""
    for first in range(0, len(rows[0]), columns):
        yield _side_by_side([row[first : first + columns] for row in rows])


def _side_by_side(rows: Sequence[Tensor]) -> Tensor:
    return _wide(torch.stack(list(rows)))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


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
        self._waits: list[int] = []
        """Looks that each layer's thresholds may serve after the one they were found at."""
        self._ages: list[int] = []
        self._read: dict[int, SeenExperts] = {}
        self._left_out: list[str] = []
        self._said_sharded = False

    def scan(self, model: Model, named: dict[str, nn.Parameter], owner: Mapping[int, int]) -> None:
        """Look for experts anew. `owner`: which optimizer steps a parameter."""
        self.unhook()
        self._owner_of = owner
        found = find_experts(model, named, self._settings.experts)
        self.layers = [layer for layer in found if _whole(layer, list(named.values()))]
        parameters: Sequence[Tensor] = list(named.values())
        self._left_out = [
            layer.path
            for layer in found
            if any(is_sharded(parameters[i]) for i in layer.parameters)
        ]
        self._names = list(named)
        scratch: dict[torch.dtype, Tensor] = {}
        self._readers = [ExpertLayerReader(layer, parameters, scratch) for layer in self.layers]
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
        return self._last is None or number - self._last >= self.every

    def _tallying(self) -> bool:
        number = self._measuring()
        return self.asked_for or (number is not None and self.due(number))

    def read(self, reading: Reading, number: int, captured: Iterable[int]) -> None:
        """Take every layer whose experts' gradients are all there to be read.

        Where one optimizer holds them they are all there with the first: a clip of one must not
        change it before the rest is read. Those of several may be made, and unscaled, one optimizer
        after the other.
        """
        if not self.due(number):
            return
        there = frozenset(captured)
        for place, reader in enumerate(self._readers):
            held = reader.held() if place not in self._read else set()
            alone = len({self._owner_of.get(i) for i in held}) == 1
            if held and (held <= there or (alone and held & there)):
                self._read_layer(reading, place)

    def read_now(self, reading: Reading, number: int | None) -> list[SeenExperts]:
        """Every layer as it is now, for one who asks; round `number` is not read again."""
        before = dict(self._read)
        for place in range(len(self._readers)):
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
        self._tallies[place].gather()
        rows = self._tallies[place].routed.rows
        self._read[place] = SeenExperts(
            name=name, layer=reader.layer, present=tuple(present), rows=rows
        )

    def finish(self, reading: Reading, number: int | None = None) -> list[SeenExperts]:
        """What was read in this round, with its routing; nothing is left behind."""
        if self._left_out and not self._said_sharded:
            self._said_sharded = True
            message = (
                f"the experts of {self._left_out[0]} are sharded, and tiers by weight need whole"
                " tensors: left out. Measure them under DistributedDataParallel or in one process"
            )
            self._recorder.event("experts-sharded", message)
        seen = self._with_routing(reading)
        if seen:
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
        for tally in self._tallies:
            if tally.routed.rows:
                tally.forget()

    def describe(self) -> dict[str, Any]:
        """The layers, for the run."""
        return {"layers": [layer.describe(self._names) for layer in self.layers]}


def _whole(layer: ExpertLayer, parameters: Sequence[Tensor]) -> bool:
    """Whether its tensors are real, whole and in one place: parts have no tiers."""
    own = [parameters[i] for i in layer.parameters]
    together = len({p.device for p in own}) == 1
    return together and not any(is_sharded(p) or p.is_complex() for p in own)
