"""What the meter needs to know of a training on several processes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

__all__ = ["num_replicas", "writes_here"]


def writes_here() -> bool:
    """Whether this process keeps the run: rank 0 does, the others only train."""
    return not _running() or torch.distributed.get_rank() == 0


def num_replicas(modules: Iterable[nn.Module]) -> int:
    """How many ranks average their gradients: 1 unless a module is wrapped in DistributedDataParallel."""
    if not _running():
        return 1
    wrapped = any(isinstance(part, nn.parallel.DistributedDataParallel) for part in modules)
    return torch.distributed.get_world_size() if wrapped else 1


def _running() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
