"""What DQN remembers: the newest transitions, in the order they were made."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

__all__ = ["Replay", "Transitions"]


@dataclass(frozen=True, slots=True)
class Transitions:
    """Steps of environments: [...] each, observations and successors [..., 4]."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    """As the environment gave them."""
    successors: Tensor
    """The states the actions led to, also where the episode ended there."""
    terminated: Tensor
    done: Tensor
    """Terminated, or cut off."""

    def columns(self) -> list[Tensor]:
        """The tensors, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]


class Replay:
    """A ring of steps, each of all environments side by side: [capacity, N, ...]."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._columns: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        """Steps that are remembered."""
        return min(self._count, self.capacity)

    def add(self, step: Transitions) -> None:
        """One step of all environments, [N, ...]; the oldest one goes when the ring is full."""
        columns = step.columns()
        if not self._columns:
            self._columns = [each.new_empty(self.capacity, *each.shape) for each in columns]
        for kept, new in zip(self._columns, columns, strict=True):
            kept[self._count % self.capacity] = new
        self._count += 1

    def draw(self, number: int) -> Transitions:
        """Transitions drawn evenly and put back, [number, ...]."""
        steps = torch.randint(len(self), (number,), device=self._columns[0].device)
        envs = torch.randint(self._columns[0].shape[1], (number,), device=self._columns[0].device)
        return Transitions(*(each[steps, envs] for each in self._columns))

    def newest(self, number: int) -> Transitions:
        """The last steps in their order, [at most number, N, ...]."""
        steps = torch.arange(max(self._count - self.capacity, self._count - number, 0), self._count) % self.capacity
        return Transitions(*(each[steps] for each in self._columns))

    def spread(self, number: int) -> Transitions:
        """Steps at even distances over all that is remembered, [at most number, N, ...]."""
        steps = torch.arange(0, len(self), -(-len(self) // number))
        return Transitions(*(each[steps] for each in self._columns))
