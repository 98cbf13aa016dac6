"""Which actions an agent with a value for each action takes: the best by its network, the worst, or
others, and how often it does not ask the network at all.

The network is known by its loss: the layer below the values that are chosen there, and the one that
takes observations (nextanswers.py). Its forwards on as many observations as there are environments
are those that act; they are heard for short stretches, further and further apart, and found again
among the newest steps of the environment by their observations. On a CPU only: elsewhere each would
be a sync.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.environment import Collection, EnvironmentView
from gradiometer.capture.logprobs import SeenGraph, layer_below, layer_weights, trained_towards
from gradiometer.capture.nextanswers import NextAnswers
from gradiometer.capture.proofs import ProofLog

__all__ = ["ActingChoices"]

ID = "update-opposes-reward"
STRETCH, GROWTH, MOST_LOOKS = 128, 1.15, 32
"""Steps of the environment in a stretch, how much later each comes, and how many there are."""
LEAST_LOOKS, LEAST_ASKED = 3, 64
"""Stretches, and choices in all, before anything is told."""
WORST, SELDOM = 0.9, 0.05
"""Share of the choices that are the worst ones by the network, where few are the best."""
WAITED = 8
"""Stretches after which nobody waits to hear whether values are costs."""
MOSTLY = 0.65
"""Share of the choices that are the best ones, from which on the environment numbers its actions as
the network does: of two actions random choices are the best half of the time."""


class ActingChoices:
    """Listens for short stretches, and says what the actions of each were."""

    def __init__(self, proofs: ProofLog, view: EnvironmentView, answers: NextAnswers) -> None:
        self._proofs, self._view, self._answers = proofs, view, answers
        self._calls: deque[tuple[Tensor, Tensor]] = deque(maxlen=STRETCH)
        self._given: Tensor | None = None
        self._network: weakref.ref[nn.Module] | None = None
        self.removers: list[hooks.Remove] = []
        self._begun, self._next, self._looks = 0, 0.0, 0
        self._asked = np.zeros(3, dtype=np.int64)
        """Choices that were found again, and how many of them are the best and the worst."""
        self._newest: deque[tuple[int, int]] = deque(maxlen=LEAST_LOOKS)
        """Choices of the last stretches, and how many of them are the best."""
        self.rate: float | None = None
        """Share of random actions in the last stretch, until it is taken."""
        self.values_are_costs: bool | None = None
        """Whether targets are higher where less was paid: then the least value is the best."""

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss goes backward in a measured step."""
        if self._looks >= MOST_LOOKS or not seen.errors or not self._view.width:
            return
        steps = self._view.steps
        if not self.removers:
            if steps >= self._next and (layers := self._layers(seen)) is not None:
                self._begun = steps
                self._calls.clear()
                mine, (entry, head) = weakref.ref(self), layers
                self.removers += [
                    hooks.observe_layer(entry, _noting(mine, ActingChoices.enter)),
                    hooks.observe_layer(head, _noting(mine, ActingChoices.answer)),
                ]
        elif steps - self._begun >= STRETCH * self._view.parts:
            self.stop()
            self._looks += 1
            self._next = GROWTH * steps
            self._look(self._view.last(STRETCH))

    @property
    def takes_best(self) -> bool:
        """Whether most choices are the best ones by the network, and are numbered as it does."""
        asked, best = np.sum(self._newest, axis=0)[:2] if self._newest else (0, 0)
        return bool(asked >= LEAST_ASKED and best >= MOSTLY * asked)

    @property
    def may_take_worst(self) -> bool:
        """Whether the least value is taken rather than the largest, or too few choices have been
        heard to tell."""
        asked, best, worst = self._asked.tolist()
        waits = bool(self.removers) or asked > 0
        return waits and (asked < LEAST_ASKED or worst >= best)

    def take_rate(self) -> dict[str, float]:
        """What the last stretch has shown, once."""
        found, self.rate = self.rate, None
        return {} if found is None else {"credit/exploration_rate": found}

    def stop(self) -> None:
        """Listen no more."""
        while self.removers:
            self.removers.pop()()

    def enter(self, given: Tensor, _: Tensor) -> None:
        """The network is asked."""
        acts = given.numel() == self._view.parts * self._view.width
        self._given = given.detach().clone() if acts else None

    def answer(self, _: Tensor, said: Tensor) -> None:
        """It answers."""
        given, self._given = self._given, None
        if given is not None and said.numel() == self._view.parts * said.shape[-1]:
            self._calls.append((given, said.detach()))

    def _layers(self, seen: SeenGraph) -> tuple[nn.Linear, nn.Linear] | None:
        """The layers of the trained network that observations enter, and that values leave."""
        if self._network is None:
            trained = [each.module for each in self._answers.networks if each.is_trained]
            self._network = trained[0] if len(trained) == 1 else None
        network = None if self._network is None else self._network()
        told = trained_towards(*seen.errors[0])
        below = None if told is None or told.actions is None else layer_below(told.below)
        if below is None or network is None:
            return None
        wanted = {id(each) for each in layer_weights(below)}
        linear = [each for each in network.modules() if isinstance(each, nn.Linear)]
        heads = [each for each in linear if id(each.weight) in wanted and each.out_features > 1]
        entries = [each for each in linear if each.in_features == self._view.width]
        return (entries[0], heads[0]) if len(entries) == len(heads) == 1 else None

    def _look(self, stretch: Collection | None) -> None:
        taken = None if stretch is None else stretch.actions
        if stretch is None or taken is None or taken.shape[1] != 1:
            return
        asked, best, worst, num = _compared(list(self._calls), stretch, taken[:, 0])
        self._asked += (asked, best, worst)
        self._newest.append((asked, best))
        if num > 1:
            # some programs ask at each step, and others only where the choice is the network's
            always = asked >= WORST * len(taken)
            others = num / (num - 1) if always else 1.0
            self.rate = min(max(others * (1.0 - best / len(taken)), 0.0), 1.0)
        self._judge()

    def _judge(self) -> None:
        asked, best, worst = self._asked.tolist()
        waits = self.values_are_costs is None and self._looks < WAITED
        if self._looks < LEAST_LOOKS or asked < LEAST_ASKED or waits or self.values_are_costs:
            return
        if worst >= WORST * asked and best <= SELDOM * asked:
            self._proofs.found(
                ID,
                f"of {asked} actions {worst} are those that the network values least, {best} those"
                " that it values most",
                subject="choices",
                how="worst",
                asked=asked,
            )


def _compared(
    calls: list[tuple[Tensor, Tensor]], stretch: Collection, taken: NDArray[np.float64]
) -> tuple[int, int, int, int]:
    """Choices that are found again, how many took the best and the worst action, and how many
    actions there are."""
    found, num = np.zeros(3, dtype=np.int64), 0
    for given, said in calls:
        values = said.double().numpy()
        values = values.reshape(-1, values.shape[-1])
        num = values.shape[1]
        rows = given.float().reshape(len(values), -1).numpy()
        for row, places in zip(values, stretch.places(rows.astype(np.float64)), strict=True):
            if len(places) == 1 and row.max() > row.min():
                action = taken[places[0]]
                found += (1, action == row.argmax(), action == row.argmin())
    asked, best, worst = found.tolist()
    return asked, best, worst, num


def _noting(
    mine: weakref.ref[ActingChoices], told: Callable[[ActingChoices, Tensor, Tensor], None]
) -> Callable[[Tensor, Tensor], None]:
    @hooks.harmless
    def note(given: Tensor, said: Tensor) -> None:
        if (choices := mine()) is not None:
            told(choices, given, said)

    return note
