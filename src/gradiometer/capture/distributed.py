"""What the meter needs to know of a training on several processes, and which ones it cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from gradiometer.capture.blocks import Model, modules_of
from gradiometer.capture.shards import is_sharded
from gradiometer.errors import UsageError

__all__ = ["num_ranks", "num_replicas", "refuse_engines", "refuse_shards", "writes_here"]


def writes_here() -> bool:
    """Whether this process keeps the run: rank 0 does, the others only train."""
    return not _running() or torch.distributed.get_rank() == 0


def num_ranks() -> int:
    """Processes of this training."""
    return torch.distributed.get_world_size() if _running() else 1


def num_replicas(model: Model) -> int:
    """How many ranks average their gradients: those of DistributedDataParallel, when it spans them all."""
    groups = [m.process_group for m in modules_of(model).values() if isinstance(m, nn.parallel.DistributedDataParallel)]
    sizes = {group.size() for group in groups}
    return num_ranks() if sizes == {num_ranks()} else 1


def refuse_engines(model: Model, optimizers: Iterable[Any]) -> None:
    """Say in words what cannot be measured: engines that keep gradients where torch does not show them."""
    for part in modules_of(model).values():
        if _of_deepspeed(part) and _zero_stage(part) != 0:
            raise UsageError(_zero_refused(f"the model is a {type(part).__name__}", _zero_stage(part)))
        if any(hasattr(p, "ds_id") for p in part.parameters()):
            raise UsageError(_zero_refused("its parameters are partitioned (ds_id)", 3))
        if num_ranks() > 1 and any(_is_fsdp1(module) for module in part.modules()):
            raise UsageError(
                "the model is wrapped in FullyShardedDataParallel (FSDP1), which shows pieces of gradients without saying "
                "whose they are. Use torch.distributed.fsdp.fully_shard(model) (FSDP2), which the meter reads"
            )
    for optimizer in optimizers:
        for layer in _unwrapped(optimizer):
            if _of_deepspeed(layer) and "zero" in type(layer).__name__.lower():
                raise UsageError(_zero_refused(f"the optimizer is a {type(layer).__name__}", None))


def refuse_shards(model: Model) -> None:
    """For probes: autograd.grad finds no path through FSDP2's hooks, and that must not be taken for the truth."""
    if any(is_sharded(p) for part in modules_of(model).values() for p in part.parameters()):
        raise UsageError(
            "the model is sharded (FSDP2, DTensor), where autograd.grad finds no path to any parameter: nothing could be told "
            "apart. Probe it in one process, from a checkpoint loaded into an unsharded model, or under "
            "DistributedDataParallel; watch() does read sharded models"
        )


def _zero_refused(found: str, stage: int | None) -> str:
    which = "ZeRO" if stage is None else f"ZeRO stage {stage}"
    return (
        f"DeepSpeed {which} keeps gradients in partitions of its own, where torch's hooks do not see them; found that {found}. "
        "To measure, train with torch.distributed.fsdp.fully_shard(model) or DistributedDataParallel (in accelerate: "
        "distributed_type FSDP with fsdp_version 2, or MULTI_GPU), or set zero_optimization.stage to 0 and watch "
        "engine.module and engine.optimizer"
    )


def _of_deepspeed(thing: object) -> bool:
    """By the name of its module: DeepSpeed is not imported, and accelerate derives its wrapper from the engine."""
    return any(kind.__module__.partition(".")[0] == "deepspeed" for kind in type(thing).__mro__)


def _zero_stage(engine: Any) -> int | None:
    stage = getattr(engine, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else None


def _is_fsdp1(module: nn.Module) -> bool:
    return any(
        kind.__name__ == "FullyShardedDataParallel" and kind.__module__.startswith("torch.distributed")
        for kind in type(module).__mro__
    )


def _unwrapped(optimizer: Any) -> Iterator[Any]:
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "optimizer", None)


def _running() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
