"""Who is who: the watched parameters, their blocks, and which optimizer steps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import nn
from torch.optim import Optimizer

from gradiometer.capture.blocks import Model, find_blocks, modules_of, named_parameters
from gradiometer.capture.settings import Settings

__all__ = ["Roster"]


class Roster:
    """The model as it is now; a new one is made when an optimizer holds other parameters than before."""

    def __init__(self, model: Model, optimizers: Sequence[Optimizer], settings: Settings) -> None:
        named = named_parameters(model)
        self.named = named
        self.names = list(named)
        self.parameters = list(named.values())
        self.blocks = find_blocks(named, settings.blocks)
        self.data_parallel = any(isinstance(m, nn.parallel.DistributedDataParallel) for m in modules_of(model).values())
        self._held = held_by(optimizers)
        index = {id(p): i for i, p in enumerate(self.parameters)}
        self._stepping = [
            sorted({index[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in index})
            for optimizer in optimizers
        ]
        counts = Counter(i for part in self._stepping for i in part)
        self.held_twice = sorted(i for i, count in counts.items() if count > 1)
        """Parameters that more than one optimizer steps."""
        self.owner = {i: number for number, part in enumerate(self._stepping) for i in part}
        # A parameter in no optimizer is read with the first one: its gradient exists, and nobody uses it.
        orphans = set(range(len(self.names))) - self.owner.keys()
        self.owned = [sorted({*self._stepping[0], *orphans}), *self._stepping[1:]]
        self.owned_sets = [frozenset(part) for part in self.owned]
        self.trained = frozenset(self.owner)
        self.sentinels = self._sentinels()

    def still_holds(self, optimizers: Sequence[Optimizer]) -> bool:
        """Whether the optimizers hold the very parameters they held."""
        return held_by(optimizers) == self._held

    def stepping(self, number: int) -> list[int]:
        """What an optimizer moves: a frozen parameter among its own is not copied and compared for nothing."""
        return [i for i in self._stepping[number] if self.parameters[i].requires_grad]

    def owners(self, indices: Iterable[int]) -> set[int]:
        """The optimizers that step these parameters."""
        return {self.owner[i] for i in indices if i in self.owner}

    def _sentinels(self) -> list[int]:
        chosen: set[int] = set()
        for part in self.blocks.members[: self.blocks.num_named]:
            trained = [i for i in part if self.parameters[i].requires_grad]
            if trained:
                chosen.update((trained[0], trained[len(trained) // 2], trained[-1]))
        return sorted(chosen)


def held_by(optimizers: Sequence[Optimizer]) -> list[tuple[int, tuple[int, ...]]]:
    """Which parameters the optimizers hold, and of what shape."""
    return [
        (id(p), tuple(p.shape)) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    ]
