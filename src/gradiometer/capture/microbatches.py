"""Sketches of the gradient: of the whole one for its direction, and of what each backward added for its noise.

A sketch is linear, so what a micro-batch added is the sketch after its backward less the one before: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradiometer.capture.gauge import Gauge
from gradiometer.capture.reading import Reading
from gradiometer.capture.roster import Roster
from gradiometer.capture.rounds import Round
from gradiometer.capture.shards import ShardSketcher
from gradiometer.maths.sketch import Sketcher, key_of

__all__ = ["SKETCH_SEED", "MicroBatches"]

SKETCH_SEED = 20_177  # one for all runs, so that sketches of two runs of the same model can be compared


class MicroBatches:
    """Sketches per atom, the finest parts the named blocks have in common; a block's sketch is the sum of its atoms'."""

    def __init__(self, gauge: Gauge, roster: Roster, size: int) -> None:
        self._gauge = gauge
        self._keys = [key_of(name) for name in roster.names]
        blocks = roster.blocks
        self.sharded = bool(gauge.pieces)
        by_key = {key: gauge.pieces[i] for i, key in enumerate(self._keys)} if self.sharded else {}
        self._sketcher = (
            ShardSketcher(seed=SKETCH_SEED, k=size, pieces=by_key)
            if self.sharded
            else Sketcher(seed=SKETCH_SEED, k=size)
        )
        self._previous: tuple[int, Tensor] | None = None
        named = [frozenset(part) for part in blocks.members[: blocks.num_named]]
        signatures = [tuple(i in part for part in named) for i in range(len(gauge.parameters))]
        atoms = sorted(set(signatures))
        self._atom_of = [atoms.index(signature) for signature in signatures]
        self.atoms = [[place for place, inside in enumerate(column) if inside] for column in zip(*atoms, strict=True)]
        """Which atoms each named block is made of."""
        self.num_atoms = len(atoms)

    @torch.no_grad()
    def read(self, current: Round, reached: frozenset[int]) -> None:
        """After a backward: the sketch of what has accumulated so far."""
        held = self._gauge.with_grad(range(len(self._gauge.parameters)))
        current.accumulated.append(self._sketch(held))
        current.reaches.append(reached)
        current.sketched = self._gauge.marks(held)

    @torch.no_grad()
    def read_raw(self, current: Round, reading: Reading, indices: Sequence[int]) -> None:
        """The sketch of the whole gradient; the last backward's, if nothing has changed since."""
        unchanged = current.sketched and self._gauge.marks(indices) == current.sketched
        reading.add_array("sketch", current.accumulated[-1] if unchanged else self._sketch(indices))
        if self._previous is not None and self._previous[0] == current.number - 1:
            reading.add_array("previous_sketch", self._previous[1])
            self._previous = None

    @torch.no_grad()
    def keep(self, indices: Sequence[int], *, step: int) -> None:
        """Sketch the gradient, for the next step to be compared with; several optimizers of a step add up."""
        sketch = self._sketch(indices)
        of_step, held = self._previous or (step, torch.zeros_like(sketch))
        self._previous = step, sketch + held if of_step == step else sketch

    def forget(self) -> None:
        """The next step is compared with nothing."""
        self._previous = None

    @torch.no_grad()
    def finish(self, current: Round, reading: Reading) -> None:
        """Squared norms of what each backward added, [parts, blocks], and of their sum, [blocks]."""
        # Backward passes that reach different parameters are different losses, not parts of one batch.
        if len(current.accumulated) < 2 or len(set(current.reaches)) != 1:
            return
        sums = torch.stack(current.accumulated)
        if self.sharded:  # squares come after the sum over ranks
            reading.add_array("accumulated", sums)
            return
        added = sums.diff(dim=0, prepend=torch.zeros_like(sums[:1]))
        parts = torch.stack([torch.stack([added[:, place] for place in places]).sum(0) for places in self.atoms], dim=1)
        reading.add_array("parts", parts.square().sum(-1))
        reading.add_array("parts_sum", parts.sum(0).square().sum(-1))

    def _sketch(self, indices: Sequence[int]) -> Tensor:
        by_device: dict[torch.device, list[int]] = {}
        for i in indices:
            by_device.setdefault(self._gauge.parameters[i].device, []).append(i)
        first, *others = [self._sketch_on_one_device(part) for part in by_device.values()]
        for other in others:
            first = first + other.to(first)
        return first

    def _sketch_on_one_device(self, indices: Sequence[int]) -> Tensor:
        groups: list[list[int]] = [[] for _ in range(self.num_atoms)]
        for place, i in enumerate(indices):
            groups[self._atom_of[i]].append(place)
        grads, keys = [self._gauge.grad(i) for i in indices], [self._keys[i] for i in indices]
        return self._sketcher.sketch_groups(grads, keys, groups)
