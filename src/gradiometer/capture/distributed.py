"""What the meter needs to know of a training on several processes."""

from __future__ import annotations

import torch

__all__ = ["num_replicas", "writes_here"]


def writes_here() -> bool:
    """Whether this process keeps the run: rank 0 does, the others only train."""
    return not _running() or torch.distributed.get_rank() == 0


def num_replicas() -> int:
    """How many ranks average their gradients when a model is wrapped in DistributedDataParallel."""
    return torch.distributed.get_world_size() if _running() else 1


def _running() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
