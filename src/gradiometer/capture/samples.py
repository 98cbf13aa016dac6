"""Zeros, signs and spread of the gradients, from a fixed strided sample of each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradiometer.capture.reading import Reading

__all__ = ["Samples"]


class Samples:
    """Keeps the samples of the step before, to compare signs with."""

    def __init__(self) -> None:
        self._previous: dict[int, tuple[int, Tensor]] = {}

    @torch.no_grad()
    def read(self, reading: Reading, indices: Sequence[int], now: Tensor, *, step: int) -> None:
        """Counts and moments of each sample: a few passes over a thousand numbers a tensor, whatever the model's size."""
        # Divided by its largest element, so that squares and fourth powers neither vanish nor overflow.
        scale = now.abs().amax(1).clamp_min(torch.finfo(now.dtype).tiny)
        squares = (now / scale[:, None]).square()
        reading.add_column("zeros", indices, (now == 0).sum(1))
        reading.add_column("positives", indices, (now > 0).sum(1))
        reading.add_column("squares", indices, squares.sum(1))
        reading.add_column("fourths", indices, squares.square().sum(1))
        reading.add_column("sample_scale", indices, scale)
        held = [place for place, i in enumerate(indices) if self._previous.get(i, (None,))[0] == step - 1]
        if held:
            before = torch.stack([self._previous[indices[place]][1] for place in held])
            rows = now if len(held) == len(indices) else torch.stack([now[place] for place in held])
            product = rows.sign() * before.sign()
            reading.add_column("agreeing", [indices[place] for place in held], (product > 0).sum(1))
            reading.add_column("compared", [indices[place] for place in held], (product != 0).sum(1))
        self.keep(indices, now, step=step)

    def keep(self, indices: Sequence[int], samples: Tensor, *, step: int) -> None:
        """For the next step to be compared with."""
        self._previous.update((i, (step, row)) for i, row in zip(indices, samples.unbind(), strict=True))

    def forget(self) -> None:
        """The next step is compared with nothing."""
        self._previous.clear()
