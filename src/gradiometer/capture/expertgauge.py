"""Reads the gradients of the experts of one layer: tiers, inner products, histograms. No sync, nothing changed.

Thresholds of the tiers are kept and compared with the weights as they are now, so a weight that grew leaves the bottom tier
at once; they are found anew for one layer in eight at a time, for a selection costs more than all the rest.
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

__all__ = ["NUM_SUMS", "ExpertGauge"]

NUM_SUMS = 10
"""Σ g² of the source's top, bottom, middle and of all; of the sound top, bottom, middle; and the sound tiers' sizes."""


class ExpertGauge:
    """One layer of experts, with the thresholds of its tiers."""

    def __init__(self, layer: ExpertLayer, parameters: Sequence[Tensor]) -> None:
        self.layer = layer
        self._parameters = parameters
        self._cuts: dict[tuple[int, int], Tensor] = {}

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
        """`<name>/sums` [N, NUM_SUMS] and `<name>/gram` [N, N]; with new thresholds also `<name>/apart` [N, 2]."""
        device = self._parameters[self.layer.slabs[0].parts[0]].device
        with torch.autocast(device.type, enabled=False):
            for number, slab in enumerate(self.layer.slabs):
                self._read_slab(reading, name, number, slab, fresh=fresh, histograms=histograms)
                if fresh:
                    reading.add_array(f"{name}/apart", self._apart(slab))

    def _read_slab(
        self, reading: Reading, name: str, number: int, slab: Slab, *, fresh: bool, histograms: bool
    ) -> None:
        grads = [self._grad(slab, e) for e in range(self.layer.num)]
        like = next((grad for grad in grads if grad is not None), None)
        if like is None:
            return
        nothing = torch.zeros(NUM_SUMS, dtype=_wide(like), device=like.device)
        rows: list[Tensor] = []
        for e, grad in enumerate(grads):
            if grad is None:
                rows.append(nothing)
                continue
            weight = self._weight(slab, e)
            sums = tiers.tier_sums(grad, weight, self._cut(number, e, weight, fresh=fresh))
            # Tensors of one dimension are in the source's tiers and not in the sound ones.
            sound = [sums.sound, sums.counts] if weight.ndim >= 2 else [nothing[:6]]
            rows.append(torch.cat([sums.source, *sound]))
            if histograms:
                counts = log_histogram(grad)
                reading.add_array(f"histogram/layer.{self.layer.path}/expert/{e}", counts)
                reading.add_array(f"histogram/expert/{e}", counts)
        reading.add_array(f"{name}/sums", torch.stack(rows))
        flat = self._flat(slab, grads, like)
        reading.add_array(f"{name}/gram", flat @ flat.T)

    def _flat(self, slab: Slab, grads: Sequence[Tensor | None], like: Tensor) -> Tensor:
        """The gradients side by side, [N, n]; zeros for an expert that has none."""
        if slab.fused:
            whole = self._parameters[slab.parts[0]].grad
            assert whole is not None
            return filled(whole).reshape(self.layer.num, -1).to(_wide(like))
        dense = [torch.zeros_like(like) if grad is None else grad for grad in grads]
        return torch.stack([grad.reshape(-1).to(_wide(like)) for grad in dense])

    def _cut(self, number: int, e: int, weight: Tensor, *, fresh: bool) -> Tensor | None:
        if weight.numel() <= tiers.SMALL:
            return None
        if fresh or (number, e) not in self._cuts:
            self._cuts[number, e] = tiers.thresholds(weight.detach().reshape(-1).abs())
        return self._cuts[number, e]

    def _apart(self, slab: Slab) -> Tensor:
        """‖W_e − W_0‖² and ‖W_0‖² of each expert, [N, 2]."""
        first = self._weight(slab, 0)
        first = first.to(_wide(first))
        size = first.square().sum()
        apart = [(self._weight(slab, e).to(first) - first).square().sum() for e in range(self.layer.num)]
        return torch.stack([torch.stack(apart), size.expand(self.layer.num)], 1)

    def _weight(self, slab: Slab, e: int) -> Tensor:
        weight = self._parameters[slab.parts[0]][e] if slab.fused else self._parameters[slab.parts[e]]
        return weight.detach()

    def _grad(self, slab: Slab, e: int) -> Tensor | None:
        grad = self._parameters[slab.parts[0 if slab.fused else e]].grad
        if grad is None:
            return None
        return filled(grad)[e] if slab.fused else filled(grad)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
