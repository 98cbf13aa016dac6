"""A parameter that lies on several ranks (DTensor, FSDP2's `fully_shard`): which piece of it is here.

Everything the meter keeps of a tensor is a sum or a largest over its elements, so each rank reads its own piece and the
pieces are put together when the ranks meet. Samples and sketches depend on where an element stands in the whole tensor:
a piece knows that, so that the ranks together take the very sample, and the very sketch, that one process would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradiometer.errors import UsageError
from gradiometer.maths.sketch import Sketcher
from gradiometer.maths.stats import stride_of

__all__ = ["Piece", "ShardSketcher", "is_sharded", "is_spread", "local", "pieces_of", "places_of", "version_of"]


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor; asked by name, for importing the class takes half a second."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: Tensor) -> Tensor:
    """What of it is here. No communication, and nothing of autograd."""
    found: Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def is_spread(tensor: Tensor) -> bool:
    """Whether no rank alone knows the number: a DTensor that is not the same on all of them."""
    placements: Iterable[Any] = getattr(tensor, "placements", ())
    return any(not placement.is_replicate() for placement in placements)


def version_of(tensor: Tensor) -> int:
    """torch's counter of in-place changes. FSDP2 adds to the piece directly, everybody else to the DTensor."""
    inner: Tensor | None = getattr(tensor, "_local_tensor", None)
    return tensor._version if inner is None else tensor._version + inner._version


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where in the whole tensor the local part lies, and how much it counts."""

    shape: tuple[int, ...]
    """Of the whole."""
    local_shape: tuple[int, ...]
    offset: tuple[int, ...]
    """Where the local box begins, by dimension."""
    share: float
    """1 over the number of ranks that hold the same piece: sums over all ranks then count it once."""

    @property
    def numel(self) -> int:
        """Elements here."""
        return math.prod(self.local_shape)

    @property
    def first(self) -> int | None:
        """The place of the first local element in the whole, if the others follow it; None for a cut across rows."""
        if self.numel == 0 or self.local_shape[1:] == self.shape[1:]:
            return (self.offset[0] if self.offset else 0) * math.prod(self.shape[1:])
        return None

    def sample_places(self, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Which local elements belong to the sample of the whole tensor: every stride-th of it."""
        stride = stride_of(self.shape, size)
        if self.first is not None:
            return np.arange(-self.first % stride, self.numel, stride)
        places = np.arange(0, math.prod(self.shape), stride)
        by_dimension = np.stack(np.unravel_index(places, self.shape)) - np.array(self.offset)[:, None]
        inside = ((by_dimension >= 0) & (by_dimension < np.array(self.local_shape)[:, None])).all(0)
        found: np.ndarray[Any, np.dtype[np.int64]] = np.ravel_multi_index(
            tuple(by_dimension[:, inside]), self.local_shape
        ).astype(np.int64)
        return found


def pieces_of(parameters: Sequence[Tensor], world: int) -> dict[int, Piece]:
    """Every parameter's piece, by number, where any of them is sharded; nothing where none is."""
    if not any(is_sharded(p) for p in parameters):
        return {}
    return {i: _piece(p, world) if is_sharded(p) else _whole(p, world) for i, p in enumerate(parameters)}


def _whole(parameter: Tensor, world: int) -> Piece:
    """A plain tensor among sharded ones: every rank has it, so each counts as one of them."""
    shape = (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)
    return Piece(shape=shape, local_shape=shape, offset=(0,) * len(shape), share=1 / world)


def _piece(parameter: Any, world: int) -> Piece:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = parameter.device_mesh, parameter.placements
    if any(type(placement) not in (Replicate, Shard) for placement in placements) or parameter.is_complex():
        raise UsageError(
            f"a parameter of shape {tuple(parameter.shape)} is placed as {placements}; the meter reads real DTensors that "
            "are sharded or replicated. Watch the model before it is parallelised, or leave that module out of watch()"
        )
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    cuts = math.prod(mesh.size(number) for number, placement in enumerate(placements) if isinstance(placement, Shard))
    return Piece(
        shape=tuple(parameter.shape), local_shape=tuple(shape), offset=tuple(offset), share=cuts / max(world, cuts)
    )


@dataclass(frozen=True, slots=True)
class ShardSketcher(Sketcher):
    """Sketches pieces so that the sum over ranks is the sketch of the whole: a piece meets the tiles it lies in.

    A cut across rows has no run of elements of its own; its sketch is linear all the same, only not the single process's.
    """

    pieces: Mapping[int, Piece] = field(default_factory=dict)
    """By the key of the tensor."""

    def _place(self, plane: Tensor, signs: Tensor, x: Tensor, key: int) -> int:
        piece = self.pieces[key]
        begin = piece.first
        if begin is None:
            begin, numel = 0, piece.numel
            key = key ^ (1 + int(np.ravel_multi_index(piece.offset, piece.shape)))
        else:
            numel = math.prod(piece.shape)
        flat, end, last = x.reshape(-1), begin + x.numel(), 0
        for first, length, start, sign in self._placings_of(key, numel):
            low, high = max(first, begin), min(first + length, end)
            if low >= high:
                continue
            tile, at = flat[low - begin : high - begin].float(), start + low - first
            plane[at : at + high - low].addcmul_(tile, signs[low - first : high - first], value=sign * piece.share)
            last = max(last, at + high - low)
        return last


def places_of(piece: Piece, size: int, device: torch.device) -> Tensor | slice:
    """The same as `sample_places`, as a stride where it is one: no index is kept and nothing gathered."""
    if piece.first is not None:
        stride = stride_of(piece.shape, size)
        return slice(-piece.first % stride, None, stride)
    return torch.from_numpy(piece.sample_places(size)).to(device)
