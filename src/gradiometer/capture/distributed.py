"""Trainings on several processes: ranks, sharded parameters, and what cannot be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gradiometer.capture.blocks import Model, modules_of
from gradiometer.errors import UsageError
from gradiometer.maths.sketch import SHIFTS, Sketcher
from gradiometer.maths.stats import stride_of

__all__ = [
    "Piece",
    "ShardSketcher",
    "gathered",
    "is_sharded",
    "is_spread",
    "local",
    "num_data_ranks",
    "num_ranks",
    "num_replicas",
    "pieces_of",
    "places_of",
    "reduces",
    "refuse_engines",
    "refuse_shards",
    "reset_backward",
    "version_of",
    "writes_here",
]


def writes_here() -> bool:
    """Whether this process keeps the run: rank 0 does, the others only train."""
    return not _running() or torch.distributed.get_rank() == 0


def num_ranks() -> int:
    """Processes of this training."""
    return torch.distributed.get_world_size() if _running() else 1


def num_replicas(model: Model) -> int:
    """How many ranks average their gradients: DistributedDataParallel's, if it spans all."""
    groups = [
        m.process_group
        for m in modules_of(model).values()
        if isinstance(m, nn.parallel.DistributedDataParallel)
    ]
    sizes = {group.size() for group in groups}
    return num_ranks() if sizes == {num_ranks()} else 1


def num_data_ranks(model: Model) -> int:
    """How many ranks have a batch of their own in each step: DDP's, or FSDP2's mesh.

    Tensors that are parallel within it, or without it (DTensor plans), see one batch on all ranks.
    """
    sizes = [
        getattr(group.mesh_info, "shard_mesh_size", 1)
        * getattr(group.mesh_info, "replicate_mesh_size", 1)
        for group in _fsdp_groups(model)
    ]
    return max(sizes) if sizes else num_replicas(model)


def refuse_engines(model: Model, optimizers: Iterable[Any]) -> None:
    """Refuse engines that keep gradients where torch does not show them."""
    for part in modules_of(model).values():
        if _of_deepspeed(part) and _zero_stage(part) != 0:
            raise UsageError(
                _zero_refused(f"the model is a {type(part).__name__}", _zero_stage(part))
            )
        if any(hasattr(p, "ds_id") for p in part.parameters()):
            raise UsageError(_zero_refused("its parameters are partitioned (ds_id)", 3))
        if num_ranks() > 1 and any(_is_fsdp1(module) for module in part.modules()):
            raise UsageError(
                "the model is wrapped in FullyShardedDataParallel (FSDP1), which shows pieces of"
                " gradients without saying whose they are. Use"
                " torch.distributed.fsdp.fully_shard(model) (FSDP2), which the meter reads"
            )
    for optimizer in optimizers:
        for layer in _unwrapped(optimizer):
            if _of_deepspeed(layer) and "zero" in type(layer).__name__.lower():
                raise UsageError(_zero_refused(f"the optimizer is a {type(layer).__name__}", None))


def refuse_shards(model: Model) -> None:
    """Refuse for probes: autograd.grad finds no path through FSDP2's hooks."""
    if any(is_sharded(p) for part in modules_of(model).values() for p in part.parameters()):
        raise UsageError(
            "the model is sharded (FSDP2, DTensor), where autograd.grad finds no path to any"
            " parameter: nothing could be told apart. Probe it in one process, from a checkpoint"
            " loaded into an unsharded model, or under DistributedDataParallel; watch() does read"
            " sharded models"
        )


def _zero_refused(found: str, stage: int | None) -> str:
    which = "ZeRO" if stage is None else f"ZeRO stage {stage}"
    return (
        f"DeepSpeed {which} keeps gradients in partitions of its own, where torch's hooks do not"
        f" see them; found that {found}. Read norms and extremes of its gradients through its own"
        " accessors, with gradiometer.integrations.deepspeed.watch_engine(engine); for all else"
        " train with torch.distributed.fsdp.fully_shard(model) or DistributedDataParallel (in"
        " accelerate: distributed_type FSDP with fsdp_version 2, or MULTI_GPU), or set"
        " zero_optimization.stage to 0 and watch engine.module and engine.optimizer"
    )


