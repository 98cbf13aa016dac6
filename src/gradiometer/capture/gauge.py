"""Reads gradients and weights of the watched parameters into a `Reading`, without a sync and without changing them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradiometer.capture.reading import Reading
from gradiometer.maths import stats

__all__ = ["Gauge"]


class Gauge:
    """Holds the parameters and one scratch copy of their size (tier `standard` and above)."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.index = {id(p): i for i, p in enumerate(self.parameters)}
        self._scratch: dict[int, Tensor] = {}

    def indices(self, tensors: Iterable[Tensor]) -> list[int]:
        """The watched ones among `tensors`."""
        return [self.index[id(t)] for t in tensors if id(t) in self.index]

    def with_grad(self, indices: Iterable[int]) -> list[int]:
        """Those that hold a gradient now."""
        return [i for i in indices if self.parameters[i].grad is not None]

    def grads(self, indices: Iterable[int]) -> list[Tensor]:
        """Their gradients, dense."""
        return [stats.dense(grad) for i in indices if (grad := self.parameters[i].grad) is not None]

    def versions(self, indices: Iterable[int]) -> dict[int, int]:
        """torch's counter of in-place changes of each gradient: equal means untouched."""
        return {i: grad._version for i in indices if (grad := self.parameters[i].grad) is not None}

    @torch.no_grad()
    def read_raw(self, reading: Reading, indices: Sequence[int]) -> None:
        """Norm and extremes of each gradient as backward left it."""
        grads = self.grads(indices)
        low, high = stats.extremes(grads)
        reading.add("raw", indices, stats.norms(grads))
        reading.add("low", indices, low)
        reading.add("high", indices, high)

    @torch.no_grad()
    def read_clipped(self, reading: Reading, indices: Sequence[int]) -> None:
        """Norm of each gradient as the optimizer is about to see it."""
        reading.add("clipped", indices, stats.norms(self.grads(indices)))

    @torch.no_grad()
    def keep_weights(self, indices: Sequence[int]) -> None:
        """Copy the weights before the step."""
        for i in indices:
            weight = self.parameters[i]
            kept = self._scratch.get(i)
            if kept is None or kept.shape != weight.shape or kept.device != weight.device:
                self._scratch[i] = torch.empty_like(weight)
        stats.store([self._scratch[i] for i in indices], [self.parameters[i].detach() for i in indices])

    @torch.no_grad()
    def read_update(self, reading: Reading, indices: Sequence[int]) -> None:
        """‖w‖ before the step and ‖Δw‖: the scratch becomes w_before − w_after."""
        scratch = [self._scratch[i] for i in indices]
        reading.add("weight", indices, stats.norms(scratch))
        stats.subtract_(scratch, [self.parameters[i].detach() for i in indices])
        reading.add("update", indices, stats.norms(scratch))

    @torch.no_grad()
    def nonfinite(self, indices: Sequence[int]) -> list[int]:
        """The parameters whose gradient holds a NaN or an Inf, judged on elements. A sync: only where the user asked."""
        grads = self.grads(indices)
        if not grads or bool(torch.isfinite(torch.stack([n.double() for n in stats.norms(grads)])).all()):
            return []
        low, high = stats.extremes(grads)
        bad = ~torch.isfinite(torch.stack([a.double() + b.double() for a, b in zip(low, high, strict=True)]))
        return [i for i, is_bad in zip(indices, bad.tolist(), strict=True) if is_bad]
