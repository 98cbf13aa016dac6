"""Zeros, signs and spread of the gradients, from a fixed strided sample of each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradiometer.capture.gauge import Gauge
from gradiometer.capture.reading import Reading
from gradiometer.maths import stats

__all__ = ["SAMPLE_SIZE", "Samples"]

SAMPLE_SIZE = 1024  # elements of each tensor; a fraction read off it has a standard error of at most 0.016
QUANTITIES = ("zeros", "positives", "squares", "fourths", "agreeing", "compared")


class Samples:
    """Keeps the sample of the step before, to compare signs with."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._previous: dict[int, Tensor] = {}

    @torch.no_grad()
    def read(self, reading: Reading, indices: Sequence[int]) -> None:
        """Counts and moments of each sample: a few passes over a thousand numbers a tensor, whatever the model's size."""
        devices: dict[torch.device, list[int]] = {}
        for i in indices:
            devices.setdefault(self._gauge.parameters[i].device, []).append(i)
        for together in devices.values():
            self._read(reading, together)
        self.forget()

    def _read(self, reading: Reading, indices: Sequence[int]) -> None:
        parts = [self._sample(i) for i in indices]
        lengths = torch.tensor([len(part) for part in parts], device=parts[0].device)
        now = torch.cat(parts)
        before = torch.cat(
            [self._previous.get(i, torch.zeros_like(part)) for i, part in zip(indices, parts, strict=True)]
        )
        # Divided by its largest element, so that squares and fourth powers neither vanish nor overflow.
        scale = torch.segment_reduce(now.abs(), "max", lengths=lengths).clamp_min(torch.finfo(now.dtype).tiny)
        unit = now / scale.repeat_interleave(lengths, output_size=len(now))
        squares = unit * unit
        both = (now != 0) & (before != 0)
        features = torch.stack(
            [
                (now == 0).to(now.dtype),
                (now > 0).to(now.dtype),
                squares,
                squares * squares,
                (both & ((now > 0) == (before > 0))).to(now.dtype),
                both.to(now.dtype),
            ],
            dim=1,
        )
        sums = torch.segment_reduce(features, "sum", lengths=lengths, axis=0)
        for column, quantity in enumerate(QUANTITIES):
            reading.add_column(quantity, indices, sums[:, column])
        reading.add_column("sample_scale", indices, scale)

    @torch.no_grad()
    def keep(self, indices: Sequence[int]) -> None:
        """Copy the samples, for the next step to be compared with."""
        self._previous.update({i: self._sample(i).clone() for i in indices})

    def forget(self) -> None:
        """What was kept is not of the step before."""
        self._previous.clear()

    def _sample(self, i: int) -> Tensor:
        part = stats.sample(self._gauge.grad(i), SAMPLE_SIZE)
        return part.float() if part.dtype in stats.HALF else part
