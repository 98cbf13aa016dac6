"""Reads gradients and weights of the watched parameters into a `Reading`, without a sync and without changing them.

Tensor by tensor, not statistic by statistic: while a tensor is in the cache, everything is taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradiometer.capture.reading import Reading
from gradiometer.maths import stats

__all__ = ["Gauge"]


class Gauge:
    """Holds the parameters and one scratch copy of their size (tier `standard` and above).

    The scratch holds the previous gradient until the new one has been compared with it, then the weights before the
    step, then the gradient again.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.index = {id(p): i for i, p in enumerate(self.parameters)}
        self._scratch: dict[int, Tensor] = {}
        self._previous: dict[int, Tensor] = {}
        """The norm of the previous gradient of each parameter whose scratch holds it."""

    def indices(self, tensors: Iterable[Tensor]) -> list[int]:
        """The watched ones among `tensors`."""
        index = self.index
        return [index[id(t)] for t in tensors if id(t) in index]

    def with_grad(self, indices: Iterable[int]) -> list[int]:
        """Those that hold a gradient now."""
        return [i for i in indices if self.parameters[i].grad is not None]

    def grad(self, i: int) -> Tensor:
        """A gradient that is there, dense and flat."""
        grad = self.parameters[i].grad
        assert grad is not None
        return stats.flat(grad)

    def versions(self, indices: Iterable[int]) -> dict[int, int]:
        """torch's counter of in-place changes of each gradient: equal means untouched."""
        return {i: grad._version for i in indices if (grad := self.parameters[i].grad) is not None}

    @torch.no_grad()
    def read_light(self, reading: Reading, indices: Sequence[int]) -> None:
        """Norm and extremes of each gradient as backward left it."""
        grads = [stats.values(grad) for i in indices if (grad := self.parameters[i].grad) is not None]
        low, high = stats.extremes(grads)
        reading.add("raw", indices, stats.norms(grads))
        reading.add("low", indices, low)
        reading.add("high", indices, high)

    @torch.no_grad()
    def read_full(self, reading: Reading, indices: Sequence[int]) -> None:
        """What `read_light` reads, the mean, and the inner product with the previous gradient where it is held."""
        raw, low, high, total, dots, with_previous = [], [], [], [], [], []
        for i in indices:
            grad = self.grad(i)
            raw.append(stats.norm(grad))
            least, most = stats.extreme(grad)
            low.append(least)
            high.append(most)
            total.append(stats.total(grad))
            if i in self._previous:
                dots.append(stats.dot(grad, self._scratch[i]))
                with_previous.append(i)
        for quantity, values in (("raw", raw), ("low", low), ("high", high), ("sum", total)):
            reading.add(quantity, indices, values)
        reading.add("previous_dot", with_previous, dots)
        reading.add("previous_norm", with_previous, [self._previous[i] for i in with_previous])

    @torch.no_grad()
    def read_clipped(self, reading: Reading, indices: Sequence[int]) -> None:
        """Norm of each gradient as the optimizer is about to see it."""
        reading.add("clipped", indices, [stats.norm(self.grad(i)) for i in indices])

    @torch.no_grad()
    def keep_weights(self, indices: Sequence[int]) -> None:
        """Copy the weights before the step; what the scratch held of gradients is gone."""
        for i in indices:
            self._previous.pop(i, None)
        kept = [self._scratch_for(i) for i in indices]
        stats.store(kept, [stats.flat(self.parameters[i]) for i in indices])

    @torch.no_grad()
    def read_update(self, reading: Reading, indices: Sequence[int]) -> None:
        """‖w‖ before the step, ‖Δw‖ and <g, −Δw>."""
        weight, update, dots, with_grad = [], [], [], []
        for i in indices:
            kept = self._scratch[i]
            weight.append(stats.norm(kept))
            kept.sub_(stats.flat(self.parameters[i]))  # w_before − w_after = −Δw
            update.append(stats.norm(kept))
            if self.parameters[i].grad is not None:
                dots.append(stats.dot(self.grad(i), kept))
                with_grad.append(i)
        reading.add("weight", indices, weight)
        reading.add("update", indices, update)
        reading.add("update_dot", with_grad, dots)

    @torch.no_grad()
    def keep_gradients(self, indices: Iterable[int]) -> None:
        """Copy the gradients, for the next step to be compared with."""
        for i in indices:
            kept = self._scratch_for(i)
            kept.copy_(self.grad(i))
            self._previous[i] = stats.norm(kept)

    def forget(self) -> None:
        """What the scratch holds is not the gradient of the step before."""
        self._previous.clear()

    @torch.no_grad()
    def nonfinite(self, indices: Sequence[int]) -> list[int]:
        """The parameters whose gradient holds a NaN or an Inf, judged on elements. A sync, for those who asked for it."""
        grads = [stats.values(grad) for i in indices if (grad := self.parameters[i].grad) is not None]
        if not grads or bool(torch.isfinite(torch.stack([n.double() for n in stats.norms(grads)])).all()):
            return []
        low, high = stats.extremes(grads)
        bad = ~torch.isfinite(torch.stack([a.double() + b.double() for a, b in zip(low, high, strict=True)]))
        return [i for i, is_bad in zip(indices, bad.tolist(), strict=True) if is_bad]

    def _scratch_for(self, i: int) -> Tensor:
        weight = stats.flat(self.parameters[i])
        kept = self._scratch.get(i)
        if kept is None or kept.shape != weight.shape or kept.device != weight.device or kept.dtype != weight.dtype:
            kept = self._scratch[i] = torch.empty_like(weight)
        return kept
