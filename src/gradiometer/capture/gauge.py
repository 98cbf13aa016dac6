"""Reads gradients and weights of the watched parameters into a `Reading`, without a sync and without changing them.

Tensor by tensor, not statistic by statistic: while a tensor is in the cache, everything is taken from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.reading import Reading
from gradiometer.capture.shards import Piece, local, places_of, version_of
from gradiometer.maths import stats
from gradiometer.maths.histogram import log_histogram

__all__ = ["SAMPLE_SIZE", "Gauge"]

SAMPLE_SIZE = 1024  # elements of each tensor; a fraction read off it has a standard error of at most 0.016
WEIGHTS_EVERY = 10


class Gauge:
    """Holds the parameters and one scratch copy of their size (tier `standard` and above).

    The scratch holds the previous gradient until the new one has been compared with it, then the weights before the
    step, then the gradient again.
    """

    def __init__(self, parameters: Sequence[Tensor], pieces: Mapping[int, Piece] | None = None) -> None:
        self.parameters = list(parameters)
        self.pieces = pieces or {}
        """Where this rank's part of each parameter lies, when they are sharded."""
        self._places = {i: places_of(piece, SAMPLE_SIZE, parameters[i].device) for i, piece in self.pieces.items()}
        self.index = {id(p): i for i, p in enumerate(self.parameters)}
        self._scratch: dict[int, Tensor] = {}
        self._previous: dict[int, tuple[int, Tensor | None]] = {}
        """Whose scratch holds a gradient: of which step, and its norm; None where the host knows it."""
        self._weights: dict[int, int] = {}
        """Whose scratch holds the weights, with their change counter at the time."""
        self._weight_norms: dict[int, tuple[int, Tensor]] = {}
        """‖w‖ and the round it was read in."""
        self._noted: dict[int, tuple[int, int]] = {}

    def indices(self, tensors: Iterable[Tensor]) -> list[int]:
        """The watched ones among `tensors`."""
        index = self.index
        return [index[id(t)] for t in tensors if id(t) in index]

    def first_of(self, tensors: Iterable[Tensor]) -> int | None:
        """The first watched one among `tensors`; None when they are another model's."""
        index = self.index
        return next((index[id(t)] for t in tensors if id(t) in index), None)

    def with_grad(self, indices: Iterable[int]) -> list[int]:
        """Those that hold a gradient now."""
        return [i for i in indices if self.parameters[i].grad is not None]

    def grad(self, i: int) -> Tensor:
        """A gradient that is there, dense and real; of a sharded one what is here."""
        grad = self.parameters[i].grad
        assert grad is not None
        return stats.filled(local(grad))

    def _weight(self, i: int) -> Tensor:
        return stats.filled(local(self.parameters[i]))

    def _sample(self, i: int, grad: Tensor) -> Tensor:
        return grad.reshape(-1)[self._places[i]] if self._places else stats.sample(grad, SAMPLE_SIZE)

    def versions(self, indices: Iterable[int]) -> dict[int, int]:
        """torch's counter of in-place changes of each gradient: equal means untouched."""
        return {i: version_of(grad) for i in indices if (grad := self.parameters[i].grad) is not None}

    def marks(self, indices: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Address and change counter of each gradient: equal means the same tensor, untouched."""
        return {i: (id(grad), version_of(grad)) for i in indices if (grad := self.parameters[i].grad) is not None}

    @torch.no_grad()
    def read_light(self, reading: Reading, indices: Sequence[int]) -> None:
        """Norm and extremes of each gradient as backward left it."""
        grads = [stats.values(local(grad)) for i in indices if (grad := self.parameters[i].grad) is not None]
        low, high = stats.extremes(grads)
        reading.add("raw", indices, stats.norms(grads))
        reading.add("low", indices, low)
        reading.add("high", indices, high)

    @torch.no_grad()
    def read_full(
        self, reading: Reading, indices: Sequence[int], *, step: int, keep_weights: Collection[int], sums: bool
    ) -> Tensor:
        """What `read_light` reads, the sum if asked for, and the inner product with the gradient of the step before.

        The weights of those about to be stepped are kept on the way, while the scratch is in the cache. Returns a small
        sample of each gradient, taken for the same reason.
        """
        raw, low, high, total = [], [], [], []
        samples = self._no_samples(indices)
        dots: dict[int, Tensor] = {}
        previous_norms: dict[int, Tensor] = {}
        for row, i in enumerate(indices):
            grad = self.grad(i)
            raw.append(stats.norm(grad))
            least, most = stats.extreme(grad)
            low.append(least)
            high.append(most)
            if sums:
                total.append(stats.total(grad))
            sample = self._sample(i, grad)
            samples[row, : len(sample)] = sample
            of_step, norm = self._previous.get(i, (None, None))
            if of_step == step - 1:  # a cosine over another lag would be another quantity
                dots[i] = stats.dot(grad, self._scratch[i])
                if norm is not None:
                    previous_norms[i] = norm
            if i in keep_weights:
                self._keep_weight(i)
        for quantity, values in (("raw", raw), ("low", low), ("high", high), ("sum", total)):
            reading.add(quantity, indices, values)
        reading.add("previous_dot", list(dots), list(dots.values()))
        reading.add("previous_norm", list(previous_norms), list(previous_norms.values()))
        return samples

    @torch.no_grad()
    def read_clipped(self, reading: Reading, indices: Sequence[int]) -> None:
        """Norm of each gradient as the optimizer is about to see it."""
        reading.add("clipped", indices, [stats.norm(self.grad(i)) for i in indices])

    @torch.no_grad()
    def keep_weights(self, indices: Sequence[int]) -> None:
        """Copy the weights before the step, where they are not kept already or have changed since."""
        for i in indices:
            if self._weights.get(i) != version_of(self.parameters[i]):
                self._keep_weight(i)

    def _keep_weight(self, i: int) -> None:
        self._previous.pop(i, None)
        self._scratch_for(i).copy_(self._weight(i))
        self._weights[i] = version_of(self.parameters[i])

    def note_gradients(self, indices: Sequence[int]) -> None:
        """Remember the gradients as the optimizer gets them: some optimizers change them inside their step."""
        self._noted = self.marks(indices)

    @torch.no_grad()
    def read_update(
        self, reading: Reading, indices: Sequence[int], *, number: int, dots: bool, keep_as: int | None
    ) -> None:
        """‖w‖ before the step, ‖Δw‖ and, if asked for, <g, −Δw>; then the scratch may take the gradient, as a step's.

        ‖w‖ moves by an update at a time, so it is read again only when it is ten rounds old.
        """
        unchanged = {i for i, mark in self.marks(indices).items() if self._noted.get(i) == mark}
        update: list[Tensor] = []
        products: dict[int, Tensor] = {}
        for i in indices:
            kept = self._scratch[i]
            if i not in self._weight_norms or number - self._weight_norms[i][0] >= WEIGHTS_EVERY:
                self._weight_norms[i] = number, stats.norm(kept)
            kept.sub_(self._weight(i))  # w_before − w_after = −Δw
            update.append(stats.norm(kept))
            self._weights.pop(i, None)
            if self.parameters[i].grad is None:
                continue
            if dots and i in unchanged:
                products[i] = stats.dot(self.grad(i), kept)
            if keep_as is not None:
                kept.copy_(self.grad(i))
                self._previous[i] = keep_as, None if i in unchanged else stats.norm(kept)
        reading.add("weight", indices, [self._weight_norms[i][1] for i in indices])
        reading.add("update", indices, update)
        reading.add("update_dot", list(products), list(products.values()))

    @torch.no_grad()
    def keep_gradients(self, indices: Sequence[int], *, step: int) -> Tensor:
        """Copy the gradients, for the next step to be compared with; returns a sample of each."""
        samples = self._no_samples(indices)
        for row, i in enumerate(indices):
            grad = self.grad(i)
            self._weights.pop(i, None)
            self._scratch_for(i).copy_(grad)
            self._previous[i] = step, stats.norm(grad)
            sample = self._sample(i, grad)
            samples[row, : len(sample)] = sample
        return samples

    def forget_past(self) -> None:
        """The next step is compared with nothing."""
        self._previous.clear()

    def read_histograms(self, reading: Reading, indices: Sequence[int], blocks: Blocks) -> None:
        """A histogram of each named block's gradient."""
        named = list(zip(blocks.names, blocks.members[: blocks.num_named], strict=False))
        for i in indices:
            counts = log_histogram(self.grad(i))
            if self.pieces:
                counts = counts * self.pieces[i].share
            for name, members in named:
                if i in members:
                    reading.add_array(f"histogram/{name}", counts)

    @torch.no_grad()
    def nonfinite(self, indices: Sequence[int]) -> list[int]:
        """The parameters whose gradient holds a NaN or an Inf, judged on elements. A sync, for those who asked for it."""
        grads = [stats.values(local(grad)) for i in indices if (grad := self.parameters[i].grad) is not None]
        if not grads or bool(torch.isfinite(torch.stack([n.double() for n in stats.norms(grads)])).all()):
            return []
        low, high = stats.extremes(grads)
        bad = ~torch.isfinite(torch.stack([a.double() + b.double() for a, b in zip(low, high, strict=True)]))
        return [i for i, is_bad in zip(indices, bad.tolist(), strict=True) if is_bad]

    def _no_samples(self, indices: Sequence[int]) -> Tensor:
        """Room for a sample of each gradient, one row each, [len(indices), SAMPLE_SIZE]."""
        return torch.zeros(
            len(indices),
            SAMPLE_SIZE,
            dtype=torch.float32,
            device=self.parameters[indices[0]].device if indices else None,
        )

    def _scratch_for(self, i: int) -> Tensor:
        kept = self._scratch.get(i)
        weight = local(self.parameters[i])
        shape = (*weight.shape, 2) if weight.is_complex() else weight.shape
        if kept is None or kept.device != weight.device or kept.dtype != weight.dtype.to_real() or kept.shape != shape:
            kept = self._scratch[i] = torch.empty_like(stats.filled(weight), memory_format=torch.contiguous_format)
        return kept