def _of_deepspeed(thing: object) -> bool:
    """By module name: DeepSpeed is not imported, and accelerate derives from its engine."""
    return any(kind.__module__.partition(".")[0] == "deepspeed" for kind in type(thing).__mro__)


def _zero_stage(engine: Any) -> int | None:
    stage = getattr(engine, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else None


def _is_fsdp1(module: nn.Module) -> bool:
    return any(
        kind.__name__ == "FullyShardedDataParallel"
        and kind.__module__.startswith("torch.distributed")
        for kind in type(module).__mro__
    )


def _unwrapped(optimizer: Any) -> Iterator[Any]:
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "optimizer", None)


def _running() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


# A parameter that lies on several ranks (DTensor, FSDP2's `fully_shard`). Everything the meter
# keeps of a tensor is a sum or an extreme over its elements, so each rank reads its own piece, and
# ranks.py puts the pieces together. Samples and sketches depend on where an element stands in the
# whole tensor: a piece knows that, so that the ranks together take the very sample, and the very
# sketch, that one process would.


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
    """torch's counter of changes. FSDP2 adds to the piece, everybody else to the DTensor."""
    inner: Tensor | None = getattr(tensor, "_local_tensor", None)
    return tensor._version if inner is None else tensor._version + inner._version


# FSDP2 computes with whole copies of its parameters, which are the leaves of the graph, and adds
# to the gradients of the sharded ones by itself. Which copy is whose has no public name.


def _fsdp_states(model: Model) -> list[Any]:
    return [
        cast(Any, module)._get_fsdp_state()
        for part in modules_of(model).values()
        for module in part.modules()
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
    ]


def _fsdp_groups(model: Model) -> list[Any]:
    """The parameters that FSDP2 gathers and reduces together."""
    groups: list[Any] = []
    for state in _fsdp_states(model):
        several = getattr(state, "_fsdp_param_groups", None)  # older versions of torch have one
        groups += [state._fsdp_param_group] if several is None else several
    return [group for group in groups if group is not None]


def gathered(model: Model) -> dict[int, Tensor]:
    """The sharded parameter by the id of its whole copy in the graph, where FSDP2 makes one."""
    return {
        id(each._unsharded_param): each.sharded_param
        for group in _fsdp_groups(model)
        for each in group.fsdp_params
        if hasattr(each, "_unsharded_param")
    }


def reduces(model: Model) -> bool:
    """Whether the next backward adds to the gradient of every sharded parameter: it does not with
    `set_requires_gradient_sync(False)`."""
    return all(group.reduce_grads and group.all_reduce_grads for group in _fsdp_groups(model))


def reset_backward(model: Model) -> None:
    """After a backward that raised in the middle, so that FSDP2 takes the next one as its first."""
    for group in _fsdp_groups(model):
        for each in group.fsdp_params:
            if hasattr(each, "_unsharded_param"):
                each._unsharded_param.grad = None
    for state in _fsdp_states(model):
        if state._is_root and hasattr(state, "_reset_iter_state"):
            state._reset_iter_state()
        state._state_ctx.post_backward_final_callback_queued = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where in the whole tensor the local part lies, and how much it counts."""

    shape: tuple[int, ...]
    """Of the whole."""
    local_shape: tuple[int, ...]
    offset: tuple[int, ...]
    """Where the local box begins, by dimension."""
    share: float
    """1 over the number of ranks that hold the same piece, so that sums count it once."""

    @property
    def numel(self) -> int:
        """Elements here."""
        return math.prod(self.local_shape)

    @property
    def first(self) -> int | None:
        """Place of the first local element in the whole; None for a cut across rows."""
        if self.numel == 0 or self.local_shape[1:] == self.shape[1:]:
            return (self.offset[0] if self.offset else 0) * math.prod(self.shape[1:])
        return None

    def sample_places(self, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Which local elements belong to the sample of the whole tensor: every stride-th of it."""
        stride = stride_of(self.shape, size)
        if self.first is not None:
            return np.arange(-self.first % stride, self.numel, stride)
        places = np.arange(0, math.prod(self.shape), stride)
        by_dimension = (
            np.stack(np.unravel_index(places, self.shape)) - np.array(self.offset)[:, None]
        )
        inside = ((by_dimension >= 0) & (by_dimension < np.array(self.local_shape)[:, None])).all(0)
        found: np.ndarray[Any, np.dtype[np.int64]] = np.ravel_multi_index(
            tuple(by_dimension[:, inside]), self.local_shape
        ).astype(np.int64)
        return found


