"""Reads the gradients of the experts of one layer: tiers, inner products, histograms. No sync, nothing changed.

Thresholds of the tiers are kept and compared with the weights as they are now, so a weight that grew leaves the bottom tier
at once. They are found anew whenever they move, and seldom once they stand still: a selection costs as much as all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradiometer.capture.experts import ExpertLayer, Slab
from gradiometer.capture.reading import Reading
from gradiometer.maths import tiers
from gradiometer.maths.histogram import log_histogram
from gradiometer.maths.stats import filled

__all__ = ["ExpertGauge"]

AT_ONCE = 2**17  # elements of all experts that are looked at together: they and what is made of them stay in the cache
SMALL = 4096  # up to here a tensor is cut anew each time, and ties are resolved: a sort of it costs little


class ExpertGauge:
    """One layer of experts, with the thresholds of its tiers."""

    def __init__(self, layer: ExpertLayer, parameters: Sequence[Tensor]) -> None:
        self.layer = layer
        self._parameters = parameters
        self._columns = max(1024, AT_ONCE // layer.num)
        self._cuts: dict[int, Tensor] = {}
        """The thresholds of each slab, [N, 2]."""

    def held(self) -> set[int]:
        """The parameters of the experts that hold a gradient now."""
        return {i for i in self.layer.parameters if self._parameters[i].grad is not None}

    def present(self) -> list[bool]:
        """Which experts have a gradient in every tensor of theirs that is trained; a frozen tensor asks for none."""
        trained = [slab for slab in self.layer.slabs if any(self._parameters[i].requires_grad for i in slab.parts)]
        grads = [[self._grad(slab, e) is not None for slab in trained] for e in range(self.layer.num)]
        return [bool(row) and all(row) for row in grads]

    @torch.no_grad()
    def read(self, reading: Reading, name: str, *, fresh: bool, histograms: bool) -> None:
        """`<name>/sums` [N, 10] and `<name>/gram` [N, N]; with new thresholds also `<name>/apart` [N, 2].

        The ten: Σ g² of the source's top, bottom, middle and of all; of the sound top, bottom, middle; and their sizes.
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
        length = weights[0].numel()
        small = length <= SMALL
        old = self._cuts.get(number)
        if fresh or small or old is None:
            self._cuts[number] = new = torch.cat([tiers.thresholds(_wide(row).abs()[None]) for row in weights])
            if old is not None and not small:
                reading.add_array(f"{name}/moved/{number}", ((new - old).abs() / old).max().reshape(1))
        # Tensors of one dimension are in the source's tiers and not in the sound ones.
        matrix = self._parameters[slab.parts[0]].ndim - slab.fused >= 2
        columns = length if small else self._columns  # whose ties are resolved is cut whole
        for first in range(0, length, columns):
            part = slice(first, first + columns)
            grad, weight = _side_by_side(grads, part), _side_by_side(weights, part)
            sums = tiers.tier_sums(grad, weight, self._cuts[number], exact=small and matrix)
            sound = torch.cat([sums.sound, sums.counts], 1)
            sound = sound if matrix else torch.zeros_like(sound)
            reading.add_array(f"{name}/sums", torch.cat([sums.source, sound], 1))
            reading.add_array(f"{name}/gram", grad @ grad.T)

    def _read_histograms(self, reading: Reading, slab: Slab) -> None:
        for e in range(self.layer.num):
            grad = self._grad(slab, e)
            if grad is not None:
                counts = log_histogram(grad)
                reading.add_array(f"histogram/layer.{self.layer.path}/expert/{e}", counts)
                reading.add_array(f"histogram/expert/{e}", counts)

    def _rows(self, slab: Slab, *, of_grads: bool) -> list[Tensor]:
        """The gradient, or the weights, of each expert as a row; zeros for an expert that has no gradient."""
        parts = [self._parameters[i] for i in slab.parts]
        held = [
            p.detach() if not of_grads else torch.zeros_like(p) if p.grad is None else filled(p.grad) for p in parts
        ]
        return list(held[0].reshape(self.layer.num, -1)) if slab.fused else [p.reshape(-1) for p in held]

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


def _side_by_side(rows: Sequence[Tensor], part: slice) -> Tensor:
    """[N, columns] of the same columns of each row."""
    return _wide(torch.stack([row[part] for row in rows]))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
