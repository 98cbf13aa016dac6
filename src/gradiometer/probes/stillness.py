"""Held still: whatever a probe does to a model, the next training step does not notice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradiometer.capture.blocks import Model, modules_of
from gradiometer.capture.distributed import refuse_shards

__all__ = ["held_still"]


@contextmanager
def held_still(model: Model) -> Iterator[None]:
    """Random states, buffers, modes and autocast's cache as they were; `.grad` is never written (autograd.grad is used).

    A data-parallel model neither averages gradients nor broadcasts buffers meanwhile: ranks walk different micro-batches.
    """
    refuse_shards(model)
    parts = [part for module in modules_of(model).values() for part in module.modules()]
    modes = [part.training for part in parts]
    buffers = [(part, dict(part._buffers), _copies(part)) for part in parts]
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    caching = torch.is_autocast_cache_enabled()
    # A forward without gradients would leave weights in the cache that later have none.
    torch.set_autocast_cache_enabled(False)
    try:
        with ExitStack() as stack:
            for part in parts:
                if isinstance(part, DistributedDataParallel):
                    stack.enter_context(_alone(part))
            yield
    finally:
        torch.set_autocast_cache_enabled(caching)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        for part, training in zip(parts, modes, strict=True):
            part.training = training
        for part, held, copies in buffers:
            _restore(part, held, copies)


def _copies(part: nn.Module) -> dict[str, Tensor]:
    return {name: held.detach().clone() for name, held in part._buffers.items() if held is not None}


def _restore(part: nn.Module, held: dict[str, Tensor | None], copies: dict[str, Tensor]) -> None:
    """The same tensors under the same names: a forward may have rebound a buffer (self.m = 0.9 * self.m + ...)."""
    part._buffers.clear()
    part._buffers.update(held)
    for name, before in copies.items():
        # By way of .data: batch norm changes its statistics without counting it as a change, and so must we.
        held[name].data.copy_(before)  # type: ignore[union-attr]


@contextmanager
def _alone(part: DistributedDataParallel) -> Iterator[None]:
    """Without the reducer, which would wait for a backward that never comes, and without the broadcast of buffers."""
    broadcasts = part.require_forward_param_sync
    with part.no_sync():
        part.require_forward_param_sync = False
        try:
            yield
        finally:
            part.require_forward_param_sync = broadcasts
