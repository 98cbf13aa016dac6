"""Whether gradients are cleared between two steps of the optimizer that uses them.

A gradient is looked at after a step, and before each backward that adds to it until the next step.
Cleared means None or zero before one of them, wherever that was done. The loss of an actor that
runs through a critic adds to what the critic's step left, and is harmless where the critic clears
it before its own backward. What somebody changed in between (a momentum by hand) is their business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradiometer.capture.callers import line_of_call
from gradiometer.capture.proofs import ProofLog

__all__ = ["ClearedGradients", "Leftover"]

ID = "gradients-not-cleared"
MOST_ELEMENTS = 4096
"""Of a gradient that is looked at."""
LOOKS = 3
"""Steps of each optimizer that are looked at in a row; then those at powers of two."""


@dataclass(slots=True)
class Leftover:
    """What a step left in one gradient, and what each backward since then found there."""

    left: Tensor
    found: list[Tensor] = field(default_factory=list)
    is_gone: bool = False

    def before_backward(self, mark: Tensor | None) -> None:
        """A backward was about to add to a gradient with this mark."""
        if mark is None:
            self.is_gone = True
        elif not self.is_gone:
            self.found.append(mark)

    def is_kept(self) -> bool:
        """Whether every backward found something, and the first one what the step left. A sync."""
        if self.is_gone or not self.found:
            return False
        (size, total), *others = torch.stack([self.left, *self.found]).tolist()
        first = others[0]
        return size > 0 and first == [size, total] and all(each[0] > 0 for each in others)


@torch.no_grad()
def mark_of(gradient: Tensor) -> Tensor:
    """Two numbers that a gradient is known by."""
    some = gradient.detach().reshape(-1)[:MOST_ELEMENTS]
    some = torch.view_as_real(some).reshape(-1) if some.is_complex() else some.float()
    return torch.stack([some.abs().sum(), some.sum()])


class ClearedGradients:
    """Looks at a few gradients of each optimizer; the sentinels' are numbered as the hooks do."""

    def __init__(self, log: ProofLog) -> None:
        self._log = log
        self._sentinels: list[Tensor] = []
        self._owner: list[int | None] = []
        self._left: dict[int, Leftover] = {}
        self._before: dict[int, Tensor | None] = {}
        self._steps: dict[int, int] = {}

    def scan(self, sentinels: Sequence[Tensor], owners: Sequence[int | None]) -> None:
        """The parameters to look at, and which optimizer steps each."""
        self._sentinels, self._owner = list(sentinels), list(owners)
        self._left.clear()
        self._before.clear()

    def knows(self, optimizer: int) -> bool:
        """Whether any parameter of it is looked at."""
        return optimizer in self._owner

    def add(self, optimizer: int, parameters: Sequence[Tensor]) -> None:
        """Look at these of an optimizer too."""
        self._sentinels += parameters
        self._owner += [optimizer] * len(parameters)

    def adds_to(self, leaves: Collection[int]) -> None:
        """A backward is about to add to these leaves, by id, where no hook tells of its end."""
        if self.is_looking:
            self.before_backward()
            self.after_backward(place for place, p in enumerate(self._sentinels) if id(p) in leaves)

    def stepped(self, optimizer: int) -> None:
        """An optimizer has stepped: what it left is looked at, if it is due."""
        number = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        is_due = number <= LOOKS or number & (number - 1) == 0
        if not is_due or self._log.state(ID) == "found":
            return
        for place in self._of(optimizer):
            gradient = self._sentinels[place].grad
            if gradient is not None and gradient.layout == torch.strided:
                self._left[place] = Leftover(mark_of(gradient))

    @property
    def is_looking(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self._left)

    def before_backward(self) -> None:
        """Gradients as they are before any of the sentinels' is added to."""
        gradients = {place: self._sentinels[place].grad for place in self._left}
        self._before = {
            place: None if gradient is None else mark_of(gradient)
            for place, gradient in gradients.items()
        }

    def after_backward(self, reached: Iterable[int]) -> None:
        """Only what was added to counts: `autograd.grad` adds to nothing."""
        for place in set(reached) & self._before.keys():
            self._left[place].before_backward(self._before[place])
        self._before = {}

    def stepping(self, optimizer: int) -> None:
        """The optimizer steps again: were its gradients cleared in between?"""
        if not self._left:
            return
        looked = {place: self._left.pop(place, None) for place in self._of(optimizer)}
        seen = {place: left for place, left in looked.items() if left and self._was_reached(left)}
        kept = [place for place, left in seen.items() if left.is_kept()]
        if kept:
            self._tell(optimizer, kept)
        elif seen:
            self._log.ok(ID)

    def _was_reached(self, left: Leftover) -> bool:
        return left.is_gone or bool(left.found)

    def _of(self, optimizer: int) -> list[int]:
        return [place for place, owner in enumerate(self._owner) if owner == optimizer]

    def _tell(self, optimizer: int, kept: Sequence[int]) -> None:
        line = line_of_call()
        where = f" at {line}" if line is not None else ""
        self._log.found(
            ID,
            "gradients are not cleared between two optimizer steps: the backward before the step"
            f"{where} added to what the step before it had left",
            optimizer=optimizer,
            tensors=len(kept),
            **({} if line is None else line.detail()),
        )
