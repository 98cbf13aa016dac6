"""One layer of experts: sums of squares over the tiers of their weights, and inner products.

Thresholds of the tiers are kept and compared with the weights as they are now, so a weight that
grew leaves the bottom tier at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from gradiometer.capture.experts import ExpertLayer, Slab
from gradiometer.capture.statistics import Reading
from gradiometer.maths import stats, tiers
from gradiometer.maths.histogram import log_histogram
from gradiometer.maths.stats import filled

__all__ = ["SMALL", "SOURCE", "ExpertLayerReader", "wide"]

AT_ONCE = 2**17  # elements of all experts that are copied side by side
SOURCE = 4  # of the ten sums of an expert, the first four are over Prismatic's tiers
# up to here a tensor is cut anew each time, and ties are resolved: a sort of it costs little
SMALL = 4096


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
        own = [[self._parameters[i] for i in slab.parts] for slab in self.layer.slabs]
        there = [
            [each.grad is not None for each in parts]
            for parts in own
            if any(each.requires_grad for each in parts)
        ]
        whole = [held * self.layer.num if len(held) == 1 else held for held in there]
        return [bool(whole) and all(held[e] for held in whole) for e in range(self.layer.num)]

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
        matrix = self.is_matrix(slab)
        if len(weights[0]) <= SMALL:
            grad, weight = _side_by_side(grads), _side_by_side(weights)
            cuts = tiers.thresholds(weight.abs())
            sums = torch.cat(tiers.tier_sums(grad, weight, cuts, exact=matrix), 1)
            products = grad @ grad.T
        else:
            cuts = self._large_cuts(reading, name, number, weights, fresh=fresh)
            sums = self._sums(grads, weights, cuts)
            products = _added(part @ part.T for part in self._beside(grads, cuts))
        if not matrix:
            sums[:, SOURCE:] = 0.0
        reading.add_array(f"{name}/sums", sums)
        reading.add_array(f"{name}/gram", products)

    def is_matrix(self, slab: Slab) -> bool:
        """Tensors of one dimension are in Prismatic's tiers and not in the sound ones."""
        return self._parameters[slab.parts[0]].ndim - slab.fused >= 2

    def _large_cuts(
        self, reading: Reading, name: str, number: int, weights: Sequence[Tensor], *, fresh: bool
    ) -> Tensor:
        """The thresholds of a slab, [N, 2], kept or found anew, an expert at a time."""
        old = self._cuts.get(number)
        if old is not None and not fresh:
            return old
        self._cuts[number] = new = torch.cat(
            [tiers.thresholds(wide(row).abs()[None]) for row in weights]
        )
        if old is not None:
            reading.add_array(f"{name}/moved/{number}", ((new - old).abs() / old).max().reshape(1))
        return new

    def _sums(self, grads: Sequence[Tensor], weights: Sequence[Tensor], cuts: Tensor) -> Tensor:
        """The ten numbers of each expert's large tensor, [N, 10]; sound tiers count ties too."""
        if cuts.device.type in stats.HOST:
            if cuts.dtype not in self._scratch:
                self._scratch[cuts.dtype] = torch.empty(5, tiers.IN_CACHE, dtype=cuts.dtype)
            seven = tiers.tier_sums_by_row(grads, weights, cuts, scratch=self._scratch[cuts.dtype])
            return torch.cat([seven[:, :SOURCE], seven[:, :3], seven[:, SOURCE:]], 1)
        pairs = zip(_parts(grads, self._columns), _parts(weights, self._columns), strict=True)
        return _added(torch.cat(tiers.tier_sums(grad, weight, cuts), 1) for grad, weight in pairs)

    def _beside(self, rows: Sequence[Tensor], cuts: Tensor) -> Iterator[Tensor]:
        """The rows side by side, some columns at a time; on a CPU always in the same memory."""
        room = self._scratch.get(cuts.dtype)
        if room is None or cuts.device.type != "cpu" or rows[0].dtype != cuts.dtype:
            yield from _parts(rows, self._columns)
            return
        columns = room.numel() // len(rows)
        for first in range(0, len(rows[0]), columns):
            parts = [row[first : first + columns] for row in rows]
            made = room.view(-1)[: len(rows) * len(parts[0])].view(len(rows), -1)
            yield torch.stack(parts, out=made)

    def _read_histograms(self, reading: Reading, slab: Slab) -> None:
        for e in range(self.layer.num):
            grad = self._grad(slab, e)
            if grad is not None:
                counts = log_histogram(grad)
                reading.add_array(f"histogram/layer.{self.layer.path}/expert/{e}", counts)
                reading.add_array(f"histogram/expert/{e}", counts)

    def _rows(self, slab: Slab, *, of_grads: bool) -> list[Tensor]:
        """Gradient or weights of each expert, a row each; zeros where there is no gradient."""
        own = [self._parameters[i] for i in slab.parts]
        if of_grads:
            held = [
                torch.zeros_like(each) if each.grad is None else filled(each.grad.detach())
                for each in own
            ]
        else:
            held = [each.detach() for each in own]
        if slab.fused:
            return list(held[0].reshape(self.layer.num, -1))
        return [row.reshape(-1) for row in held]

    def _apart(self, slab: Slab) -> Tensor:
        """‖W_e − W_0‖² and ‖W_0‖² of each expert, [N, 2]."""
        rows = self._rows(slab, of_grads=False)
        first = wide(rows[0])
        apart = torch.stack([(wide(row) - first).square().sum() for row in rows])
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
    return wide(torch.stack(list(rows)))


def wide(x: Tensor) -> Tensor:
    """In the precision that sums are taken in."""
    return x if x.dtype == torch.float64 else x.float()
