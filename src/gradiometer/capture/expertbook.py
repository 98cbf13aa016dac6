"""The experts of a model while it trains: who is due, what was read of whom, and who was asked by the routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.blocks import Model
from gradiometer.capture.expertgauge import ExpertGauge
from gradiometer.capture.experts import ExpertLayer, find_experts
from gradiometer.capture.reading import Reading
from gradiometer.capture.rounds import SeenExperts
from gradiometer.capture.routing import Tally
from gradiometer.capture.settings import Settings

__all__ = ["ExpertBook"]

REFRESH_EVERY = 8  # measurements from one selection of a layer's thresholds to the next; the layers take turns


class ExpertBook:
    """Finds the experts, and reads them every `every`-th step at most; without experts nothing here costs anything."""

    def __init__(self, settings: Settings, *, measuring: Callable[[], int | None]) -> None:
        self._settings, self._measuring = settings, measuring
        self.every = settings.experts_every if settings.standard else None
        self.asked_for = False
        """Someone reads by hand: then routing is tallied at every step."""
        self.layers: list[ExpertLayer] = []
        self._gauges: list[ExpertGauge] = []
        self._tallies: list[Tally] = []
        self._remove: list[hooks.Remove] = []
        self._last: int | None = None
        self._num_read = 0
        self._read: dict[int, SeenExperts] = {}

    def scan(self, model: Model, named: dict[str, nn.Parameter]) -> None:
        """Look for experts anew: the model may have grown."""
        self.unhook()
        self.layers = [layer for layer in find_experts(model, named, self._settings.experts) if _whole(layer, named)]
        parameters: Sequence[Tensor] = list(named.values())
        self._names = list(named)
        self._gauges = [ExpertGauge(layer, parameters) for layer in self.layers]
        self._tallies = [Tally(layer, wanted=self._tallying) for layer in self.layers]
        for layer, tally in zip(self.layers, self._tallies, strict=True):
            if layer.router is not None:
                self._remove.append(hooks.observe_forward(layer.router, tally.note))
        self._read.clear()
        self._num_read = 0

    @property
    def largest(self) -> int:
        """The number of experts in the layer that has most."""
        return max((layer.num for layer in self.layers), default=0)

    def unhook(self) -> None:
        """Let go of the routers."""
        while self._remove:
            self._remove.pop()()

    def due(self, number: int) -> bool:
        """Whether the experts are read at that round, if it is measured."""
        if self.every is None or not self.layers:
            return False
        return self._last is None or number - self._last >= self.every

    def _tallying(self) -> bool:
        number = self._measuring()
        return self.asked_for or (number is not None and self.due(number))

    def read(self, reading: Reading, number: int, captured: Iterable[int]) -> None:
        """Take every layer whose experts' gradients are all there to be read."""
        if not self.due(number):
            return
        there = frozenset(captured)
        for place, gauge in enumerate(self._gauges):
            held = gauge.held()
            if place not in self._read and held and held <= there:
                self._read_layer(reading, place)

    def read_now(self, reading: Reading, number: int | None) -> list[SeenExperts]:
        """Every layer as it is at this moment, for one who asks; the round of that number is not read again."""
        for place in range(len(self._gauges)):
            self._read_layer(reading, place)
        seen = self.finish(reading)
        self._last = number
        return seen

    def _read_layer(self, reading: Reading, place: int) -> None:
        gauge = self._gauges[place]
        name, present = f"experts/{place}", gauge.present()
        if any(present):
            fresh = self._num_read == 0 or (self._num_read + place) % REFRESH_EVERY == 0
            gauge.read(reading, name, fresh=fresh, histograms=self._settings.tier == "deep")
        rows = self._tallies[place].rows
        self._read[place] = SeenExperts(name=name, layer=gauge.layer, present=tuple(present), rows=rows)

    def finish(self, reading: Reading, number: int | None = None) -> list[SeenExperts]:
        """What was read in this round, with the routing of its forwards; nothing of it is left behind."""
        seen = [self._read[place] for place in sorted(self._read)]
        for place, each in self._read.items():
            tally = self._tallies[place]
            if tally.weights is not None:
                reading.add_array(f"{each.name}/weights", tally.weights)
            if tally.tokens is not None:
                reading.add_array(f"{each.name}/tokens", tally.tokens)
        if seen:
            self._num_read += 1
            self._last = self._last if number is None else number
        self.forget()
        return seen

    def forget(self) -> None:
        """The round is over, or its gradients were dropped."""
        self._read.clear()
        for tally in self._tallies:
            if tally.rows:
                tally.forget()

    def made_anew(self) -> None:
        """The gradients were made again within the round: what was read is of the past."""
        self._read.clear()

    def describe(self) -> dict[str, Any]:
        """The layers, for the run."""
        return {"layers": [layer.describe(self._names) for layer in self.layers]}


def _whole(layer: ExpertLayer, named: dict[str, nn.Parameter]) -> bool:
    """Whether its tensors are here in one piece and real; the parts of a sharded one are not its tiers."""
    parameters = list(named.values())
    return not any(hasattr(parameters[i], "full_tensor") or parameters[i].is_complex() for i in layer.parameters)
