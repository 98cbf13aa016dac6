"""The experts of a model while it trains: who is due, what was read of whom, and who was asked by the routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.blocks import Model
from gradiometer.capture.expertgauge import ExpertGauge
from gradiometer.capture.experts import ExpertLayer, find_experts
from gradiometer.capture.isolation import guarded
from gradiometer.capture.reading import Fetched, Reading
from gradiometer.capture.rounds import Owner, SeenExperts
from gradiometer.capture.routing import Tally
from gradiometer.capture.settings import Settings
from gradiometer.capture.shards import is_sharded

__all__ = ["ExpertBook"]

STILL = 0.02
"""Relative change of a threshold between two selections that counts as none: it moves 5 % to at most 5.4 % of the weights."""
LONGEST = 7
"""Looks that thresholds standing still may serve, and up to seven more, by layer, so that not all are due at once."""


class ExpertBook:
    """Finds the experts, and reads them every `every`-th step at most; without experts nothing here costs anything."""

    def __init__(self, settings: Settings, owner: Owner, *, measuring: Callable[[], int | None]) -> None:
        self._settings, self._owner, self._measuring = settings, owner, measuring
        self.seconds = self.entered = 0.0
        self.every = settings.experts_every if settings.standard else None
        self.asked_for = False
        """Someone reads by hand: then routing is tallied at every step."""
        self.layers: list[ExpertLayer] = []
        self._gauges: list[ExpertGauge] = []
        self._tallies: list[Tally] = []
        self._remove: list[hooks.Remove] = []
        self._last: int | None = None
        self._waits: list[int] = []
        """Looks that each layer's thresholds may serve after the one they were found at."""
        self._ages: list[int] = []
        self._read: dict[int, SeenExperts] = {}
        self._left_out: list[str] = []
        self._said_sharded = False

    def scan(self, model: Model, named: dict[str, nn.Parameter], owner: Mapping[int, int]) -> None:
        """Look for experts anew: the model may have grown. `owner`: which optimizer steps a parameter."""
        self.unhook()
        self._owner_of = owner
        found = find_experts(model, named, self._settings.experts)
        self.layers = [layer for layer in found if _whole(layer, named)]
        sharded = [layer.path for layer in found if any(is_sharded(p) for p in _parameters(layer, named))]
        self._left_out = sharded
        parameters: Sequence[Tensor] = list(named.values())
        self._names = list(named)
        scratch: dict[torch.dtype, Tensor] = {}
        self._gauges = [ExpertGauge(layer, parameters, scratch) for layer in self.layers]
        self._tallies = [Tally(layer, wanted=self._tallying) for layer in self.layers]
        for layer, tally in zip(self.layers, self._tallies, strict=True):
            if layer.router is not None:
                self._remove.append(hooks.observe_forward(layer.router, partial(self._hear, tally)))
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
    def _hear(self, tally: Tally, output: Any, *, trained: bool) -> None:
        tally.note(output, trained=trained)

    def give_up(self, problem: str) -> None:
        """A fault of ours inside the user's forward: routers are not listened to any more, all else goes on."""
        self.unhook()
        self._owner.event("fault", problem)

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

        Where one optimizer holds them they are all there with the first: a clip of one must not change it before the rest
        is read. Those of several may be made, and unscaled, one optimizer after the other.
        """
        if not self.due(number):
            return
        there = frozenset(captured)
        for place, gauge in enumerate(self._gauges):
            held = gauge.held() if place not in self._read else set()
            alone = len({self._owner_of.get(i) for i in held}) == 1
            if held and (held <= there or (alone and held & there)):
                self._read_layer(reading, place)

    def read_now(self, reading: Reading, number: int | None) -> list[SeenExperts]:
        """Every layer as it is at this moment, for one who asks; the round of that number is not read again."""
        before = dict(self._read)
        for place in range(len(self._gauges)):
            self._read_layer(reading, place)
        seen = self._with_routing(reading)
        self._read = before
        if any(any(each.present) for each in seen):
            self._last = number
        return seen

    def _read_layer(self, reading: Reading, place: int) -> None:
        gauge = self._gauges[place]
        name, present = f"experts/{place}", gauge.present()
        if any(present):
            fresh = self._ages[place] >= self._waits[place]
            self._ages[place] = 0 if fresh else self._ages[place] + 1
            gauge.read(reading, name, fresh=fresh, histograms=self._settings.tier == "deep")
        self._tallies[place].gather()
        rows = self._tallies[place].rows
        self._read[place] = SeenExperts(name=name, layer=gauge.layer, present=tuple(present), rows=rows)

    def finish(self, reading: Reading, number: int | None = None) -> list[SeenExperts]:
        """What was read in this round, with the routing of its forwards; nothing of it is left behind."""
        if self._left_out and not self._said_sharded:
            self._said_sharded = True
            message = (
                f"the experts of {self._left_out[0]} are sharded, and tiers by weight need whole tensors: left out"
            )
            self._owner.event(
                "experts-sharded", f"{message}. Measure them under DistributedDataParallel or in one process"
            )
        seen = self._with_routing(reading)
        if seen:
            self._last = self._last if number is None else number
        self.forget()
        return seen

    def _with_routing(self, reading: Reading) -> list[SeenExperts]:
        seen = [self._read[place] for place in sorted(self._read)]
        for place, each in self._read.items():
            tally = self._tallies[place]
            if tally.weights is not None:
                reading.add_array(f"{each.name}/weights", tally.weights)
            if tally.tokens is not None:
                reading.add_array(f"{each.name}/tokens", tally.tokens)
        return seen

    def learn(self, fetched: Fetched, seen: Sequence[SeenExperts]) -> None:
        """How far the thresholds had moved where they were found anew: the further, the sooner again."""
        for each in seen:
            place = self.layers.index(each.layer)
            moved = [float(x[0]) for key, x in fetched.arrays.items() if key.startswith(f"{each.name}/moved/")]
            if moved:
                still = max(moved) < STILL  # not so of a NaN
                self._waits[place] = min(2 * self._waits[place] + 1, LONGEST + place % (LONGEST + 1)) if still else 0

    def forget(self) -> None:
        """The round is over, or its gradients were dropped."""
        self._read.clear()
        for tally in self._tallies:
            if tally.rows:
                tally.forget()

    def made_anew(self) -> None:
        """The gradients were made again within the round: what was read is of the past, and so is its routing."""
        self.forget()

    def describe(self) -> dict[str, Any]:
        """The layers, for the run."""
        return {"layers": [layer.describe(self._names) for layer in self.layers]}


def _whole(layer: ExpertLayer, named: dict[str, nn.Parameter]) -> bool:
    """Whether its tensors are real, in one piece and in one place; the parts of a sharded one are not its tiers."""
    parameters = _parameters(layer, named)
    together = len({p.device for p in parameters}) == 1
    return together and not any(is_sharded(p) or p.is_complex() for p in parameters)


def _parameters(layer: ExpertLayer, named: dict[str, nn.Parameter]) -> list[nn.Parameter]:
    values = list(named.values())
    return [values[i] for i in layer.parameters]