def pieces_of(parameters: Sequence[Tensor], world: int) -> dict[int, Piece]:
    """Every parameter's piece, by number, where any of them is sharded; nothing where none is."""
    if not any(is_sharded(p) for p in parameters):
        return {}
    return {
        i: _piece(p, world) if is_sharded(p) else _whole(p, world) for i, p in enumerate(parameters)
    }


def _whole(parameter: Tensor, world: int) -> Piece:
    """A plain tensor among sharded ones: every rank has it, so each counts as one of them."""
    shape = (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)
    return Piece(shape=shape, local_shape=shape, offset=(0,) * len(shape), share=1 / world)


def _piece(parameter: Any, world: int) -> Piece:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = parameter.device_mesh, parameter.placements
    by_dimension = [1] * parameter.ndim
    readable = not parameter.is_complex()
    for size, placement in zip(mesh.shape, placements, strict=True):
        if type(placement) is Shard or type(placement).__name__ == "_StridedShard":
            by_dimension[placement.dim] *= size
        else:
            readable = readable and type(placement) is Replicate
    # A strided cut (FSDP2 over tensor parallelism) makes boxes where it makes equal pieces.
    strided = {x.dim for x in placements if type(x).__name__ == "_StridedShard"}
    if not readable or any(parameter.shape[d] % by_dimension[d] for d in strided):
        raise UsageError(
            f"a parameter of shape {tuple(parameter.shape)} is placed as {placements}; the meter"
            " reads real DTensors that are replicated, or sharded over one mesh dimension, or over"
            " several in equal pieces. Watch the model before it is parallelised, or leave that"
            " module out of watch()"
        )
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    cuts = math.prod(by_dimension)
    return Piece(
        shape=tuple(parameter.shape),
        local_shape=tuple(shape),
        offset=tuple(offset),
        share=cuts / max(world, cuts),
    )


@dataclass(frozen=True, slots=True)
class ShardSketcher(Sketcher):
    """Sketches pieces so that the sum over ranks is the sketch of the whole: a piece meets the
    tiles it lies in.

    A cut across rows has no run of elements of its own; its sketch is linear all the same, only not
    the single process's.
    """

    pieces: Mapping[int, Piece] = field(default_factory=dict)
    """By the key of the tensor."""

    def _place(self, plane: Tensor, signs: Tensor, x: Tensor, key: int, shift: int) -> int:
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
            tile, at = (
                flat[low - begin : high - begin].float(),
                (start + shift) % SHIFTS + low - first,
            )
            plane[at : at + high - low].addcmul_(
                tile, signs[low - first : high - first], value=sign * piece.share
            )
            last = max(last, at + high - low)
        return last


def places_of(piece: Piece, size: int, device: torch.device) -> Tensor | slice:
    """`sample_places` as a stride where it is one: nothing is kept or gathered."""
    if piece.first is not None:
        stride = stride_of(piece.shape, size)
        return slice(-piece.first % stride, None, stride)
    return torch.from_numpy(piece.sample_places(size)).to(device)
